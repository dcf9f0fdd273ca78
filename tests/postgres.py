"""A real PostgreSQL for tests, in a folder of its own, on a free port of the loopback.

PostgreSQL refuses to run as root, so root starts it as an ordinary user.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

MISSING: Final = "PostgreSQL is not installed; apt-get install postgresql"
NO_DRIVER: Final = "psycopg is not installed; pip install 'psycopg[binary]'"
DEBIAN: Final = Path("/usr/lib/postgresql")
"""Where Debian keeps the programs of each version, which are not on the path."""


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """A server that runs: any user of this machine may log in as its superuser."""

    programs: Path
    folder: Path
    port: int

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://tests@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of a database that is empty."""
        import psycopg

        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def start(self) -> None:
        # A machine that loses power is not among the tests, so files need no syncing.
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={self.port} -c fsync=off "
            f"-c unix_socket_directories='' -c shared_buffers=16MB -c max_connections=200"
        )
        log = self.folder / "log"
        self._run("pg_ctl", "-w", "-t", "60", "-D", self.data, "-l", log, "-o", options, "start")

    def stop(self) -> None:
        """At once, as after kill -9."""
        self._run("pg_ctl", "-w", "-D", self.data, "-m", "immediate", "stop")

    def make(self) -> None:
        self._run(
            "initdb", "-D", self.data, "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync"
        )

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [self.programs / program, *map(str, arguments)],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **ordinary_user(),
        )
        log = self.folder / "log"
        said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        assert done.returncode == 0, f"{program}: {done.stdout}{said}"


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A new server, stopped and removed in the end; skips where PostgreSQL is not installed."""
    programs = find_programs()
    pytest.importorskip("psycopg", reason=NO_DRIVER)
    folder = Path(tempfile.mkdtemp(prefix="domino-postgres-"))
    try:
        if user := ordinary_user().get("user"):
            shutil.chown(folder, user)
        server = Postgres(programs=programs, folder=folder, port=free_port())
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_programs() -> Path:
    """The folder of initdb and pg_ctl; skips where there is none."""
    newest = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = shutil.which("initdb") or (newest[-1] if newest else None)
    if found is None:
        pytest.skip(MISSING)
    return Path(found).resolve().parent


def ordinary_user() -> dict[str, Any]:
    """What makes subprocess leave root behind; nothing where it is not root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
