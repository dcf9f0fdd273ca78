"""The tokens verbs: add, list and revoke."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from domino_tune.requests.service import TokensAddRequest, TokensListRequest, TokensRevokeRequest
from domino_tune.results.listed import TokenAddedResult, TokenResult
from domino_tune.service.sql import open_service_database

if TYPE_CHECKING:
    from domino_tune.service.tokens import TokenDesk


def tokens_add(request: TokensAddRequest) -> TokenAddedResult:
    """Add a token. Raise ConflictError if the name is taken, InputError for a bad name."""
    owner = request.owner or request.name
    with _desk(request.database) as desk:
        secret = desk.add(request.name, owner, request.scope, request.days)
    return TokenAddedResult(name=request.name, owner=owner, scope=request.scope, secret=secret)


def tokens_list(request: TokensListRequest) -> list[TokenResult]:
    """Return all tokens by name."""
    with _desk(request.database) as desk:
        return [
            TokenResult(
                name=token.name,
                owner=token.owner,
                scope=token.scope,
                created=_rfc3339(token.created_s),
                expires=None if token.expires_s is None else _rfc3339(token.expires_s),
                used=None if token.used_s is None else _rfc3339(token.used_s),
            )
            for token in desk.list()
        ]


def tokens_revoke(request: TokensRevokeRequest) -> None:
    """Revoke a token. Raise NotFoundError if no token has that name."""
    with _desk(request.database) as desk:
        desk.revoke(request.name)


@contextmanager
def _desk(database: str | None) -> Iterator[TokenDesk]:
    service_database = open_service_database(database, what="tokens")
    from domino_tune.service.tokens import TokenDesk

    try:
        yield TokenDesk(service_database)
    finally:
        service_database.close()


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
