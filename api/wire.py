"""Declare routes, each with its scope, in one table for each noun:

    routes = Routes("tunes")

    @routes.route("POST", "/v1/tunes", scope="tune", status=202, returns=Tune)
    async def create_tune(request: Request, caller: Me, body: Any = body_of(TuneBody)) -> Response:
        ...

``api.routes.ALL`` lists the tables. The function's name is the operation id, its docstring the
description. Its parameters are evaluated in this order: the caller, whose token, scope and rate are
checked, then the body, parsed strictly. It returns a Response, or raises DominoTuneError or
ProblemError, which become problem+json. The tests of authorisation read the same tables.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import anyio
from fastapi import Depends, Header, Path, params
from pydantic import BaseModel
from starlette.requests import Request

from api.auth import Caller, authenticate, check_scope
from api.body import JSON_TYPES, TABLE_TYPES, parse_body, parse_object, read_body
from api.bounds import check_fields
from api.problems import LONGEST_NAME, Fault, ProblemError
from api.strict_json import MOST_PROFILE_VALUES, MOST_VALUES
from domino_tune.service.tokens import Scope

if TYPE_CHECKING:
    from api.parts import Parts

SLUG: Final = r"^[a-z0-9](\.?[a-z0-9_-])*\.?$"
"""Names of profiles and models: without a separator or two dots in a row, so never a path."""
Slug = Annotated[str, Path(pattern=SLUG, max_length=64, description="A name.")]
JobId = Annotated[str, Path(pattern=r"^job_[0-9a-f]{32}$", description="A job.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", min_length=1, max_length=128, pattern=r"^[!-~]+$",
        description="The same key with the same body gets the first answer again, for 24 hours.",
    ),
]  # fmt: skip
API_CSP: Final = "default-src 'none'; frame-ancestors 'none'"
PAGE_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""For pages that load only their own files."""
REPORT_CSP: Final = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)
"""For a self-contained page: its scripts run in an origin of their own."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Made = TypeVar("Made")
Kind = TypeVar("Kind", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class BodySpec:
    """The body of a route: JSON of ``kind`` (None: any object), or a table as bytes."""

    kind: type[BaseModel] | None = None
    media_types: tuple[str, ...] = JSON_TYPES
    upload: bool = False
    """Allow the size of a profile."""

    @property
    def most_values(self) -> int | None:
        """Return the most values that JSON may hold; None for a table."""
        if self.media_types != JSON_TYPES:
            return None
        return MOST_PROFILE_VALUES if self.upload else MOST_VALUES


@dataclass(frozen=True, kw_only=True)
class Declared:
    """One route. With ``scope`` None it is open to everyone, without rate limit.

    ``returns``: the content of a good answer, documented and not checked. ``also``: other good
    statuses. ``problems``: statuses of errors that only this route has.
    """

    method: str
    path: str
    scope: Scope | None
    endpoint: Callable[..., Any]
    tag: str
    status: int = 200
    returns: type[BaseModel] | None = None
    media_type: str = "application/json"
    also: Mapping[int, type[BaseModel] | None] = field(default_factory=dict)
    problems: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the operation id."""
        return str(self.endpoint.__name__)

    @property
    def body(self) -> BodySpec | None:
        """Return the body's specification, if the route takes a body."""
        defaults = (item.default for item in inspect.signature(self.endpoint).parameters.values())
        called = (item.dependency for item in defaults if isinstance(item, params.Depends))
        return next((_BODIES[one] for one in called if one in _BODIES), None)

    @property
    def dependencies(self) -> list[params.Depends]:
        """Return the checks before the function is called, in this order."""
        return [] if self.scope is None else [Depends(caller(self.scope))]


class Routes:
    """The routes of one noun in the order of their declaration."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.declared: list[Declared] = []

    def route(
        self,
        method: str,
        path: str,
        *,
        scope: Scope | None,
        status: int = 200,
        returns: type[BaseModel] | None = None,
        media_type: str = "application/json",
        also: Mapping[int, type[BaseModel] | None] | None = None,
        problems: Sequence[int] = (),
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare the decorated function as a route; see Declared."""

        def declare(endpoint: Endpoint) -> Endpoint:
            self.declared.append(
                Declared(
                    method=method, path=path, scope=scope, endpoint=endpoint, tag=self.tag,
                    status=status, returns=returns, media_type=media_type, also=also or {},
                    problems=tuple(problems),
                )
            )  # fmt: skip
            return endpoint

        return declare


