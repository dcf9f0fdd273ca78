"""Print tokens as tables."""

from __future__ import annotations

import sys

from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.results.listed import TokenAddedResult, TokensResult


def listing(result: TokensResult) -> None:
    """Print one row a token."""
    print_table(
        Table(
            columns=("name", "owner", "scope", "created", "expires", "last used"),
            rows=[
                (
                    one.name,
                    one.owner,
                    one.scope,
                    one.created,
                    one.expires or "never",
                    one.used or "never",
                )
                for one in result.tokens
            ],
        )
    )


def added(result: TokenAddedResult) -> None:
    """Print the secret alone to stdout, so that it can go into a file; the rest to stderr."""
    print(result.secret)
    print_line(
        f"Token {result.name} of {result.owner}, scope {result.scope}: store it now, it is not "
        "shown again.",
        sys.stderr,
    )
