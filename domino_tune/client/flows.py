"""What the clients do, without input or output: generators that ask for steps.

The sync and the async client only differ in how they take a step; tries, pauses and waiting for
jobs are said once, here.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from domino_tune.base.errors import ServiceError
from domino_tune.client import calls
from domino_tune.client.answers import AGAIN, Answer
from domino_tune.client.calls import Call
from domino_tune.client.events import Event
from domino_tune.client.jobs import ENDED, Job, TuneAnswer, job_of, tune_answer
from domino_tune.requests import TuneRequest, WhatIfRequest
from simulator.errors import DominoTuneError

T = TypeVar("T")
Told: TypeAlias = Callable[[str], None]
PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0)
"""Before each new try of a call that got no answer."""
PATIENT_S: Final = (*PAUSES_S, 4.0, 8.0, 8.0, 8.0, 8.0)
"""The same once a job runs: a server that restarts is back by then."""
BROKEN_OFF: Final = (KeyboardInterrupt, CancelledError)
POLL_S: Final = (0.2, 5.0)
"""First and longest pause between two looks at a job that sends no events; each is half longer."""


def silent(text: str) -> None:
    """Progress that nobody watches."""


class LostError(Exception):
    """The connection broke, or none came about: it is not known whether the call was heard."""


@dataclass(frozen=True, kw_only=True)
class Send:
    """Make a call; gives its Answer, raises LostError."""

    call: Call[Any]


@dataclass(frozen=True, kw_only=True)
class Sleep:
    """Let time pass."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Listen:
    """Read events until ``heard`` returns True or they end; gives the Answer's head, raises
    LostError."""

    call: Call[None]
    heard: Callable[[Event], bool]


Step: TypeAlias = Send | Sleep | Listen
Flow: TypeAlias = Generator[Step, Any, T]


def asked(call: Call[T], pauses_s: Sequence[float] = PAUSES_S) -> Flow[T]:
    """Make a call, again where the connection breaks or the server is busy.

    Raises the error that the answer stands for; ServiceError where none comes.
    """
    pauses = iter(pauses_s if call.again else ())
    while True:
        try:
            answer: Answer = yield Send(call=call)
        except LostError as error:
            pause = next(pauses, None)
            if pause is None:
                raise ServiceError(f"{error} Is it running, and is the URL right?") from None
        else:
            pause = next(pauses, None) if answer.status in AGAIN else None
            if pause is None:
                return call.read(answer)
            pause = max(pause, answer.retry_after_s or 0)
        yield Sleep(seconds=pause)


def waited(job: Job, told: Told) -> Flow[Job]:
    """The job when it has ended: by its events, and by asking where there are none.

    ``told`` hears what it is at.
    """
    listening, (pause, longest) = True, POLL_S
    while not job.ended:
        if listening:
            listening = yield from _listened(job, told)
        job = yield from asked(calls.get_job(job.kind, job.id), PATIENT_S)
        told(job.text)
        if not job.ended:
            yield Sleep(seconds=pause)
            pause = min(1.5 * pause, longest)
    return job


def _listened(job: Job, told: Told) -> Flow[bool]:
    """Hear events until the job ends or they do; False where the server gives none."""

    def heard(event: Event) -> bool:
        if not isinstance(event.data, dict) or event.data.get("state") is None:
            return False
        now = job_of(event.data)
        told(now.text)
        return now.state in ENDED

    try:
        answer: Answer = yield Listen(call=calls.events(job), heard=heard)
    except (LostError, ServiceError):
        return True
    return answer.status == 200


def tuned(request: TuneRequest, told: Told) -> Flow[TuneAnswer]:
    """Ask for a tune and wait for it; where that is broken off, the job is cancelled."""
    began = time.perf_counter()
    call, job = calls.submit_tune(request), None
    try:
        job = yield from asked(call)
        job = yield from waited(job, told)
    except BROKEN_OFF:
        yield from _called_off(call, job)
        raise
    return tune_answer(job, seconds=time.perf_counter() - began)


def _called_off(call: Call[Job], job: Job | None) -> Flow[None]:
    """Cancel what ``call`` made. Where no answer came it may have been heard all the same: sent
    once more, with the same key, it tells the job."""
    with suppress(LostError, DominoTuneError):
        if job is None:
            job = call.read((yield Send(call=call)))
        yield Send(call=calls.cancel(job.kind, job.id))


def swept(request: WhatIfRequest, told: Told) -> Flow[Job]:
    """Ask for a sweep and wait for it."""
    job = yield from asked(calls.submit_sweep(request))
    return (yield from waited(job, told))
