"""tokens add, list, revoke: on a real SQLite file in the user's home."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from domino_tune.results.listed import TokenAddedResult
from tests.support.runs import Runner

if TYPE_CHECKING:
    from domino_tune.service.tokens import StoredToken

SECRET = r"dt_[A-Za-z0-9_-]{43}"


def found(database: Path, secret: str) -> StoredToken | None:
    from domino_tune.service.sql.database import open_database
    from domino_tune.service.tokens import TokenDesk

    connection = open_database(f"sqlite:///{database}")
    try:
        return TokenDesk(connection).find(secret)
    finally:
        connection.close()


def test_the_secret_is_alone_on_stdout_and_kept_nowhere(run: Runner) -> None:
    done = run("tokens", "add", "ci", "--owner", "alice", "--scope", "admin")
    assert done.code == 0, done.err
    assert re.fullmatch(SECRET + "\n", done.out)
    secret = done.out.strip()
    assert secret not in done.err
    database = run.folder / "home" / "service.db"
    token = found(database, secret)
    assert token
    assert (token.name, token.owner, token.scope) == ("ci", "alice", "admin")
    assert secret not in run("tokens", "list", "--json").out
    written = b"".join(path.read_bytes() for path in database.parent.iterdir())
    assert secret.encode() not in written


def test_an_owner_is_by_default_the_name(run: Runner) -> None:
    added = json.loads(run("tokens", "add", "bob", "--json").out)
    assert (added["owner"], added["scope"]) == ("bob", "tune")


def test_listed_until_revoked(run: Runner) -> None:
    secret = run("tokens", "add", "ci").out.strip()
    run("tokens", "add", "other", "--scope", "read")
    listed = json.loads(run("tokens", "list", "--json").out)
    assert [(one["name"], one["scope"]) for one in listed] == [("ci", "tune"), ("other", "read")]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", listed[0]["created"])
    assert "other" in run("tokens", "list").out
    assert run("tokens", "revoke", "ci").code == 0
    assert found(run.folder / "home" / "service.db", secret) is None
    assert [one["name"] for one in json.loads(run("tokens", "list", "--json").out)] == ["other"]
    assert "no token 'ci'" in run.refused("tokens", "revoke", "ci")


def test_another_database(run: Runner) -> None:
    url = f"sqlite:///{run.folder / 'elsewhere.db'}"
    assert run("tokens", "add", "ci", "--database", url).code == 0
    assert not (run.folder / "home" / "service.db").exists()
    assert "must be a URL" in run.refused("tokens", "list", "--database", "elsewhere.db")


def test_no_repr_shows_the_secret() -> None:
    result = TokenAddedResult(name="ci", owner="ci", scope="tune", secret="dt_hidden")
    assert "dt_hidden" not in repr(result)
