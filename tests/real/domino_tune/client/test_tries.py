"""Tries, pauses, waiting and interrupts of both clients, against a server that has a script."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest

from domino_tune.base.errors import AccessError, ServiceError
from domino_tune.client import AsyncClient, Client, asynchronous, sync
from domino_tune.client.jobs import Job, job_of
from domino_tune.client.transport import PATIENT_PAUSES_S, PAUSES_S
from domino_tune.requests import TuneRequest, WhatIfRequest
from tests.real.domino_tune.client.scripted_server import (
    Asked,
    Reply,
    ScriptedServer,
    answer,
    events,
    interrupt,
    lost,
)  # fmt: skip

LAYOUTS: Final = TuneRequest(model="m", profile="p", seq_length=8, gpus=4, global_batch_size=8)
ASKED: Final = TuneRequest(model="m", profile="p", tp=2, seq_length=8, micro_batch_size=2)
EVENTS: Final = Asked("GET", "/v1/tunes/job_1/events")


class Play:
    """Calls of one of the clients, with time that passes at once."""

    def __init__(self, client: type[Client | AsyncClient]) -> None:
        self.client = client
        self.asked: list[Asked] = []
        self.pauses_s: list[float] = []

    def __call__(self, verb: str, *args: Any, replies: tuple[Reply, ...]) -> Any:
        """Return or raise what the client's method does. All of ``replies`` must be used."""
        script = ScriptedServer(*replies)
        self.asked = script.asked
        with script.running():
            if self.client is Client:
                with Client(script.url) as client:
                    return getattr(client, verb)(*args)
            return asyncio.run(self._call(script.url, verb, *args))

    async def _call(self, url: str, verb: str, *args: Any) -> Any:
        async with AsyncClient(url) as client:
            return await getattr(client, verb)(*args)

    async def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)


