"""Faults are put where code is, the same ones for a seed, and tests notice them or do not."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.mutants import __main__ as script
from lab.mutants import trees
from lab.mutants.covered import Covering, statement_lines
from lab.mutants.faults import (
    AREAS,
    EQUIVALENT,
    MUTATED,
    TESTS,
    TOLD,
    Fault,
    area_of,
    area_tests,
    faults_of,
    ordered_tests,
    sample,
    sources,
)
from lab.mutants.trees import Tree
from tests.conftest import REPOSITORY

MODULE = '''"""A module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """Two numbers."""

    left: int | None = 7
    right: tuple[int, int] = (1, 2)


def total(values: list[int] | None, *, start: int | None = 0) -> int | None:
    """Return 1 + 1."""
    if values is None:
        raise ValueError(f"No values: {1 + 1} were expected.")
    for value, _ in zip(values, values, strict=True):
        start = start + value
    return start


def unseen(value: int) -> int:
    while value < 3:
        value = value + 1
    return value * 2
'''
TEST = """
from simulator.pairs import Pair, total, unseen

def test_total():
    assert total([2, 3]) == 5
    assert Pair() == Pair(7, (1, 2))
    assert unseen(2)
"""

PROGRAM = """
import logging

LOG = logging.getLogger("x")


def pace(device, loud: int) -> int:
    if device.type == "cuda":
        return loud + 4
    if loud > 5:
        LOG.info("%d loud", loud + 6)
        return UserError(f"{loud + 7} is too loud.")
    return {**made(loud), "power": loud ** 3}


def spin(loud: int) -> None:
    torch.cuda._sleep(loud + 8)


if __name__ == "__main__":
    pace(None, 9)
"""


OPTION = """
def pytest_addoption(parser):
    parser.addoption("--all", action="store_true")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one module and one test, which looks away at one place."""
    for path, text in (
        ("simulator/pairs.py", MODULE), ("simulator/__init__.py", ""),
        ("tests/conftest.py", OPTION), ("tests/unit/simulator/test_pairs.py", TEST),
    ):  # fmt: skip
        file = tmp_path / "repository" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    for path in ("lab/__init__.py", "lab/mutants/__init__.py", "lab/mutants/covered.py"):
        file = tmp_path / "repository" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / path, file)
    return tmp_path / "repository"


def changes() -> dict[tuple[str, str], Fault]:
    return {fault.change(MODULE): fault for fault in faults_of("simulator/pairs.py", MODULE)}


def test_faults_are_in_code_alone() -> None:
    """Defaults are code. Annotations, decorators, texts of errors and ``strict=`` are not."""
    lines = {old for old, _ in changes()}
    assert lines == {
        "left: int | None = 7",
        "right: tuple[int, int] = (1, 2)",
        "def total(values: list[int] | None, *, start: int | None = 0) -> int | None:",
        "if values is None:",
        "for value, _ in zip(values, values, strict=True):",
        "start = start + value",
        "while value < 3:",
        "value = value + 1",
        "return value * 2",
    }
    assert not [new for _, new in changes() if "False" in new]


def test_no_fault_is_in_what_no_test_is_for() -> None:
    """What is logged, errors' texts, programs' beginnings, GPUs' code, ``**`` of a dict."""
    changed = {fault.change(PROGRAM) for fault in faults_of("api/pace.py", PROGRAM)}
    assert {old for old, _ in changed} == {
        'if device.type == "cuda":', "if loud > 5:", 'return {**made(loud), "power": loud ** 3}',
    }  # fmt: skip
    assert not [new for _, new in changed if "{*made" in new]


def test_kinds_of_faults() -> None:
    found = {new for old, new in changes() if old == "while value < 3:"}
    assert found == {
        "while value <= 3:", "while value >= 3:", "while not value < 3:",
        "while value < 4:", "while value < 2:",
    }  # fmt: skip


def declarations(tree: ast.AST) -> Iterator[ast.expr]:
    """Annotations and decorators of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from node.decorator_list
        for name in ("annotation", "returns"):
            if isinstance(found := getattr(node, name, None), ast.expr):
                yield found


def test_no_fault_of_the_repository_is_in_an_annotation_or_a_decorator() -> None:
    texts = {path: text for path, text in sources(REPOSITORY).items() if "search/" in path}
    for path, text in texts.items():
        places = {(fault.line, fault.column) for fault in faults_of(path, text)}
        for node in declarations(ast.parse(text)):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            end = node.end_lineno, node.end_col_offset
            assert not [at for at in places if (node.lineno, node.col_offset) <= at < end], path


def test_each_area_has_code_and_tests() -> None:
    assert {area_of(path) for path in sources(REPOSITORY)} == {*AREAS} == {*TESTS}
    for folder in MUTATED:
        assert [*(REPOSITORY / folder).rglob("*.py")]
    for area, parts in TESTS.items():
        for part in parts:
            assert [*REPOSITORY.glob(f"tests/{part}"), *REPOSITORY.glob(f"tests/*/{part}")], part
        assert area_tests(REPOSITORY, area)
    for file in TOLD["gpu_files"]:
        assert (REPOSITORY / file).is_file()


def test_areas_get_equal_shares() -> None:
    texts = {f"{folders[0]}/module.py": MODULE for folders in AREAS.values()}
    texts |= {f"simulator/{name}.py": MODULE for name in "abcdef"}
    chosen = sample(texts, 3 * len(AREAS), 0)
    assert set(Counter(area_of(fault.path) for fault in chosen).values()) == {3}
    assert {area_of(fault.path) for fault in chosen[: len(AREAS)]} == {*AREAS}


def test_a_seed_chooses_the_same_faults_and_each_place_once() -> None:
    texts = {path: text for path, text in sources(REPOSITORY).items() if "schedules/" in path}
    chosen = sample(texts, 30, 3)
    assert chosen == sample(texts, 30, 3)
    assert chosen != sample(texts, 30, 4)
    assert len({(fault.path, fault.line, fault.column) for fault in chosen}) == 30
    for fault in chosen[:10]:
        assert fault.change(texts[fault.path])[0] in " ".join(texts[fault.path].split())


def test_a_fault_is_noticed_or_not(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "STUCK_CPU_S", 6)
    tree = Tree(repository, tmp_path / "copy", {})
    found = changes()
    test = "tests/unit/simulator/test_pairs.py::test_total"
    for new, most_cpu_s, fate in (
        ("start = start - value", 60, ("noticed", test)),
        ("return value * 3", 60, ("survived", "")),
        ("value = value - 1", 60, ("noticed", test)),  # it never ends
    ):
        fault = next(fault for (_, line), fault in found.items() if line == new)
        assert tree.judge(fault, most_cpu_s) == fate
    unseen = next(fault for (_, line), fault in found.items() if line == "return value * 3")
    assert tree.judge(unseen, 0)[0] == "unjudged"
    assert (repository / "simulator/pairs.py").read_text("utf-8") == MODULE
    assert (tree.root / "simulator/pairs.py").read_text("utf-8") == MODULE
    assert tree.broken() == []


def test_tests_that_run_a_line_come_first(repository: Path, tmp_path: Path) -> None:
    """Also where its module's tests come before, and they take long."""
    tests = repository / "tests/unit/simulator"
    for name in ("test_a", "test_b"):
        (tests / f"{name}.py").write_text(
            f"import simulator.pairs\ndef {name}(): assert simulator.pairs.unseen(1) == 6\n"
        )
    (tests / "test_c.py").write_text("import simulator.pairs\ndef test_c(): pass\n")
    tree = Tree(repository, tmp_path / "copy", {})
    files = [f"tests/unit/simulator/test_{name}.py" for name in ("a", "b", "c", "pairs")]
    tree.trace(files, tmp_path / "trace" / "0")
    covering = Covering.of([tmp_path / "trace" / "0"])
    for line, tests_of_it in (
        ("    return value * 2", 3), ("        start = start + value", 1), ("    left: int", 0),
    ):  # fmt: skip
        number = next(at for at, text in enumerate(MODULE.splitlines(), 1) if text.startswith(line))
        assert len(covering.tests("simulator/pairs.py", MODULE, number)) == tests_of_it, line
    tree.covering = covering
    (tree.root / "tests/unit/simulator/test_pairs.py").write_text("def test(): 1 / 0\n")
    changed = changes()["return value * 2", "return value * 3"]
    assert tree.judge(changed, 60)[1].endswith(("::test_a", "::test_b"))


def test_what_processes_run_that_tests_start_belongs_to_the_tests_file(
    repository: Path, tmp_path: Path
) -> None:
    """Also where they end at once, as ranks do."""
    tests = repository / "tests/unit/simulator"
    for name, ending in (("a", ""), ("b", "; import os; os._exit(0)")):
        program = f"import simulator.pairs; simulator.pairs.unseen(1){ending}"
        (tests / f"test_{name}.py").write_text(
            f"import subprocess, sys\ndef test():\n"
            f"    subprocess.run([sys.executable, '-c', {program!r}], check=True)\n"
        )
    tree = Tree(repository, tmp_path / "copy", {})
    files = [f"tests/unit/simulator/test_{name}.py" for name in ("a", "b", "pairs")]
    tree.trace(files, tmp_path / "trace")
    number = next(at for at, text in enumerate(MODULE.splitlines(), 1) if "value * 2" in text)
    where = "simulator/pairs.py", MODULE, number
    covering = Covering.of([tmp_path / "trace"])
    assert covering.tests(*where) == ["tests/unit/simulator/test_pairs.py::test_total"]
    assert covering.first(["tests/unit/c.py", *files], *where) == [*files, "tests/unit/c.py"]


def test_statements() -> None:
    lines = "def f(\n    a=1,\n):\n    if a:\n        b = (1,\n          2)\n    return b\n"
    assert [statement_lines(lines, line) for line in range(1, 8)] == [
        range(1, 4), range(1, 4), range(1, 4), range(4, 5), range(5, 7), range(5, 7), range(7, 8),
    ]  # fmt: skip


def test_a_test_that_fails_without_a_fault_notices_none(repository: Path, tmp_path: Path) -> None:
    """Nor does a file that cannot be imported, or a test that fails now and then."""
    tests = repository / "tests/unit/simulator"
    (tests / "test_pairs.py").write_text(f"{TEST}def test_broken(): assert 0")
    (tests / "test_pairs_again.py").write_text("import nothing_of_this_name")
    now_and_then = tmp_path / "now_and_then"
    (tests / "test_pairs_once.py").write_text(
        f"from pathlib import Path\nSEEN = Path({str(now_and_then)!r})\n"
        "def test():\n    seen = SEEN.exists()\n    SEEN.touch()\n    assert seen"
    )
    tree = Tree(repository, tmp_path / "copy", {})
    assert tree.judge(changes()["return value * 2", "return value * 3"], 60) == ("survived", "")
    assert tree.broken() == [
        "tests/unit/simulator/test_pairs.py::test_broken",
        "tests/unit/simulator/test_pairs_again.py",
    ]
    assert now_and_then.exists()


def test_programs_of_a_tree_run_its_code_and_end_with_its_tests(
    repository: Path, tmp_path: Path
) -> None:
    """Whatever their environment and folder, though another tree is installed."""
    tree = Tree(repository, tmp_path / "copy", {})
    shown = subprocess.run(
        [tree.python, "-c", "import simulator, pytest; print(simulator.__file__)"],
        cwd="/", env={}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout.strip() == str(tree.root / "simulator/__init__.py")
    (tree.root / "tests/unit/simulator/test_pairs.py").write_text(
        "import subprocess, sys\ndef test(tmp_path):\n    subprocess.Popen([sys.executable, '-c', "
        "'input()'], stdin=subprocess.PIPE, start_new_session=True)"
    )
    assert tree.run("simulator", ["tests/unit/simulator/test_pairs.py"], 60).how == "passed"
    assert not [*tree._processes()]


def test_tests_with_the_modules_name_come_first() -> None:
    nearest, others = ordered_tests(REPOSITORY, "simulator/lookup/gemm.py")
    assert nearest[0].endswith("simulator/lookup/test_gemm.py")
    assert [file for file in others if file.endswith("simulator/test_engines.py")]
    assert not set(nearest) & set(others)
    assert {*area_tests(REPOSITORY, "simulator")} <= {*nearest, *others}


def test_tests_of_another_area_are_near_where_they_import_a_file() -> None:
    """layouts.py is tested through its verb, too; tests of its own area come first."""
    nearest, others = ordered_tests(REPOSITORY, "domino_tune/search/layouts.py")
    assert nearest[0] == "tests/unit/domino_tune/search/test_layouts.py"
    assert "tests/unit/domino_tune/verbs/test_layouts.py" in nearest
    assert {*others} <= {*area_tests(REPOSITORY, "search")}


def test_tests_that_reach_a_file_through_their_own_modules_are_near(tmp_path: Path) -> None:
    """A conftest.py is one, and so is a module that is started as a program."""
    for path, text in (
        ("domino_tune/runtime/far.py", ""),
        ("domino_tune/runtime/user.py", "from domino_tune.runtime import far"),
        ("tests/real/domino_tune/runtime/conftest.py", "RUN = 'tests.ranks'"),
        ("tests/ranks.py", "from domino_tune.runtime.far import Far"),
        ("tests/real/domino_tune/runtime/test_ranks.py", "from tests.ranks import Rank"),
        ("tests/real/domino_tune/runtime/test_played.py", ""),
        ("tests/unit/domino_tune/runtime/test_a.py", ""),
        ("tests/unit/domino_tune/runtime/test_b.py", "import domino_tune.runtime.user"),
        ("tests/long/domino_tune/runtime/test_far.py", "import domino_tune.runtime.far"),
    ):  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    nearest, others = ordered_tests(tmp_path, "domino_tune/runtime/far.py")
    names = [[Path(file).name for file in files] for files in (nearest, others)]
    assert names == [["test_ranks.py", "test_played.py"], ["test_b.py", "test_a.py"]]
    assert "long" not in TOLD["rings"]


def test_the_script_prints_a_verdict(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(script, "REPOSITORY", repository)
    monkeypatch.setattr(trees, "STUCK_CPU_S", 6)
    for new in ("return value + 2", "return value / 2"):
        change = "simulator/pairs.py", "return value * 2", new
        monkeypatch.setitem(EQUIVALENT, change, "a test")
    out = tmp_path / "mutants.md"
    assert script.main(["--count", "4", "--jobs", "2", "--out", str(out), "simulator"]) == 1
    printed = capsys.readouterr().out
    assert "equivalent: a test" in printed or "survived" in printed
    assert "4 faults, seed 0" in printed
    assert "MISS" in printed
    written = out.read_text("utf-8")
    assert "| area | noticed | survived | unjudged | equivalent | noticed, of all |" in written
    assert "after 300 s of CPU time" in written
    (repository / "tests/unit/simulator/test_pairs.py").write_text("def test(): assert 0")
    assert script.main(["--count", "3", "--jobs", "1"]) == 1
    assert "test_pairs.py::test fails without any fault" in capsys.readouterr().out


def test_where_no_code_is_the_script_says_so(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "REPOSITORY", repository)
    with pytest.raises(SystemExit, match="2"):
        script.main(["lab"])
    assert "name code of simulator or domino_tune/search or" in capsys.readouterr().err


def test_equivalent_faults_exist_and_have_a_reason() -> None:
    texts = sources(REPOSITORY)
    for (path, old, new), reason in EQUIVALENT.items():
        lines = texts[path].splitlines()
        on_line = [f for f in faults_of(path, texts[path]) if lines[f.line - 1].strip() in old]
        found = {fault.change(texts[path]) for fault in on_line}
        assert (old, new) in found, f"{path} has no such fault any more: {old}"
        assert reason
