"""Worker processes that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from domino_tune.service.executors.slots import SlotExecutor


@pytest.fixture(scope="module")
def slots() -> Iterator[SlotExecutor]:
    made = SlotExecutor(2)
    yield made
    made.shutdown(wait=False)
