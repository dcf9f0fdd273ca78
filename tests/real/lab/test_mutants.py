"""Faults are put where code is, the same ones for a seed, and tests notice them or do not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.mutants import __main__ as script
from lab.mutants.equivalents import EQUIVALENT
from lab.mutants.faults import MUTATED, Fault, faults_of, sample, sources
from lab.mutants.trees import Tree, ordered_tests

REPOSITORY = Path(__file__).resolve().parents[2]
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

OPTION = """
def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one module and one test, which looks away at one place."""
    for path, text in (
        ("simulator/pairs.py", MODULE), ("simulator/__init__.py", ""),
        ("domino_tune/search/__init__.py", ""), ("tests/contracts/test_none.py", "def test(): 0"),
        ("tests/simulator/test_pairs.py", TEST), ("tests/conftest.py", OPTION),
    ):  # fmt: skip
        file = tmp_path / "repository" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
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
    texts = sources(REPOSITORY)
    assert {path.rpartition("/")[0] for path in texts} >= set(MUTATED)
    for path, text in texts.items():
        places = {(fault.line, fault.column) for fault in faults_of(path, text)}
        for node in declarations(ast.parse(text)):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            end = node.end_lineno, node.end_col_offset
            assert not [at for at in places if (node.lineno, node.col_offset) <= at < end], path


def test_a_seed_chooses_the_same_faults_and_each_place_once() -> None:
    texts = {path: text for path, text in sources(REPOSITORY).items() if "schedules/" in path}
    chosen = sample(texts, 30, 3)
    assert chosen == sample(texts, 30, 3)
    assert chosen != sample(texts, 30, 4)
    assert len({(fault.path, fault.line, fault.column) for fault in chosen}) == 30
    for fault in chosen[:10]:
        assert fault.change(texts[fault.path])[0] in " ".join(texts[fault.path].split())


def test_a_fault_is_noticed_or_not(repository: Path, tmp_path: Path) -> None:
    tree = Tree(repository, tmp_path / "copy")
    found = changes()
    for new, noticed in (
        ("start = start - value", True), ("return value * 3", False),
        ("value = value - 1", True),  # it never ends
    ):  # fmt: skip
        fault = next(fault for (_, line), fault in found.items() if line == new)
        assert tree.is_noticed(fault, 2) is noticed
    assert (repository / "simulator/pairs.py").read_text("utf-8") == MODULE
    assert (tree.root / "simulator/pairs.py").read_text("utf-8") == MODULE


def test_tests_with_the_modules_name_come_first() -> None:
    nearest, others = ordered_tests(REPOSITORY, "simulator/lookup/gemm.py")
    assert nearest[0] == "tests/unit/simulator/lookup/test_gemm.py"
    assert "tests/unit/simulator/test_engines.py" in others
    assert not set(nearest) & set(others)


def test_the_script_prints_a_verdict(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "REPOSITORY", repository)
    for new in ("return value + 2", "return value / 2"):
        change = "simulator/pairs.py", "return value * 2", new
        monkeypatch.setitem(EQUIVALENT, change, "a test")
    assert script.main(["--count", "6", "--jobs", "2", "simulator"]) == 1
    printed = capsys.readouterr().out
    assert "equivalent: a test" in printed or "survived" in printed
    assert "6 faults, seed 0" in printed
    assert "MISS" in printed
    (repository / "tests/simulator/test_pairs.py").write_text("def test(): assert 0")
    with pytest.raises(RuntimeError, match="fail without any fault"):
        script.main(["--count", "1"])


def test_where_no_code_is_the_script_says_so(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "REPOSITORY", repository)
    with pytest.raises(SystemExit, match="2"):
        script.main(["api"])
    assert "name code of simulator or domino_tune/search" in capsys.readouterr().err


def test_equivalent_faults_exist_and_have_a_reason() -> None:
    texts = sources(REPOSITORY)
    for (path, old, new), reason in EQUIVALENT.items():
        lines = texts[path].splitlines()
        on_line = [f for f in faults_of(path, texts[path]) if lines[f.line - 1].strip() in old]
        found = {fault.change(texts[path]) for fault in on_line}
        assert (old, new) in found, f"{path} has no such fault any more: {old}"
        assert reason
