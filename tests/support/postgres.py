"""A real PostgreSQL server for tests, on a Unix socket in its own folder.

PostgreSQL refuses to run as root, so root starts it as another user.
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

from tests.support.processes import PATIENCE_S

MISSING: Final = "PostgreSQL is not installed; apt-get install postgresql"
NO_DRIVER: Final = "psycopg is not installed; pip install 'psycopg[binary]'"
DEBIAN: Final = Path("/usr/lib/postgresql")
"""Debian's folder with the programs of each version. They are not on the path."""


TRIES: Final = 5


@dataclass(kw_only=True)
class Postgres:
    """A server. Any user of this machine may log in as its superuser."""

    programs: Path
    folder: Path
    tcp: bool = False
    """Whether it listens on the loopback interface too."""
    port: int = 5432

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://tests@:{self.port}/{database}?host={self.folder}"

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        import psycopg

        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def start(self) -> None:
        """Start it. PostgreSQL cannot choose a port, so try another one if the first is taken."""
        for last in [False] * (TRIES - 1) + [True]:
            if self.tcp:
                with socket.create_server(("127.0.0.1", 0)) as free:
                    self.port = int(free.getsockname()[1])
            try:
                return self._start()
            except AssertionError:
                if last or not self.tcp:
                    raise

    def _start(self) -> None:
        # No test cuts the power of the machine, so files need no fsync.
        options = (
            f"-c listen_addresses={'127.0.0.1' if self.tcp else ''} -c port={self.port} "
            f"-c unix_socket_directories={self.folder} -c fsync=off "
            "-c shared_buffers=16MB -c max_connections=200"
        )
        log, waits = self.folder / "log", ("-w", "-t", PATIENCE_S)
        self._run("pg_ctl", *waits, "-D", self.data, "-l", log, "-o", options, "start")

    def stop(self) -> None:
        """Stop at once, as after kill -9."""
        self._run("pg_ctl", "-w", "-t", PATIENCE_S, "-D", self.data, "-m", "immediate", "stop")

    def init(self) -> None:
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
        printed = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        assert done.returncode == 0, f"{program}: {done.stdout}{printed}"


@contextmanager
def running_postgres(tcp: bool = False) -> Iterator[Postgres]:
    """Run a new server, then stop and remove it. Skip if PostgreSQL is not installed."""
    programs = find_programs()
    pytest.importorskip("psycopg", reason=NO_DRIVER)
    folder = Path(tempfile.mkdtemp(prefix="domino-postgres-"))
    server = Postgres(programs=programs, folder=folder, tcp=tcp)
    try:
        if user := ordinary_user().get("user"):
            shutil.chown(folder, user)
        server.init()
        server.start()
        yield server
    finally:
        if (server.data / "postmaster.pid").exists():
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def find_programs() -> Path:
    """Return the folder of initdb and pg_ctl. Skip if they are not installed."""
    newest = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = shutil.which("initdb") or (newest[-1] if newest else None)
    if found is None:
        pytest.skip(MISSING)
    return Path(found).resolve().parent


def ordinary_user() -> dict[str, Any]:
    """Return the options of subprocess that drop root's rights, or none without root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
