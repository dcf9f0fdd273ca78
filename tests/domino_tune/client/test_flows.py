"""Tries, pauses and waiting, step by step: flows need neither a server nor time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from domino_tune.base.errors import AccessError, ServiceError
from domino_tune.client import calls, flows
from domino_tune.client.answers import Answer
from domino_tune.client.events import Event
from domino_tune.client.flows import PATIENT_S, PAUSES_S, Listen, LostError, Send, Sleep
from domino_tune.client.jobs import Job, job_of
from domino_tune.requests import TuneRequest

LOST = LostError("gone.")
ASKED = TuneRequest(model="m", profile="p", tp=2, seq_length=8, micro_batch_size=2)
Reply = Answer | BaseException | Callable[[Any], Answer]


def answer(plain: Any, status: int = 200, **headers: str) -> Answer:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return Answer(status=status, headers=named, body=json.dumps(plain).encode())


def job(state: str, **more: Any) -> dict[str, Any]:
    return {"id": "job_1", "kind": "tune", "state": state, **more}


def play(flow: flows.Flow[Any], *replies: Reply) -> tuple[list[flows.Step], Any]:
    """Answer each Send and Listen in turn; the steps taken and what came out, error or value."""
    taken: list[flows.Step] = []
    waiting = iter(replies)
    try:
        step = next(flow)
        while True:
            taken.append(step)
            if isinstance(step, Sleep):
                step = flow.send(None)
                continue
            try:
                given = _given(next(waiting), step)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(given)
    except StopIteration as done:
        assert next(waiting, None) is None
        return taken, done.value
    except (ServiceError, AccessError, KeyboardInterrupt) as error:
        return taken, error


def _given(reply: Reply, step: flows.Step) -> Answer:
    if isinstance(reply, BaseException):
        raise reply
    return reply if isinstance(reply, Answer) else reply(step)


def pauses(steps: list[flows.Step]) -> list[float]:
    return [step.seconds for step in steps if isinstance(step, Sleep)]


def test_a_lost_connection_is_tried_again_with_the_same_key() -> None:
    steps, got = play(flows.asked(calls.submit_tune(ASKED)), LOST, LOST, answer(job("queued"), 202))
    assert isinstance(got, Job)
    sent: list[calls.Call[Any]] = [step.call for step in steps if isinstance(step, Send)]
    assert len(sent) == 3
    assert len({call.headers["Idempotency-Key"] for call in sent}) == 1
    assert pauses(steps) == list(PAUSES_S[:2])


def test_every_call_that_makes_something_has_a_key_of_its_own() -> None:
    made: list[calls.Call[Any]] = [
        calls.submit_tune(ASKED),
        calls.submit_tune(ASKED),
        calls.add_model("m", b"{}"),
    ]
    assert len({call.headers["Idempotency-Key"] for call in made}) == 3


def test_in_the_end_it_is_given_up() -> None:
    steps, got = play(flows.asked(calls.models()), *[LOST] * (len(PAUSES_S) + 1))
    assert isinstance(got, ServiceError)
    assert "gone." in str(got)
    assert pauses(steps) == list(PAUSES_S)


def test_what_may_have_happened_is_not_done_twice() -> None:
    steps, got = play(flows.asked(calls.put_profile("p", b"{}", '"tag"')), LOST)
    assert isinstance(got, ServiceError)
    assert pauses(steps) == []


def test_a_busy_server_is_left_alone_for_as_long_as_it_says() -> None:
    busy = answer({}, 429, retry_after="7")
    steps, got = play(flows.asked(calls.models()), busy, answer({}, 503), answer({"items": []}))
    assert got == {"items": []}
    assert pauses(steps) == [7, PAUSES_S[1]]


def test_a_refusal_is_not_tried_again() -> None:
    steps, got = play(flows.asked(calls.models()), answer({}, 401))
    assert isinstance(got, AccessError)
    assert len(steps) == 1


def telling(*told: dict[str, Any], status: int = 200) -> Callable[[Any], Answer]:
    """Events, until the listener has heard enough."""

    def listen(step: Any) -> Answer:
        assert isinstance(step, Listen)
        for one in told:
            if step.heard(Event(name=one["state"], data=one)):
                break
        return answer({}, status)

    return listen


def test_waiting_by_events() -> None:
    heard: list[str] = []
    queued = job_of(job("queued"))
    steps, got = play(
        flows.waited(queued, heard.append),
        telling(job("running", progress={"text": "3 plans"}), job("done"), job("running")),
        answer(job("done", result={"a": 1}, progress={"text": "4 plans"})),
    )
    assert (got.state, got.result()) == ("done", {"a": 1})
    assert heard == ["3 plans", "", "4 plans"]
    assert pauses(steps) == []


def test_waiting_without_events() -> None:
    steps, got = play(
        flows.waited(job_of(job("queued")), flows.silent),
        answer({}, 404), *[answer(job("running"))] * 9, answer(job("failed")),
    )  # fmt: skip
    assert got.state == "failed"
    assert sum(isinstance(step, Listen) for step in steps) == 1
    slept = pauses(steps)
    assert slept == sorted(slept)
    assert max(slept) <= 5


def test_events_that_break_off_are_listened_to_again() -> None:
    steps, got = play(
        flows.waited(job_of(job("queued")), flows.silent),
        LOST, answer(job("running")), telling(job("running")), LOST, answer(job("running")),
        telling(job("odd")), answer(job("done")),
    )  # fmt: skip
    assert got.state == "done"
    assert sum(isinstance(step, Listen) for step in steps) == 3


def test_a_running_job_outlives_a_restart() -> None:
    steps, got = play(
        flows.waited(job_of(job("running")), flows.silent),
        LOST, *[LOST] * len(PATIENT_S), answer(job("done")),
    )  # fmt: skip
    assert got.state == "done"
    assert sum(pauses(steps)) > 30


@pytest.mark.parametrize("lost", [False, True])
def test_an_interrupt_cancels_the_job(lost: bool) -> None:
    steps, got = play(
        flows.tuned(ASKED, flows.silent),
        answer(job("queued"), 202), KeyboardInterrupt(), LOST if lost else answer(job("cancelled")),
    )  # fmt: skip
    assert isinstance(got, KeyboardInterrupt)
    last = steps[-1]
    assert isinstance(last, Send)
    assert (last.call.method, last.call.path) == ("DELETE", "/v1/tunes/job_1")


def test_an_interrupt_while_it_is_handed_in_cancels_the_job() -> None:
    steps, got = play(
        flows.tuned(ASKED, flows.silent),
        KeyboardInterrupt(), answer(job("queued"), 202), answer(job("cancelled")),
    )  # fmt: skip
    assert isinstance(got, KeyboardInterrupt)
    sent = [step.call for step in steps if isinstance(step, Send)]
    assert [call.method for call in sent] == ["POST", "POST", "DELETE"]
    assert sent[0] == sent[1]


@pytest.mark.parametrize("then", [LOST, answer({}, 422)])
def test_an_interrupt_while_nothing_is_handed_in(then: Reply) -> None:
    steps, got = play(flows.tuned(ASKED, flows.silent), KeyboardInterrupt(), then)
    assert isinstance(got, KeyboardInterrupt)
    assert len(steps) == 2


def test_a_result_of_another_version_is_the_servers_fault() -> None:
    _, got = play(flows.tuned(ASKED, flows.silent), answer(job("done", result={"new": 1})))
    assert isinstance(got, ServiceError)
    assert "another version" in str(got)
