"""The house: few entries, short chains of imports, and no circle."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from domino_tune.store.plans import SCHEMA
from tests.conftest import REPOSITORY
from tests.unit.house.imports import longest_chain, modules, rooms

MOST_ENTRIES = 14
LONGEST_CHAIN = 11


def layers() -> dict[str, int]:
    """Height of each package of domino_tune, 0 for the lowest, as import-linter enforces it."""
    text = (REPOSITORY / "pyproject.toml").read_text("utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    order = next(c["layers"] for c in contracts if c.get("containers") == ["domino_tune"])
    return {
        name: height for height, layer in enumerate(reversed(order)) for name in layer.split(" | ")
    }


def test_the_glossary_has_todays_schema_of_plan_files() -> None:
    (said,) = re.findall(
        r"\*\*plan file\*\*: [^*]* schema (\d+)",
        (REPOSITORY / "docs" / "glossary.md").read_text("utf-8"),
    )
    assert int(said) == SCHEMA


def test_domino_tune_has_few_entries() -> None:
    home = REPOSITORY / "domino_tune"
    entries = {path.name for path in home.iterdir()} - {"py.typed", "__pycache__"}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)
    assert {name.removesuffix(".py") for name in entries} - {"__init__"} == set(layers())


def test_the_longest_chain_of_imports_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    chain = longest_chain(rooms())  # raises CycleError for a circle
    with capsys.disabled():
        print(f"\n{len(chain)} rooms: {' > '.join(chain)}")
    assert len(chain) <= LONGEST_CHAIN


def test_every_package_says_what_it_is() -> None:
    """Each package's docstring says what it is and what it may import."""
    home, heights = REPOSITORY / "domino_tune", layers()
    for package in sorted(path for path in home.iterdir() if (path / "__init__.py").exists()):
        doc = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
        assert "May import" in doc, package.name
        assert package.name in heights


def test_tests_mirror_the_tree() -> None:
    """Each folder of tests mirrors one of ours, except for its own helpers."""
    ours = {path.parent.relative_to(REPOSITORY) for path in modules().values()}
    for ring in ("unit", "real", "long"):
        for part in ("api", "lab", "domino_tune", "simulator"):
            for test in (REPOSITORY / "tests" / ring / part).rglob("test_*.py"):
                tested = test.parent.relative_to(REPOSITORY / "tests" / ring)
                if tested != Path("api/hostile"):
                    assert tested in ours, tested


def test_few_class_names_stand_twice() -> None:
    """A job and its page at a server are what its API calls so, too."""
    found = Counter(
        node.name
        for package in ("api", "domino_tune", "simulator")
        for path in (REPOSITORY / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    twice = {name for name, count in found.items() if count > 1}
    assert twice <= {"Beside", "Job", "JobFields", "JobPage"}
