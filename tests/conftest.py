"""Shared fixtures, the choice of cases that run without --all, and the rule that CI skips
no test.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest
from hypothesis import settings

from simulator.kernels.load import FOLDER_VARIABLE, prepare

if TYPE_CHECKING:
    from tests.support.postgres import Postgres
    from tests.support.runs import Runner

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = REPOSITORY / "data"
UNIT = REPOSITORY / "tests" / "unit"
NO_SKIPS = os.environ.get("DOMINO_TUNE_NO_SKIPS") == "1"
ALLOWED = ("no GPU", "no facts")
"""Prefixes of the reasons for which a test may skip in CI."""

QUICK_EXAMPLES: Final = 20
"""Examples of a property by default; Hypothesis' own number with --all."""

# The same examples in every run, so that everyone sees the same failure.
settings.register_profile("all", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("quick", settings.get_profile("all"), max_examples=QUICK_EXAMPLES)

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
Shown = tuple[tuple[str, int], ...]
"""Parameters of a case, each with the identity of its value."""


@pytest.fixture(scope="session")
def facts_dir() -> Path:
    """Return the folder of tables that are not in the repository (data/NOTICE.md). Skip if it is
    not set.
    """
    from lab.bench.common import facts_dir as folder
    from lab.verdict import SkippedError

    try:
        return folder()
    except SkippedError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Run a PostgreSQL server for the session. Skip if it is not installed."""
    from tests.support.postgres import running_postgres

    with running_postgres() as server:
        yield server


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Runner:
    """Return the command line in this process, with a home of its own, and a stopped clock: on a
    busy machine progress would otherwise be printed before an answer.
    """
    from tests.support.runs import Runner

    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("domino_tune.cli.progress.time", SimpleNamespace(monotonic=lambda: 0.0))
    return Runner(capsys, tmp_path)


@pytest.fixture(scope="session")
def needs_torch() -> None:
    """Skip without torch, which collection does not import."""
    pytest.importorskip("torch")


def pytest_addoption(parser: pytest.Parser) -> None:
    said = "run all cases of the tests marked sampled, with more examples of each property"
    parser.addoption("--all", action="store_true", help=said)
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run tests in a random order")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the number of examples. Let SIGINT interrupt: a script's background jobs ignore it,
    and every process that a test starts would inherit that.
    """
    os.environ.setdefault(FOLDER_VARIABLE, str(REPOSITORY / ".pytest_cache" / "d" / "kernels"))
    prepare()
    settings.load_profile("all" if config.getoption("--all") else "quick")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of sampled tests unless all are asked for. Start with the real ring: at the
    end, one of its tests would keep everything waiting.
    """
    items.sort(key=lambda item: item.path.is_relative_to(UNIT))
    if not config.getoption("--all"):
        kept = set(_sample(items))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    if (seed := config.getoption("--shuffle")) is not None:
        _shuffle(items, random.Random(seed))


def _shuffle(items: list[pytest.Item], chance: random.Random) -> None:
    """Put files, and the tests of each, in random order; tests of a file stay together, so that its
    fixtures are made once.
    """
    chance.shuffle(items)
    places: dict[Path, int] = {}
    for item in items:
        places.setdefault(item.path, len(places))
    items.sort(key=lambda item: places[item.path])


def _sample(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests that have no cases, or lack the mark ``sampled``; of the others yield some
    cases.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("sampled"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
        else:
            yield item
    for of_one_test in cases.values():
        mark = of_one_test[0].get_closest_marker("sampled")
        assert mark is not None
        if count := mark.kwargs.get("count"):
            yield from of_one_test[:: -(-len(of_one_test) // count)]
        else:
            yield from _covering(of_one_test, mark.args)


def _covering(cases: list[pytest.Item], crossed: tuple[str, ...]) -> Iterator[pytest.Item]:
    """Yield cases that together show each value of each parameter, and each combination of the
    ``crossed`` ones: repeatedly take the first case that shows the most new values.
    """
    shows = {case: _shown(case, crossed) for case in cases}
    seen: set[Shown] = set()
    while shows:
        best = max(shows, key=lambda case: len(shows[case] - seen))
        new = shows.pop(best) - seen
        if not new:
            return
        seen |= new
        yield best


def _shown(case: pytest.Item, crossed: tuple[str, ...]) -> set[Shown]:
    """Return the values of a case, each with its parameter; parameters of one list count as one."""
    first: dict[str, str] = {}
    for mark in case.iter_markers("parametrize"):
        given = mark.args[0]
        names = given.replace(" ", "").split(",") if isinstance(given, str) else given
        first |= dict.fromkeys(names, names[0])
    values: dict[str, Shown] = {}
    # A value that several cases share is one object in all of them; it may be unhashable.
    for name, value in case.callspec.params.items():  # type: ignore[attr-defined]
        of = first.get(name, name)
        values[of] = (*values.get(of, ()), (name, id(value)))
    together = tuple(pair for name in crossed for pair in values.pop(name))
    return {*values.values(), together} - {()}


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
