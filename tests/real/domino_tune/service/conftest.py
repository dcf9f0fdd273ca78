"""Every test of the store runs on SQLite and on a real PostgreSQL, unless it says which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.sql.database import Database, open_database
from tests.support.postgres import Postgres


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    return postgres.new_database()


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind in turn."""
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = open_database(url)
    yield database
    database.close()


@pytest.fixture
def desk(database: Database) -> JobDesk:
    return JobDesk(database)