@pytest.fixture(params=[Client, AsyncClient])
def play(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    made = Play(request.param)
    monkeypatch.delenv("DOMINO_TUNE_TOKEN", raising=False)
    monkeypatch.setattr(sync, "sleep", made.pauses_s.append)
    monkeypatch.setattr(asynchronous, "sleep", made.sleep)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield made
    signal.signal(signal.SIGINT, before)


def job(state: str, **more: Any) -> dict[str, Any]:
    return {"id": "job_1", "kind": "tune", "state": state} | more


QUEUED: Final = job_of(job("queued"))


def test_a_lost_connection_is_tried_again_with_the_same_key(play: Play) -> None:
    got = play("submit_tune", ASKED, replies=(lost, lost, answer(job("queued"), 202)))
    assert isinstance(got, Job)
    first, *others = play.asked
    assert (first.method, first.path, len(others)) == ("POST", "/v1/tunes", 2)
    assert first.key
    assert others == [first, first]
    assert play.pauses_s == list(PAUSES_S[:2])


def test_every_call_that_makes_something_has_a_key_of_its_own(play: Play) -> None:
    keys = set()
    for verb, *args in (("submit_tune", ASKED), ("submit_tune", ASKED), ("add_model", "m", b"{}")):
        play(str(verb), *args, replies=(answer(job("queued"), 202),))
        keys.add(play.asked[0].key)
    assert len(keys - {None}) == 3


def test_the_last_try_raises(play: Play) -> None:
    with pytest.raises(ServiceError, match=r"cannot be reached: .*disconnected.*\. Is it running"):
        play("models", replies=(lost,) * (len(PAUSES_S) + 1))
    assert play.pauses_s == list(PAUSES_S)


def test_a_profile_is_put_only_once(play: Play) -> None:
    with pytest.raises(ServiceError):
        play("put_profile", "p", b"{}", '"tag"', replies=(lost,))
    assert play.pauses_s == []


def test_a_busy_server_is_left_alone_for_as_long_as_it_says(play: Play) -> None:
    busy = answer({}, 429, Retry_After="7")
    got = play("models", replies=(busy, answer({}, 503), answer({"items": []})))
    assert got == {"items": []}
    assert play.pauses_s == [7, PAUSES_S[1]]


def test_a_refusal_is_not_tried_again(play: Play) -> None:
    with pytest.raises(AccessError):
        play("models", replies=(answer({}, 401),))
    assert play.pauses_s == []


def test_waiting_by_events(play: Play) -> None:
    heard: list[str] = []
    got = play(
        "wait", QUEUED, heard.append,
        replies=(
            events(job("running", progress={"text": "3 plans"}), job("done"), job("running")),
            answer(job("done", result={"a": 1}, progress={"text": "4 plans"})),
        ),
    )  # fmt: skip
    assert (got.state, got.result()) == ("done", {"a": 1})
    assert heard == ["3 plans", "done"]
    assert play.pauses_s == []


def test_waiting_without_events(play: Play) -> None:
    running = [answer(job("running"))] * 9
    got = play("wait", QUEUED, replies=(answer({}, 404), *running, answer(job("failed"))))
    assert got.state == "failed"
    assert play.asked.count(EVENTS) == 1
    assert len(play.pauses_s) == 9
    assert play.pauses_s == sorted(play.pauses_s)
    assert max(play.pauses_s) <= 5


def test_events_that_break_off_are_listened_to_again(play: Play) -> None:
    got = play(
        "wait", QUEUED,
        replies=(
            lost, answer(job("running")),
            events(job("running")), lost, answer(job("running")),
            events(job("running"), broken=True), answer(job("running")),
            events(job("odd")), answer(job("done")),
        ),
    )  # fmt: skip
    assert got.state == "done"
    assert play.asked.count(EVENTS) == 4


def test_a_running_job_outlives_a_restart(play: Play) -> None:
    gone = [lost] * len(PATIENT_PAUSES_S)
    got = play("wait", job_of(job("running")), replies=(lost, *gone, answer(job("done"))))
    assert got.state == "done"
    assert sum(play.pauses_s) > 30


@pytest.mark.parametrize("then", [lost, answer(job("cancelled"))])
def test_an_interrupt_cancels_the_job(play: Play, then: Reply) -> None:
    with pytest.raises(KeyboardInterrupt):
        play("tune", ASKED, replies=(answer(job("queued"), 202), interrupt, then))
    assert play.asked[1:] == [EVENTS, Asked("POST", "/v1/tunes/job_1/cancel")]


def test_an_interrupt_cancels_a_search_of_layouts(play: Play) -> None:
    queued = answer(job("queued", kind="layout"), 202)
    with pytest.raises(KeyboardInterrupt):
        play("layouts", LAYOUTS, replies=(queued, interrupt, answer(job("cancelled"))))
    assert [(one.method, one.path) for one in play.asked] == [
        ("POST", "/v1/layouts"), ("GET", "/v1/layouts/job_1/events"),
        ("POST", "/v1/layouts/job_1/cancel"),
    ]  # fmt: skip


def test_an_interrupt_during_submission_cancels_the_job(play: Play) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(
            "tune", ASKED,
            replies=(interrupt, answer(job("queued"), 202), answer(job("cancelled"))),
        )  # fmt: skip
    first, again, last = play.asked
    assert first.method == "POST"
    assert first == again
    assert last == Asked("POST", "/v1/tunes/job_1/cancel")


@pytest.mark.parametrize("then", [lost, answer({}, 422)])
def test_an_interrupt_of_a_submission_that_failed(play: Play, then: Reply) -> None:
    with pytest.raises(KeyboardInterrupt):
        play("tune", ASKED, replies=(interrupt, then))
    assert [one.method for one in play.asked] == ["POST", "POST"]


def test_an_interrupt_leaves_a_sweep_running(play: Play) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(
            "sweep", WhatIfRequest(sweep="tp=2,4"),
            replies=(answer(job("queued", kind="sweep"), 202), interrupt),
        )  # fmt: skip
    assert [one.path for one in play.asked] == ["/v1/sweeps", "/v1/sweeps/job_1/events"]


def test_a_result_of_another_version_is_the_servers_fault(play: Play) -> None:
    for verb, asked in (("tune", ASKED), ("layouts", LAYOUTS)):
        with pytest.raises(ServiceError, match="another version"):
            play(verb, asked, replies=(answer(job("done", result={"new": 1})),))
