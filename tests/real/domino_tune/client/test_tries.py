"""Tries, pauses, waiting and interrupts of the client, against a server that has a script."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest

from domino_tune.base.errors import AccessError, ServiceError
from domino_tune.client import Client
from domino_tune.client import client as module
from domino_tune.client.jobs import Job, job_of
from domino_tune.client.transport import PATIENT_PAUSES_S, PAUSES_S
from domino_tune.requests import LayoutRequest, TuneRequest
from tests.real.domino_tune.client.scripted_server import (
    Asked,
    Reply,
    ScriptedServer,
    answer,
    events,
    interrupt,
    lost,
)  # fmt: skip

LAYOUTS: Final = LayoutRequest(model="m", profile="p", seq_length=8, gpus=4, global_batch_size=8)
ASKED: Final = TuneRequest(model="m", profile="p", tp=2, seq_length=8, micro_batch_size=2)
EVENTS: Final = Asked("GET", "/v1/jobs/job_1/events")


class Play:
    """Calls of the client, with time that passes at once."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.pauses_s: list[float] = []

    def __call__(self, verb: str, *args: Any, replies: tuple[Reply, ...]) -> Any:
        """Return or raise what the client's method does. All of ``replies`` must be used."""
        script = ScriptedServer(*replies)
        self.asked = script.asked
        with script.running(), Client(script.url) as client:
            return getattr(client, verb)(*args)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    made = Play()
    monkeypatch.delenv("DOMINO_TUNE_TOKEN", raising=False)
    monkeypatch.setattr(module, "sleep", made.pauses_s.append)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield made
    signal.signal(signal.SIGINT, before)


def job(state: str, **more: Any) -> dict[str, Any]:
    return {"id": "job_1", "kind": "tune", "state": state} | more


QUEUED: Final = job_of(job("queued"))


def test_a_lost_connection_is_tried_again_with_the_same_key(play: Play) -> None:
    got = play("submit", "tune", ASKED, replies=(lost, lost, answer(job("queued"), 202)))
    assert isinstance(got, Job)
    first, *others = play.asked
    assert (first.method, first.path, len(others)) == ("POST", "/v1/jobs", 2)
    assert first.key
    assert others == [first, first]
    assert play.pauses_s == list(PAUSES_S[:2])


def test_every_call_that_makes_something_has_a_key_of_its_own(play: Play) -> None:
    keys = set()
    for verb, *args in (
        ("submit", "tune", ASKED),
        ("submit", "tune", ASKED),
        ("add_model", "m", b"{}"),
    ):
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
    waits = [answer({}, 404), answer(job("running"))] * 9
    got = play("wait", QUEUED, replies=(*waits, answer({}, 404), answer(job("failed"))))
    assert got.state == "failed"
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


@pytest.mark.parametrize("then", [lost, answer({}, 204)])
def test_an_interrupt_deletes_the_job(play: Play, then: Reply) -> None:
    with pytest.raises(KeyboardInterrupt):
        play("result", "tune", ASKED, replies=(answer(job("queued"), 202), interrupt, then))
    assert play.asked[1:] == [EVENTS, Asked("DELETE", "/v1/jobs/job_1")]


def test_an_interrupt_during_submission_deletes_the_job(play: Play) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(
            "result", "tune", ASKED,
            replies=(interrupt, answer(job("queued"), 202), answer({}, 204)),
        )  # fmt: skip
    first, again, last = play.asked
    assert first.method == "POST"
    assert first == again
    assert last == Asked("DELETE", "/v1/jobs/job_1")


@pytest.mark.parametrize("then", [lost, answer({}, 422)])
def test_an_interrupt_of_a_submission_that_failed(play: Play, then: Reply) -> None:
    with pytest.raises(KeyboardInterrupt):
        play("result", "tune", ASKED, replies=(interrupt, then))
    assert [one.method for one in play.asked] == ["POST", "POST"]


def test_a_result_of_another_version_is_the_servers_fault(play: Play) -> None:
    for kind, asked in (("tune", ASKED), ("layout", LAYOUTS)):
        done = job("done", kind=kind, result={"new": 1})
        got = play("result", kind, asked, replies=(answer(done),))
        with pytest.raises(ServiceError, match="another version"):
            got.answer()
