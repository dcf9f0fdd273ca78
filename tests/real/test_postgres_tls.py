"""PostgreSQL with TLS that is checked, by the rules of deploy and certificates of the docs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from domino_tune.base.errors import UnavailableError
from domino_tune.service.sql.database import open_database
from tests.conftest import REPOSITORY
from tests.support.postgres import Postgres, ordinary_user, running_postgres

PASSWORD = "only-for-this-test"
NAME = "localhost"


def openssl(folder: Path, words: str) -> None:
    subprocess.run(["openssl", *words.split()], cwd=folder, capture_output=True, check=True)


def make_certificates(folder: Path) -> None:
    """Make an authority, and a certificate of the server ``NAME``, as docs/service.md does."""
    key = "-newkey rsa:2048 -nodes"
    openssl(folder, f"req -x509 {key} -keyout ca.key -out ca.pem -days 1 -subj /CN=domino-ca")
    openssl(folder, f"req {key} -keyout database.key -out database.csr -subj /CN={NAME}")
    openssl(
        folder, "x509 -req -in database.csr -CA ca.pem -CAkey ca.key -CAcreateserial "
        "-out database.pem -days 1",
    )  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed; apt-get install openssl")
    with running_postgres(tcp=True) as made:
        make_certificates(made.folder)
        shutil.copy(REPOSITORY / "deploy" / "pg_hba.conf", made.folder)
        for path in made.folder.iterdir():
            if user := ordinary_user().get("user"):
                shutil.chown(path, user)
        (made.folder / "database.key").chmod(0o600)
        with psycopg.connect(made.url(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE domino LOGIN PASSWORD '{PASSWORD}'")
            connection.execute("CREATE DATABASE domino OWNER domino")
            for name, value in {
                "ssl": "on",
                "ssl_cert_file": made.folder / "database.pem",
                "ssl_key_file": made.folder / "database.key",
                "hba_file": made.folder / "pg_hba.conf",
            }.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        made.stop()
        made.start()
        yield made


def opens(
    monkeypatch: pytest.MonkeyPatch, server: Postgres, host: str, mode: str, authority: Path
) -> None:
    """Open the database as the container does: by libpq's variables."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGSSLMODE", mode)
    monkeypatch.setenv("PGSSLROOTCERT", str(authority))
    database = open_database(f"postgresql://domino@{host}:{server.port}/domino")
    database.ping()
    database.close()


def test_the_server_is_checked(
    server: Postgres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = server.folder / "ca.pem"
    opens(monkeypatch, server, NAME, "verify-full", authority)
    with pytest.raises(UnavailableError, match="does not match host name"):
        opens(monkeypatch, server, "127.0.0.1", "verify-full", authority)
    make_certificates(tmp_path)
    with pytest.raises(UnavailableError, match="SSL error"):
        opens(monkeypatch, server, NAME, "verify-full", tmp_path / "ca.pem")


def test_nobody_comes_in_without_tls(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match="no encryption"):
        opens(monkeypatch, server, NAME, "disable", server.folder / "ca.pem")
