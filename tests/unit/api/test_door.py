"""Each request of the table is answered as it says, whoever sends it."""

from __future__ import annotations

import httpx
import pytest

from tests.support.door import CASES, pointed


@pytest.mark.parametrize("name", CASES)
def test_what_comes_to_the_door(client: httpx.Client, name: str) -> None:
    case = CASES[name]
    answer = case.ask(client)
    assert answer.status_code == case.status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) < 8000
    assert case.says in answer.json()["detail"]
    assert not case.place or pointed(answer)[0].startswith(case.place)
    assert "passwd" not in answer.text
