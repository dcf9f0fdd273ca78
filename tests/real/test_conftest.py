"""Which cases of a test run by default, and which skips fail under DOMINO_TUNE_NO_SKIPS=1."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
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

def test_allowed_gpu():
    pytest.skip("no GPU: 0 devices")

@pytest.mark.skip(reason="no facts: not here")
def test_allowed_facts():
    pass

def test_not_allowed():
    pytest.skip("too slow")

@pytest.mark.xfail(reason="known")
def test_expected_failure():
    assert False
"""
SKIPPED_MODULE = 'import pytest\npytest.importorskip("no_such_module_anywhere")\n'
Outcomes = dict[str, str]


def outcomes(folder: Path, no_skips: str, *options: str) -> Outcomes:
    """Run the tests with our conftest. Return by name how each test and module ended."""
    (folder / "test_it.py").write_text(TESTS)
    (folder / "test_module.py").write_text(SKIPPED_MODULE)
    command = [
        sys.executable, "-m", "pytest", "-vrsE", "-p", "tests.conftest", "-p", "no:cacheprovider",
        "-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(folder), *options, str(folder),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={**os.environ, "DOMINO_TUNE_NO_SKIPS": no_skips},
    )  # fmt: skip
    found = re.findall(r"^(?:\S*/)?test_it\.py::(\S+) ([A-Z]+)", done.stdout, re.MULTILINE)
    return dict(found) | {
        "module": "ERROR" if re.search(r"ERROR \S*test_module\.py", done.stdout) else "SKIPPED"
    }


@pytest.fixture(scope="module")
def by_default(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return outcomes(tmp_path_factory.mktemp("default"), "1", "--continue-on-collection-errors")


@pytest.fixture(scope="module")
def all_of_them(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return outcomes(tmp_path_factory.mktemp("all"), "0", "--all")


def cases(names: Outcomes, test: str) -> list[list[str]]:
    """Return the values of the cases of ``test``."""
    return [name.partition("[")[2][:-1].split("-") for name in names if f"{test}[" in name]


def test_each_value_is_shown(by_default: Outcomes) -> None:
    found = cases(by_default, "test_values")
    assert len(found) == 3
    assert {case[0] for case in found} == {"sqlite", "postgres"}
    assert {case[-1] for case in found} == {"1", "2", "3"}
    assert len({tuple(case[1:3]) for case in found}) == 2


def test_each_combination_of_those_named_is_shown(by_default: Outcomes) -> None:
    found = cases(by_default, "test_combinations")
    assert len({(case[0], case[-1]) for case in found}) == len(found) == 6
    assert {case[1] for case in found} == {"1", "2"}


def test_a_count_is_spread_evenly_and_what_has_no_cases_runs(by_default: Outcomes) -> None:
    assert cases(by_default, "test_count") == [["0"], ["34"], ["68"]]
    assert [name for name in by_default if "TestWhole" in name] == [
        "TestWhole::test_without_cases", "TestWhole::test_one_case[1]",
    ]  # fmt: skip


def test_all_runs_all_cases(all_of_them: Outcomes) -> None:
    assert Counter(all_of_them.values())["PASSED"] == 12 + 12 + 100 + 1 + 1


def test_a_skip_fails_where_none_is_allowed(by_default: Outcomes, all_of_them: Outcomes) -> None:
    may = {"test_allowed_gpu": "SKIPPED", "test_allowed_facts": "SKIPPED"}
    rest = {"test_expected_failure": "XFAIL"}
    assert by_default.items() >= (may | rest).items()
    assert all_of_them.items() >= (may | rest).items()
    assert [by_default[name] for name in ("test_not_allowed", "module")] == ["FAILED", "ERROR"]
    assert [all_of_them[name] for name in ("test_not_allowed", "module")] == ["SKIPPED"] * 2
