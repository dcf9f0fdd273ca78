"""Shared fixtures, the Hypothesis profile, and the rule that CI skips no test it can run."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.postgres import Postgres

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = REPOSITORY / "data"
NO_SKIPS = os.environ.get("DOMINO_TUNE_NO_SKIPS") == "1"
ALLOWED = ("no GPU", "no facts")
"""Beginnings of the reasons for which a test may skip in CI."""

# The same examples in every run, so that everyone sees the same failure.
settings.register_profile("domino_tune", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("domino_tune")

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.fixture(scope="session")
def facts_dir() -> Path:
    """Return the folder of tables that are not held (data/NOTICE.md). Skip where there is none."""
    from benchmarks.bench import facts
    from benchmarks.verdict import SkippedError

    try:
        return facts.facts_dir()
    except SkippedError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Run a PostgreSQL server for the session. Skip where it is not installed."""
    from tests.postgres import running_postgres

    with running_postgres() as server:
        yield server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="run the tests marked thorough, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long tests unless asked for. Begin with the tests that kill and wait: at the end,
    one of them would keep all waiting."""
    faults = REPOSITORY / "tests" / "faults"
    items.sort(key=lambda item: faults not in item.path.parents)
    if not config.getoption("--thorough"):
        long = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _without_skips((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _without_skips((yield))


def _without_skips(report: Report) -> Report:
    """Under DOMINO_TUNE_NO_SKIPS=1, turn a skip into a failure unless its reason is allowed."""
    if not (NO_SKIPS and report.skipped) or hasattr(report, "wasxfail"):
        return report
    place: Any = report.longrepr
    reason = place[2].removeprefix("Skipped: ") if isinstance(place, tuple) else str(place)
    if not reason.startswith(ALLOWED):
        report.outcome = "failed"
        report.longrepr = f"skipped, but DOMINO_TUNE_NO_SKIPS=1 allows only {ALLOWED}: {reason}"
    return report
