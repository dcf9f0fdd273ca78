"""Quick answers: stored, shared, in turns, and refused where they cannot be in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest

from api.problems import ProblemError
from api.quick import MOST_OF_AN_OWNER, Quick
from domino_tune.service.executors import ChildDiedError
from simulator.errors import InputError


class ByHand:
    """A pool whose calls end when the test says so."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.calls: dict[str, Future[Any]] = {}

    def submit(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Future[Any]:
        call = self.calls[arguments[1].decode()] = Future[Any]()
        return call

    def end(self, name: str, value: bytes = b"an answer") -> None:
        self.calls[name].set_result(value)


def compute(kind: str, task: bytes) -> bytes:
    raise AssertionError


def play(test: Callable[[ByHand, Quick], Awaitable[None]], slots: int = 1) -> None:
    async def run() -> None:
        pool = ByHand(slots)
        await test(pool, Quick(pool, compute, 10.0))  # type: ignore[arg-type]

    asyncio.run(run())


def ask(quick: Quick, owner: str, name: str) -> asyncio.Task[bytes]:
    return asyncio.create_task(quick.answer(owner, "simulate", name.encode()))


async def turn() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_equal_questions_share_a_computation_and_its_answer() -> None:
    async def test(pool: ByHand, quick: Quick) -> None:
        both = [ask(quick, owner, "a") for owner in ("ann", "bob")]
        await turn()
        assert quick.waiting == 1
        pool.end("a")
        assert await asyncio.gather(*both) == [b"an answer"] * 2
        assert quick.waiting == 0
        pool.calls.clear()
        assert await ask(quick, "cid", "a") == b"an answer"
        assert not pool.calls

    play(test)


def test_owners_take_turns() -> None:
    async def test(pool: ByHand, quick: Quick) -> None:
        asked = [ask(quick, "ann", f"ann-{number}") for number in range(4)]
        await turn()
        asked.append(ask(quick, "bob", "bob-0"))
        await turn()
        for name in ("ann-0", "ann-1", "bob-0", "ann-2", "ann-3"):
            assert list(pool.calls)[-1] == name or name in pool.calls
            pool.end(name)
            await turn()
        assert list(pool.calls) == ["ann-0", "ann-1", "bob-0", "ann-2", "ann-3"]
        await asyncio.gather(*asked)

    play(test)


def test_one_owner_leaves_a_process_to_others() -> None:
    async def test(pool: ByHand, quick: Quick) -> None:
        asked = [ask(quick, "ann", f"ann-{number}") for number in range(3)]
        await turn()
        assert list(pool.calls) == ["ann-0"]
        asked.append(ask(quick, "bob", "bob-0"))
        await turn()
        assert list(pool.calls) == ["ann-0", "bob-0"]
        for name in ("bob-0", "ann-0", "ann-1", "ann-2"):
            pool.end(name)
            await turn()
        await asyncio.gather(*asked)

    play(test, slots=2)


def test_what_cannot_be_in_time_is_refused_at_once() -> None:
    async def test(pool: ByHand, quick: Quick) -> None:
        quick._usual_s = 4.0
        asked = [ask(quick, "ann", "a"), ask(quick, "bob", "b")]
        await turn()
        with pytest.raises(ProblemError, match="others asked before") as caught:
            await ask(quick, "cid", "c")
        assert caught.value.status == 503
        assert int(caught.value.headers["Retry-After"]) > 0
        pool.end("a")
        await turn()
        pool.end("b")
        await asyncio.gather(*asked)

    play(test)


def test_an_owner_waits_for_few() -> None:
    async def test(pool: ByHand, quick: Quick) -> None:
        asked = [ask(quick, "ann", str(number)) for number in range(MOST_OF_AN_OWNER)]
        await turn()
        with pytest.raises(ProblemError) as caught:
            await ask(quick, "ann", "one more")
        assert caught.value.status == 429
        for one in asked:
            one.cancel()
        await turn()
        assert quick.waiting == 1  # what runs goes on, what waited is dropped
        pool.end("0")
        await turn()
        assert quick.waiting == 0

    play(test)


def test_errors_are_for_all_who_asked_and_not_stored() -> None:
    async def test(pool: ByHand, quick: Quick) -> None:
        for error, seen in ((InputError("No."), InputError), (ChildDiedError("x"), ProblemError)):
            asked = ask(quick, "ann", "a")
            await turn()
            pool.calls["a"].set_exception(error)
            with pytest.raises(seen):
                await asked

    play(test)
