"""Quick answers whose worker dies."""

from __future__ import annotations

import asyncio
import os

import pytest

from api.problems import ProblemError
from api.quick import Quick
from domino_tune.service.executors.registry import open_executor
from tests.support.processes import PATIENCE_S


def test_a_worker_that_dies_is_503_and_the_next_one_answers() -> None:
    executor = open_executor("local", 1)

    async def work() -> None:
        made = Quick(executor, die_once, deadline_s=PATIENCE_S)
        with pytest.raises(ProblemError) as caught:
            await made.answer("me", "die", b"1")
        assert caught.value.status == 503
        assert await made.answer("me", "live", b"1") == b"1"

    try:
        asyncio.run(work())
    finally:
        executor.shutdown(wait=False)


def die_once(kind: str, task: bytes) -> bytes:
    if kind == "die":
        os._exit(1)
    return task
