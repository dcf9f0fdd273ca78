"""Declare routes, each with its scope, in one table for each noun:

    routes = Routes("models")

    @routes.route("GET", "/v1/models", scope="read", returns=ModelPage)
    async def list_models(request: Request, caller: Me, limit: Limit = 50) -> Response:
        ...

``api.routes.ALL`` lists the tables. The function's name is the operation id, its docstring the
description. Its parameters are evaluated in this order: the caller, whose token, scope and rate are
checked, then the body, parsed strictly. It returns a Response, or raises DominoTuneError or
ProblemError, which become problem+json. The tests of authorisation read the same tables.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import anyio
from fastapi import Depends, Header, Path, params
from pydantic import BaseModel
from starlette.requests import Request

from api.body import JSON_TYPES, MOST_VALUES, TABLE_TYPES, parse, parsed, read_body, read_object
from api.problems import JOB_ID, LONGEST_NAME, SLUG, VISIBLE, Fault, ProblemError
from domino_tune.requests.service import Scope
from domino_tune.service.tokens import SCOPES

if TYPE_CHECKING:
    from api.parts import Parts


# Authentication and authorisation -----------------------------------------------------------------
# Bearer tokens with a scope and an owner.

LONGEST_SECRET: Final = 200
_REALM: Final = 'Bearer realm="domino_tune"'


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The caller: owner of jobs, scope of the allowed routes, and key for rate limits."""

    owner: str
    scope: Scope
    key: str


LOCAL: Final = Caller(owner="local", scope="admin", key="local")
"""Any caller on this machine, where no token is required."""


async def authenticate(request: Request) -> Caller:
    """Return the caller that the request's token belongs to.

    A token that is sent must be valid, even if none is required. Raise ProblemError 401 for a
    missing or invalid token, and 429 after too many invalid ones from one address. These never lock
    out a valid token, which is looked up first.
    """
    parts, given = parts_of(request), request.headers.getlist("authorization")
    if not given and not parts.settings.tokens_required:
        return LOCAL
    if not given:
        raise _unknown("A token is needed: send `Authorization: Bearer dt_…`.", _REALM)
    scheme, _, secret = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not 0 < len(secret) <= LONGEST_SECRET:
        raise _unknown("Send one header, `Authorization: Bearer dt_…`.", _REALM)
    secret = secret.strip()
    key = f"token {hashlib.sha256(secret.encode()).hexdigest()}"
    token = await anyio.to_thread.run_sync(parts.tokens.find, secret, limiter=parts.lookups)
    if token is None:
        parts.buckets.take(f"unknown {request.client.host if request.client else ''}")
        raise _unknown(
            "The token is not known, has expired, or was revoked.",
            f'{_REALM}, error="invalid_token"',
        )
    return Caller(owner=token.owner, scope=token.scope, key=key)


def check_scope(caller: Caller, scope: Scope) -> None:
    """Raise ProblemError 403 if the caller's scope does not include ``scope``."""
    if SCOPES.index(caller.scope) < SCOPES.index(scope):
        raise ProblemError(
            403,
            f"This needs a token of scope {scope}; yours has {caller.scope}.",
            headers={"WWW-Authenticate": f'{_REALM}, error="insufficient_scope", scope="{scope}"'},
        )


def _unknown(detail: str, challenge: str) -> ProblemError:
    return ProblemError(401, detail, headers={"WWW-Authenticate": challenge})


# Declare routes, each with its scope, in one table for each noun: ---------------------------------

Slug = Annotated[str, Path(pattern=SLUG, max_length=64, description="A name.")]
JobId = Annotated[str, Path(pattern=JOB_ID, description="A job.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", min_length=1, max_length=128, pattern=VISIBLE,
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
        found = await authenticate(request)
        parts_of(request).buckets.take(found.key)
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


def body_of(kind: type[Kind]) -> Any:
    """Return a parameter default: the JSON body as ``kind``. ``body_bytes`` has its bytes."""
    return _read(lambda data: parse(kind, data), BodySpec(kind=kind))


def object_body() -> Any:
    """Return a parameter default: the body as a JSON object with any keys."""
    return _read(read_object, BodySpec())


def raw_body(media_types: tuple[str, ...] = TABLE_TYPES) -> Any:
    """Return a parameter default: the body as bytes, of one of ``media_types`` and of the size of a
    profile."""

    async def read(request: Request) -> bytes:
        return await _received(request, spec)

    spec = _BODIES[read] = BodySpec(media_types=media_types, upload=True)
    return Depends(read)


def read_by(read_bytes: Callable[[bytes], Any], kind: type[BaseModel]) -> Any:
    """Return a parameter default: what ``read_bytes`` makes of a JSON body, which is documented as
    ``kind``."""
    return _read(read_bytes, BodySpec(kind=kind))


def _read(read_bytes: Callable[[bytes], Any], spec: BodySpec) -> Any:
    async def read(request: Request) -> Any:
        data = await _received(request, spec)
        return await parsed(read_bytes, data, MOST_VALUES, parts_of(request).parsing)

    _BODIES[read] = spec
    return Depends(read)


async def _received(request: Request, spec: BodySpec) -> bytes:
    """Return the body as it was sent."""
    settings = parts_of(request).settings
    request.state.body = await read_body(
        request,
        cap_bytes=settings.upload_bytes if spec.upload else settings.body_bytes,
        media_types=spec.media_types,
    )
    return body_bytes(request)


def body_bytes(request: Request) -> bytes:
    """Return the body as it was sent, for digests."""
    data: bytes = request.state.body
    return data


async def in_thread(function: Callable[..., Made], *arguments: Any, **named: Any) -> Made:
    """Call in a thread what may block, such as SQL and files."""
    return await anyio.to_thread.run_sync(partial(function, *arguments, **named))
