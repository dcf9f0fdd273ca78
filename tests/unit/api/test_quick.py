"""What is answered at once: shared, kept, bounded, and given up at its deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from api import quick
from api.problems import ProblemError
from api.quick import Quick
from simulator.errors import InputError
from tests.support.processes import PATIENCE_S

pytestmark = pytest.mark.anyio


class Computing:
    """A function that counts its calls and waits while ``gate`` is closed."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate = threading.Event()

    def __call__(self, kind: str, task: bytes) -> bytes:
        self.calls += 1
        assert self.gate.wait(PATIENCE_S)
        if task == b"bad":
            raise InputError("No.")
        return kind.encode() + task


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def compute(executor: ThreadPoolExecutor) -> Iterator[Computing]:
    made = Computing()
    yield made
    made.gate.set()


async def test_equal_requests_are_one(executor: ThreadPoolExecutor, compute: Computing) -> None:
    made = Quick(executor, compute, deadline_s=PATIENCE_S)
    both = asyncio.gather(made.answer("me", "a", b"1"), made.answer("me", "a", b"1"))
    await asyncio.sleep(0)
    assert made.waiting == 1
    compute.gate.set()
    assert list(await both) == [b"a1", b"a1"]
    assert await made.answer("me", "a", b"1") == b"a1"
    assert compute.calls == 1
    assert await made.answer("me", "b", b"1") == b"b1"
    assert made.waiting == 0


async def test_errors_are_not_kept(executor: ThreadPoolExecutor, compute: Computing) -> None:
    compute.gate.set()
    made = Quick(executor, compute, deadline_s=PATIENCE_S)
    for _ in range(2):
        with pytest.raises(InputError):
            await made.answer("me", "a", b"bad")
    assert compute.calls == 2


async def test_a_deadline_and_the_answer_afterwards(
    executor: ThreadPoolExecutor, compute: Computing
) -> None:
    made = Quick(executor, compute, deadline_s=0)
    with pytest.raises(ProblemError) as caught:
        await made.answer("me", "a", b"1")
    assert caught.value.status == 503
    assert "Retry-After" in caught.value.headers
    compute.gate.set()
    while made.waiting:
        await asyncio.sleep(0)
    assert await made.answer("me", "a", b"1") == b"a1"
    assert compute.calls == 1


async def test_room_is_bounded(
    executor: ThreadPoolExecutor, compute: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "STORED_BYTES", 6)
    compute.gate.set()
    made = Quick(executor, compute, deadline_s=PATIENCE_S)
    for task in (b"1", b"2", b"3", b"4"):
        await made.answer("me", "a", task)
    await made.answer("me", "a", b"4")
    assert compute.calls == 4
    await made.answer("me", "a", b"1")
    assert compute.calls == 5


async def test_too_many_at_once_are_sent_away(
    executor: ThreadPoolExecutor, compute: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "MOST_WAITING", 2)
    made = Quick(executor, compute, deadline_s=PATIENCE_S)
    two = asyncio.gather(made.answer("me", "a", b"1"), made.answer("me", "a", b"2"))
    await asyncio.sleep(0)
    with pytest.raises(ProblemError) as caught:
        await made.answer("me", "a", b"3")
    assert caught.value.status == 503
    compute.gate.set()
    assert list(await two) == [b"a1", b"a2"]


async def test_one_caller_cannot_have_all_the_room(
    executor: ThreadPoolExecutor, compute: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "MOST_OF_A_CALLER", 2)
    made = Quick(executor, compute, deadline_s=PATIENCE_S)
    asked = [made.answer("me", "a", task) for task in (b"1", b"2")]
    waiting = asyncio.gather(*asked)
    await asyncio.sleep(0)
    with pytest.raises(ProblemError) as caught:
        await made.answer("me", "a", b"3")
    assert caught.value.status == 429
    assert "Retry-After" in caught.value.headers
    other = asyncio.ensure_future(made.answer("you", "a", b"3"))
    await asyncio.sleep(0)
    compute.gate.set()
    assert [*await waiting, await other] == [b"a1", b"a2", b"a3"]
    assert await made.answer("me", "a", b"4") == b"a4"


async def test_what_nobody_waits_for_any_more_is_not_computed(compute: Computing) -> None:
    with ThreadPoolExecutor(1) as alone:
        made = Quick(alone, compute, deadline_s=PATIENCE_S)
        first, second, third, fourth = (
            asyncio.ensure_future(made.answer(caller, "a", task))
            for caller, task in (("me", b"1"), ("me", b"2"), ("me", b"3"), ("you", b"3"))
        )
        await asyncio.sleep(0)
        assert made.waiting == 3
        for one in (first, second, third):
            one.cancel()
        await asyncio.wait((first, second, third))
        assert made.waiting == 2  # the one that has begun, and the one that another waits for
        compute.gate.set()
        assert await fourth == b"a3"
        assert await made.answer("me", "a", b"1") == b"a1"
        assert compute.calls == 2
        assert await made.answer("me", "a", b"2") == b"a2"
