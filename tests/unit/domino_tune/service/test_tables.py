"""The tables of the service's database, frozen by version: databases that are there have them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_mock_engine

from domino_tune.service.sql.tables import METADATA, SCHEMA_VERSION
from tests.conftest import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "unit" / "golden"


def statements(url: str) -> str:
    """What creates the tables in a database, with their version."""
    made: list[Any] = []
    engine = create_mock_engine(url, lambda one, *_, **__: made.append(one))
    METADATA.create_all(engine, checkfirst=False)
    found = sorted(" ".join(str(one.compile(dialect=engine.dialect)).split()) for one in made)
    return "\n".join([f"-- version {SCHEMA_VERSION}", *found]) + "\n"


@pytest.mark.parametrize("url", ["sqlite://", "postgresql+psycopg://"])
def test_tables_are_those_of_their_version(url: str) -> None:
    """A change of them is a new SCHEMA_VERSION, and a new file."""
    frozen = GOLDEN / f"tables_{url.partition(':')[0].partition('+')[0]}.sql"
    assert statements(url) == frozen.read_text("utf-8")
