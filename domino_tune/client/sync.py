"""Client: the service's verbs, each returning when it is done."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, TypeVar

import httpx

from domino_tune import requests
from domino_tune.client import calls, flows, transport
from domino_tune.client.answers import Answer
from domino_tune.client.events import EventReader
from domino_tune.client.jobs import Job, JobPage, TuneAnswer
from domino_tune.client.tokens import Token
from domino_tune.results import Simulated

T = TypeVar("T")
Json = dict[str, Any]


class Client:
    """One server. ``token``: default what $DOMINO_TUNE_TOKEN holds. Use it as a context manager,
    or ``close`` it.

    Raises InputError for a bad URL. Every method raises the errors that the verb raises locally,
    NotFoundError, AccessError, and ServiceError where no answer comes, after several tries.
    """

    def __init__(self, server: str, *, token: str | Token | None = None) -> None:
        self._http = httpx.Client(**transport.options(server, token))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """End its connections."""
        self._http.close()

    def tune(self, request: requests.TuneRequest, told: flows.Told = flows.silent) -> TuneAnswer:
        """Ask for the best plan and wait; ``told`` hears the progress. Ctrl-C cancels the job."""
        return self._run(flows.tuned(request, told))

    def submit_tune(self, request: requests.TuneRequest) -> Job:
        """Ask for the best plan and do not wait."""
        return self._run(flows.asked(calls.submit_tune(request)))

    def sweep(self, request: requests.WhatIfRequest, told: flows.Told = flows.silent) -> Job:
        """Ask for a sweep and wait; Ctrl-C leaves it running."""
        return self._run(flows.swept(request, told))

    def submit_sweep(self, request: requests.WhatIfRequest) -> Job:
        """Ask for a sweep and do not wait."""
        return self._run(flows.asked(calls.submit_sweep(request)))

    def wait(self, job: Job, told: flows.Told = flows.silent) -> Job:
        """The job when it has ended, however."""
        return self._run(flows.waited(job, told))

    def get_tune(self, name: str) -> Job:
        """A tune as it is now."""
        return self._run(flows.asked(calls.get_job("tune", name)))

    def get_sweep(self, name: str) -> Job:
        """A sweep as it is now."""
        return self._run(flows.asked(calls.get_job("sweep", name)))

    def cancel(self, job: Job) -> Job:
        """End a job."""
        return self._run(flows.asked(calls.cancel(job.kind, job.id)))

    def tunes(self, cursor: str | None = None, limit: int | None = None) -> JobPage:
        """A page of one's tunes, newest first."""
        return self._run(flows.asked(calls.listing("tune", cursor, limit)))

    def sweeps(self, cursor: str | None = None, limit: int | None = None) -> JobPage:
        """A page of one's sweeps, newest first."""
        return self._run(flows.asked(calls.listing("sweep", cursor, limit)))

    def points(self, name: str, cursor: str | None = None, limit: int | None = None) -> Json:
        """A page of a sweep's points."""
        return self._run(flows.asked(calls.points(name, cursor, limit)))

    def plan(self, name: str) -> bytes:
        """A tune's plan file."""
        return self._run(flows.asked(calls.plan(name)))

    def export(self, name: str, to: str) -> Json:
        """A tune's plan for a framework."""
        return self._run(flows.asked(calls.export(name, to)))

    def report(self, name: str) -> bytes:
        """A tune's page."""
        return self._run(flows.asked(calls.report(name)))

    def trace(self, name: str) -> bytes:
        """A tune's Chrome trace."""
        return self._run(flows.asked(calls.trace(name)))

    def validations(self, name: str) -> Json:
        """What was measured of a tune's plan."""
        return self._run(flows.asked(calls.validations(name)))

    def send_validation(self, name: str, body: bytes, key: str) -> Json:
        """Send measured results, once for each ``key``."""
        return self._run(flows.asked(calls.send_validation(name, body, key)))

    def simulate(self, request: requests.SimulateRequest) -> Simulated:
        """Predict one plan."""
        return self._run(flows.asked(calls.simulate(request)))

    def whatif(self, request: requests.WhatIfRequest) -> Json:
        """Predict a plan where one thing is changed, as `whatif --json` prints it."""
        return self._run(flows.asked(calls.whatif(request)))

    def profiles(self) -> Json:
        """The profiles that the server knows."""
        return self._run(flows.asked(calls.profiles()))

    def get_profile(self, name: str) -> tuple[bytes, str]:
        """A profile's file, and its ETag."""
        return self._run(flows.asked(calls.get_profile(name)))

    def put_profile(self, name: str, body: bytes, if_match: str | None = None) -> Json:
        """Keep a profile: a new one, or in place of the one with ETag ``if_match``.

        Raises PreconditionError where another is there.
        """
        return self._run(flows.asked(calls.put_profile(name, body, if_match)))

    def models(self) -> Json:
        """The models that the server knows."""
        return self._run(flows.asked(calls.models()))

    def add_model(self, name: str, config: bytes) -> Json:
        """Keep the model of a Hugging Face config.json."""
        return self._run(flows.asked(calls.add_model(name, config)))

    def _run(self, flow: flows.Flow[T]) -> T:
        """Take a flow's steps until it has its answer."""
        try:
            step = next(flow)
            while True:
                try:
                    given = self._take(step)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(given)
        except StopIteration as done:
            value: T = done.value
            return value

    def _take(self, step: flows.Step) -> Answer | None:
        """Take one step."""
        if isinstance(step, flows.Sleep):
            time.sleep(step.seconds)
            return None
        try:
            if isinstance(step, flows.Listen):
                return self._listen(step)
            response = self._http.request(**transport.prepared(step.call))
            return transport.answer_of(response, response.content)
        except httpx.RequestError as error:
            raise transport.lost(self._http.base_url, error) from None

    def _listen(self, step: flows.Listen) -> Answer:
        asked = transport.prepared(step.call)
        with self._http.stream(**asked, timeout=transport.QUIET) as response:
            reader = EventReader()
            if response.status_code == 200:
                for line in response.iter_lines():
                    event = reader.line(line)
                    if event and step.heard(event):
                        break
            return transport.answer_of(response, b"")
