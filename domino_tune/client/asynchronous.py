"""AsyncClient: Client for asyncio, method for method."""

from __future__ import annotations

import asyncio
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


class AsyncClient:
    """One server. ``token``: default what $DOMINO_TUNE_TOKEN holds. Use it as a context manager,
    or ``close`` it.

    Raises InputError for a bad URL. Every method raises the errors that the verb raises locally,
    NotFoundError, AccessError, and ServiceError where no answer comes, after several tries.
    """

    def __init__(self, server: str, *, token: str | Token | None = None) -> None:
        self._http = httpx.AsyncClient(**transport.options(server, token))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self.close()

    async def close(self) -> None:
        """End its connections."""
        await self._http.aclose()

    async def tune(
        self, request: requests.TuneRequest, told: flows.Told = flows.silent
    ) -> TuneAnswer:
        """Ask for the best plan and wait; ``told`` hears the progress. Ctrl-C cancels the job."""
        return await self._run(flows.tuned(request, told))

    async def submit_tune(self, request: requests.TuneRequest) -> Job:
        """Ask for the best plan and do not wait."""
        return await self._run(flows.asked(calls.submit_tune(request)))

    async def sweep(self, request: requests.WhatIfRequest, told: flows.Told = flows.silent) -> Job:
        """Ask for a sweep and wait; Ctrl-C leaves it running."""
        return await self._run(flows.swept(request, told))

    async def submit_sweep(self, request: requests.WhatIfRequest) -> Job:
        """Ask for a sweep and do not wait."""
        return await self._run(flows.asked(calls.submit_sweep(request)))

    async def wait(self, job: Job, told: flows.Told = flows.silent) -> Job:
        """The job when it has ended, however."""
        return await self._run(flows.waited(job, told))

    async def get_tune(self, name: str) -> Job:
        """A tune as it is now."""
        return await self._run(flows.asked(calls.get_job("tune", name)))

    async def get_sweep(self, name: str) -> Job:
        """A sweep as it is now."""
        return await self._run(flows.asked(calls.get_job("sweep", name)))

    async def cancel(self, job: Job) -> Job:
        """End a job."""
        return await self._run(flows.asked(calls.cancel(job.kind, job.id)))

    async def tunes(self, cursor: str | None = None, limit: int | None = None) -> JobPage:
        """A page of one's tunes, newest first."""
        return await self._run(flows.asked(calls.listing("tune", cursor, limit)))

    async def sweeps(self, cursor: str | None = None, limit: int | None = None) -> JobPage:
        """A page of one's sweeps, newest first."""
        return await self._run(flows.asked(calls.listing("sweep", cursor, limit)))

    async def points(self, name: str, cursor: str | None = None, limit: int | None = None) -> Json:
        """A page of a sweep's points."""
        return await self._run(flows.asked(calls.points(name, cursor, limit)))

    async def plan(self, name: str) -> bytes:
        """A tune's plan file."""
        return await self._run(flows.asked(calls.plan(name)))

    async def export(self, name: str, to: str) -> Json:
        """A tune's plan for a framework."""
        return await self._run(flows.asked(calls.export(name, to)))

    async def report(self, name: str) -> bytes:
        """A tune's page."""
        return await self._run(flows.asked(calls.report(name)))

    async def trace(self, name: str) -> bytes:
        """A tune's Chrome trace."""
        return await self._run(flows.asked(calls.trace(name)))

    async def validations(self, name: str) -> Json:
        """What was measured of a tune's plan."""
        return await self._run(flows.asked(calls.validations(name)))

    async def send_validation(self, name: str, body: bytes, key: str) -> Json:
        """Send measured results, once for each ``key``."""
        return await self._run(flows.asked(calls.send_validation(name, body, key)))

    async def simulate(self, request: requests.SimulateRequest) -> Simulated:
        """Predict one plan."""
        return await self._run(flows.asked(calls.simulate(request)))

    async def whatif(self, request: requests.WhatIfRequest) -> Json:
        """Predict a plan where one thing is changed, as `whatif --json` prints it."""
        return await self._run(flows.asked(calls.whatif(request)))

    async def profiles(self) -> Json:
        """The profiles that the server knows."""
        return await self._run(flows.asked(calls.profiles()))

    async def get_profile(self, name: str) -> tuple[bytes, str]:
        """A profile's file, and its ETag."""
        return await self._run(flows.asked(calls.get_profile(name)))

    async def put_profile(self, name: str, body: bytes, if_match: str | None = None) -> Json:
        """Keep a profile: a new one, or in place of the one with ETag ``if_match``.

        Raises PreconditionError where another is there.
        """
        return await self._run(flows.asked(calls.put_profile(name, body, if_match)))

    async def models(self) -> Json:
        """The models that the server knows."""
        return await self._run(flows.asked(calls.models()))

    async def add_model(self, name: str, config: bytes) -> Json:
        """Keep the model of a Hugging Face config.json."""
        return await self._run(flows.asked(calls.add_model(name, config)))

    async def _run(self, flow: flows.Flow[T]) -> T:
        """Take a flow's steps until it has its answer."""
        try:
            step = next(flow)
            while True:
                try:
                    given = await self._take(step)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(given)
        except StopIteration as done:
            value: T = done.value
            return value

    async def _take(self, step: flows.Step) -> Answer | None:
        """Take one step."""
        if isinstance(step, flows.Sleep):
            await asyncio.sleep(step.seconds)
            return None
        try:
            if isinstance(step, flows.Listen):
                return await self._listen(step)
            response = await self._http.request(**transport.prepared(step.call))
            return transport.answer_of(response, response.content)
        except httpx.RequestError as error:
            raise transport.lost(self._http.base_url, error) from None

    async def _listen(self, step: flows.Listen) -> Answer:
        asked = transport.prepared(step.call)
        async with self._http.stream(**asked, timeout=transport.QUIET) as response:
            reader = EventReader()
            if response.status_code == 200:
                async for line in response.aiter_lines():
                    event = reader.line(line)
                    if event and step.heard(event):
                        break
            return transport.answer_of(response, b"")
