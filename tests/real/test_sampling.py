"""Which cases of a test run by default, and that all of them do with --all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

TESTS = """
import pytest

@pytest.fixture(params=["sqlite", "postgres"])
def url(request):
    return request.param

@pytest.mark.sampled
@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize(("b", "c"), [(1, []), (1, {})])
def test_values(a, b, c, url):
    pass

@pytest.mark.sampled("a", "url")
@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", [1, 2])
def test_combinations(a, b, url):
    pass

@pytest.mark.sampled(count=3)
@pytest.mark.parametrize("a", range(100))
def test_count(a):
    pass

@pytest.mark.sampled
class TestWhole:
    def test_without_cases(self):
        pass

    @pytest.mark.parametrize("a", [1])
    def test_one_case(self, a):
        pass
"""


def collected(folder: Path, *options: str) -> list[str]:
    """Return the names of the tests that pytest would run with our conftest."""
    (folder / "test_it.py").write_text(TESTS)
    command = [
        sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "tests.conftest",
        "-p", "no:cacheprovider", "-c", str(REPOSITORY / "pyproject.toml"),
        "--rootdir", str(folder), *options, str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def by_default(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return collected(tmp_path_factory.mktemp("sampling"))


def cases(names: list[str], test: str) -> list[list[str]]:
    """Return the values of the cases of ``test``."""
    return [name.partition("[")[2][:-1].split("-") for name in names if f"{test}[" in name]


def test_each_value_is_shown(by_default: list[str]) -> None:
    found = cases(by_default, "test_values")
    assert len(found) == 3
    assert {case[0] for case in found} == {"sqlite", "postgres"}
    assert {case[-1] for case in found} == {"1", "2", "3"}
    assert len({tuple(case[1:3]) for case in found}) == 2


def test_each_combination_of_those_named_is_shown(by_default: list[str]) -> None:
    found = cases(by_default, "test_combinations")
    assert len({(case[0], case[-1]) for case in found}) == len(found) == 6
    assert {case[1] for case in found} == {"1", "2"}


def test_a_count_is_spread_evenly(by_default: list[str]) -> None:
    assert cases(by_default, "test_count") == [["0"], ["34"], ["68"]]


def test_what_has_no_cases_runs(by_default: list[str]) -> None:
    assert [name for name in by_default if "TestWhole" in name] == [
        "TestWhole::test_without_cases", "TestWhole::test_one_case[1]",
    ]  # fmt: skip


def test_all_runs_all_cases(tmp_path: Path) -> None:
    assert len(collected(tmp_path, "--all")) == 12 + 12 + 100 + 1 + 1
