"""The table of the door, within this process."""

from __future__ import annotations

import json
import logging

import pytest

from tests.support.door.documented import wrong
from tests.support.door.made import post, send
from tests.support.door.table import table
from tests.support.inside import Inside


@pytest.mark.parametrize("name", table())
def test_it_is_answered_as_the_table_says(service: Inside, name: str) -> None:
    case = table()[name]
    assert not (fault := wrong(case, service.exchange(case.parts, late=case.late))), fault


def test_values_are_not_echoed_and_not_logged(
    service: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "dt_" + "Z" * 43
    body = json.dumps({"tp": "hidden1", "overrides": ["hidden2", 1]}).encode()
    with caplog.at_level(logging.DEBUG, "domino_tune"):
        for sent in (
            post(body, "/v1/tunes?q=hidden3", Idempotency_Key="hidden4"),
            [send("GET", "/v1/tunes?q=hidden3", Authorization=f"Bearer {secret}")],
        ):
            assert (answer := service.exchange(sent)).status in (401, 422)
            assert b"hidden" not in answer.body
    assert '"route": "/v1/tunes"' in caplog.text
    assert not [word for word in (secret, "hidden") if word in caplog.text]