# Parameters of routes' functions ------------------------------------------------------------------

_BODIES: Final[dict[Callable[..., Any], BodySpec]] = {}


def parts_of(request: Request) -> Parts:
    """Return the service's parts: settings, jobs, library, runner …"""
    parts: Parts = request.app.state.parts
    return parts


def caller(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    """Return a dependency that gives the caller, after checking token, rate and ``scope``."""

    async def admit(request: Request) -> Caller:
        parts = parts_of(request)
        found = await authenticate(
            request, parts.tokens, parts.buckets, required=parts.settings.tokens_required
        )
        parts.buckets.take(found.key)
        check_scope(found, scope)
        request.state.caller = found
        return found

    return admit


def only_query(known: Collection[str]) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that refuses unknown and repeated query parameters."""

    async def check(request: Request) -> None:
        names = [name for name, _ in request.query_params.multi_items()]
        for name in names:
            if name not in known or names.count(name) > 1:
                what = "stands twice" if name in known else "is not known"
                detail = f"A query parameter {what}; known: {', '.join(sorted(known)) or 'none'}."
                fault = Fault(parameter=name[:LONGEST_NAME], detail=detail)
                raise ProblemError(422, detail, faults=[fault])

    return check


async def _admitted(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found


Me = Annotated[Caller, Depends(_admitted)]
"""Parameter type: the caller of a route that has a scope."""


def body_of(kind: type[Kind], *, upload: bool = False) -> Any:
    """Return a parameter default: the JSON body as ``kind``, within bounds. ``body_bytes`` has its
    bytes."""

    async def read(request: Request) -> AsyncIterator[Kind]:
        async with _received(request, spec) as data:
            body = await parse_body(kind, data, parts_of(request).intake.bodies)
            check_fields(body)
            yield body

    spec = _BODIES[read] = BodySpec(kind=kind, upload=upload)
    return Depends(read)


def object_body() -> Any:
    """Return a parameter default: the body as a JSON object with any keys."""

    async def read(request: Request) -> AsyncIterator[dict[str, Any]]:
        async with _received(request, spec) as data:
            yield await parse_object(data, parts_of(request).intake.bodies)

    spec = _BODIES[read] = BodySpec()
    return Depends(read)


def raw_body(media_types: tuple[str, ...] = TABLE_TYPES, *, upload: bool = True) -> Any:
    """Return a parameter default: the body as bytes, of one of ``media_types``."""

    async def read(request: Request) -> AsyncIterator[bytes]:
        async with _received(request, spec) as data:
            yield data

    spec = _BODIES[read] = BodySpec(media_types=media_types, upload=upload)
    return Depends(read)


@asynccontextmanager
async def _received(request: Request, spec: BodySpec) -> AsyncIterator[bytes]:
    """Yield the body as it was sent; it counts as held until the request is answered."""
    parts, me = parts_of(request), await _admitted(request)
    settings = parts.settings
    with parts.intake.body(me.key, spec.most_values) as take:
        request.state.body = await read_body(
            request,
            cap_bytes=settings.upload_bytes if spec.upload else settings.body_bytes,
            deadline_s=settings.receive_s,
            media_types=spec.media_types,
            take=take,
            pace=parts.intake.pace,
        )
        yield request.state.body


def body_bytes(request: Request) -> bytes:
    """Return the body as it was sent, for digests."""
    data: bytes = request.state.body
    return data


async def in_thread(function: Callable[..., Made], *arguments: Any, **named: Any) -> Made:
    """Call in a thread what may block, such as SQL and files."""
    return await anyio.to_thread.run_sync(partial(function, *arguments, **named))


async def run_quick(request: Request, kind: str, task: bytes) -> bytes:
    """Return the result of ``domino_tune.service.tasks.work.quick``, computed or stored.

    Raise ProblemError 429 and 503.
    """
    me = await _admitted(request)
    return await parts_of(request).quick.answer(me.key, kind, task)
