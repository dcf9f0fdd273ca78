"""Settings: what can be served, and how ``serve`` hands it over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any
from unittest.mock import patch

import pytest

from api.parts import (
    MOST_BUCKETS,
    MOST_OF_AN_OWNER,
    Buckets,
    Quick,
    Settings,
    from_environment,
)
from api.problems import ProblemError
from domino_tune.requests.service import is_loopback
from domino_tune.service.executors import ChildDiedError, OverLimitError
from domino_tune.service.serving import SETTINGS
from simulator.errors import InputError


def test_they_come_back_from_the_environment() -> None:
    settings = Settings(database_url="sqlite:///a.db", workers=3, quick_s=5)
    assert from_environment({SETTINGS: settings.to_json()}) == settings


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"database_url": 1}', '{"database_url": "x", "worker": 1}',
     '{"database_url": "x", "workers": true}', '{"database_url": "x", "notice_s": NaN}'],
)  # fmt: skip
def test_bad_ones_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        from_environment({SETTINGS: text})


def test_none_at_all() -> None:
    with pytest.raises(InputError, match="serve"):
        from_environment({})


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_other_addresses_need_tokens(address: str) -> None:
    with pytest.raises(InputError, match="tokens"):
        Settings(database_url="sqlite:///a.db", bind=address)
    assert Settings(database_url="sqlite:///a.db", bind=address, tokens_required=True).hosts == ()


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost")))
    assert "127.0.0.1" in Settings(database_url="x").hosts


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Settings(database_url="postgresql://u:secret@h/d"))


# Buckets of requests ------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_then_the_rate() -> None:
    clock = Clock()
    buckets = Buckets(rate_per_s=2, burst=3, clock=clock)
    for _ in range(3):
        buckets.take("a")
    with pytest.raises(ProblemError) as caught:
        buckets.take("a")
    assert caught.value.status == 429
    assert caught.value.headers == {"Retry-After": "1"}
    buckets.take("b")
    clock.now += 0.5
    buckets.take("a")
    with pytest.raises(ProblemError):
        buckets.take("a")


def test_retry_after_is_enough() -> None:
    clock = Clock()
    buckets = Buckets(rate_per_s=0.1, burst=1, clock=clock)
    buckets.take("a")
    with pytest.raises(ProblemError) as caught:
        buckets.take("a")
    clock.now += int(caught.value.headers["Retry-After"])
    buckets.take("a")


def test_a_rest_fills_the_bucket_and_no_more() -> None:
    clock = Clock()
    buckets = Buckets(rate_per_s=1, burst=2, clock=clock)
    clock.now += 1e6
    buckets.take("a")
    buckets.take("a")
    with pytest.raises(ProblemError):
        buckets.take("a")


def test_few_callers_are_remembered() -> None:
    buckets = Buckets(rate_per_s=1, burst=1)
    for number in range(MOST_BUCKETS + 10):
        buckets.take(str(number))
    assert len(buckets._levels) == MOST_BUCKETS


# Quick answers ------------------------------------------------------------------------------------
# Stored, shared, in turns, and refused where they cannot be in time.


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


def test_another_owner_is_not_refused_for_the_many_of_one() -> None:
    async def test(pool: ByHand, quick: Quick) -> None:
        asked = [ask(quick, "ann", f"ann-{number}") for number in range(2)]
        await turn()
        quick._usual_s = 8.0
        with pytest.raises(ProblemError, match="others asked before"):
            await ask(quick, "ann", "ann-2")
        asked.append(ask(quick, "bob", "bob"))
        await turn()
        assert list(pool.calls) == ["ann-0", "bob"]
        for name in ("ann-0", "bob", "ann-1"):
            pool.end(name)
            await turn()
        await asyncio.gather(*asked)

    play(test, slots=2)


def test_what_turns_out_to_be_too_late_is_refused_before_its_time() -> None:
    async def test(pool: ByHand, quick: Quick) -> None:
        asked = [ask(quick, owner, owner) for owner in ("ann", "bob", "cid")]
        await turn()
        quick._usual_s = 8.0
        pool.end("ann")
        with pytest.raises(ProblemError, match="others asked before") as caught:
            await asked[2]
        assert caught.value.status == 503
        assert list(pool.calls) == ["ann", "bob"]
        pool.end("bob")
        assert await asyncio.gather(*asked[:2]) == [b"an answer"] * 2
        quick._usual_s = 30.0  # nobody else is there: it may be quick
        alone = ask(quick, "ann", "alone")
        await turn()
        pool.end("alone")
        await alone

    play(test)


def test_who_began_late_and_did_not_end_is_told_to_try_again() -> None:
    async def test(pool: ByHand, quick: Quick) -> None:
        clock = Clock()
        with patch.object(asyncio.get_running_loop(), "time", clock):
            asked = [ask(quick, owner, owner) for owner in ("ann", "bob", "cid")]
            await turn()
            pool.calls["ann"].set_exception(OverLimitError("It takes long."))
            await turn()
            clock.now += 5.0
            pool.end("bob")
            await turn()
            clock.now += 5.0
            pool.calls["cid"].set_exception(OverLimitError("It takes long."))
            with pytest.raises(OverLimitError):
                await asked[0]
            await asked[1]
            with pytest.raises(ProblemError, match="try again"):
                await asked[2]

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
