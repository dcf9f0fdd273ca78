"""Liveness, readiness, metrics, and the description of the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, get_args

import anyio
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.problems import ProblemError
from api.wire import Routes, in_thread, parts_of
from domino_tune.base.errors import StorageError, UnavailableError
from domino_tune.requests.service import JobState

if TYPE_CHECKING:
    from api.parts import Parts


# Metrics for Prometheus ---------------------------------------------------------------------------
# Requests, jobs, the process. Labels come from bounded sets only.

MEDIA_TYPE: Final = CONTENT_TYPE_LATEST
BUCKETS_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one application, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._requests = Counter(
            "http_requests", "Requests by method, route and status.",
            ("method", "route", "status"), registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "http_request_seconds", "Time until an answer begins.", ("method", "route"),
            buckets=BUCKETS_S, registry=self.registry,
        )  # fmt: skip
        self._in_flight = Gauge(
            "http_requests_in_flight", "Requests being answered.", registry=self.registry
        )

    def began(self) -> None:
        """Count a request that came in."""
        self._in_flight.inc()

    def ended(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; status 0: its connection ended before."""
        self._in_flight.dec()
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def watch(self, parts: Parts) -> None:
        """Add metrics of the jobs."""
        self.registry.register(_Jobs(parts))

    def exposition(self) -> bytes:
        """Return all metrics as text. This asks the database, and so blocks."""
        return generate_latest(self.registry)


class _Jobs(Collector):
    """Jobs by state, counted when the metrics are read."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe the metric without asking the database."""
        yield GaugeMetricFamily("domino_tune_jobs", "Jobs by state.", labels=["state"])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Count the jobs; where the database is away, leave them out."""
        with suppress(StorageError, UnavailableError):
            yield self._counted()
        yield GaugeMetricFamily(
            "domino_tune_quick_waiting", "Simulations and what-ifs being computed.",
            value=self._parts.quick.waiting,
        )  # fmt: skip
        if (runner := self._parts.runner) is not None:
            yield GaugeMetricFamily(
                "domino_tune_workers", "Workers that jobs can run on.", value=runner.workers
            )
            yield GaugeMetricFamily(
                "domino_tune_running", "Jobs that this replica runs.", value=runner.running
            )

    def _counted(self) -> GaugeMetricFamily:
        """Return the number of jobs by state. Raise StorageError, UnavailableError."""
        found = GaugeMetricFamily("domino_tune_jobs", "Jobs by state.", labels=["state"])
        counts = self._parts.jobs.counts()
        for state in get_args(JobState):
            found.add_metric([state], counts.get(state, 0))
        return found


# Liveness, readiness, metrics, and the description of the API -------------------------------------

routes: Final = Routes("service")
PING_S: Final = 2.0


class Health(BaseModel):
    """The service is well."""

    status: Literal["ok"] = "ok"


@routes.route("GET", "/healthz", scope=None, returns=Health)
async def healthz(request: Request) -> Response:
    """200 as long as requests are answered at all."""
    return JSONResponse(Health().model_dump())


@routes.route("GET", "/readyz", scope=None, returns=Health)
async def readyz(request: Request) -> Response:
    """200 where work can be taken; 503 while the service stops, where the database is away or
    stores nothing, and where nothing can run the jobs of this replica."""
    parts = parts_of(request)
    if parts.draining.is_set():
        raise ProblemError(503, "The service is about to stop.", headers={"Retry-After": "5"})
    try:
        with anyio.fail_after(PING_S):
            await anyio.to_thread.run_sync(
                parts.database.ping, abandon_on_cancel=True, limiter=parts.pings
            )
    except TimeoutError:
        raise ProblemError(
            503, f"The database did not answer in {PING_S:g} s.", headers={"Retry-After": "5"}
        ) from None
    except StorageError as error:
        raise ProblemError(503, str(error), headers={"Retry-After": "5"}) from error
    if parts.runner is not None and parts.runner.lacking:
        raise ProblemError(503, parts.runner.lacking, headers={"Retry-After": "5"})
    return JSONResponse(Health().model_dump())


@routes.route("GET", "/metrics", scope="read", media_type="text/plain")
async def metrics(request: Request) -> Response:
    """Metrics of this replica for Prometheus: requests, jobs, process."""
    data = await in_thread(request.app.state.metrics.exposition)
    return Response(data, media_type=MEDIA_TYPE)


@routes.route("GET", "/openapi.json", scope=None)
async def openapi(request: Request) -> Response:
    """This description of the API."""
    return JSONResponse(request.app.openapi())
