"""Authentication and authorisation: bearer tokens with a scope and an owner."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.requests import Request

from api.limits import Buckets
from api.problems import ProblemError
from domino_tune.requests.service import Scope
from domino_tune.service.tokens import SCOPES, TokenDesk

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


async def authenticate(
    request: Request,
    tokens: TokenDesk,
    turn: anyio.CapacityLimiter,
    buckets: Buckets,
    *,
    required: bool,
) -> Caller:
    """Return the caller that the request's token belongs to; it is looked up when it is its
    ``turn``.

    A token that is sent must be valid, even if none is ``required``. Raise ProblemError 401 for a
    missing or invalid token, and 429 after too many invalid ones from one address. These never lock
    out a valid token, which is looked up first.
    """
    given = request.headers.getlist("authorization")
    if not given and not required:
        return LOCAL
    if not given:
        raise _unknown("A token is needed: send `Authorization: Bearer dt_…`.", _REALM)
    scheme, _, secret = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not 0 < len(secret) <= LONGEST_SECRET:
        raise _unknown("Send one header, `Authorization: Bearer dt_…`.", _REALM)
    secret = secret.strip()
    key = f"token {hashlib.sha256(secret.encode()).hexdigest()}"
    token = await anyio.to_thread.run_sync(tokens.find, secret, limiter=turn)
    if token is None:
        buckets.take(f"unknown {request.client.host if request.client else ''}")
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
