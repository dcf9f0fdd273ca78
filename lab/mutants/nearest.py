"""Which tests are near a file: those that import it, at once or through other modules."""

from __future__ import annotations

import ast
import heapq
import math
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from lab.mutants.areas import area_of, area_tests, unit_tests

CODE: Final = ("api", "domino_tune", "lab", "profiles", "simulator", "tests")
TESTS_STEP: Final = 1
CONFTEST_STEP: Final = 10
"""A conftest.py may serve each test of its folder; a test that imports for itself is nearer."""
PRODUCT_STEP: Final = 100
"""One step through a module of the product is further than any path through the tests' own."""

Importers = dict[str, list[tuple[str, int]]]
"""By path: who imports it, and how long a step that is."""


def ordered_tests(root: Path, path: str) -> tuple[list[str], list[str]]:
    """Return the tests that should notice a file's faults: those that have its name or import it,
    perhaps through the tests' own modules, then the others of its area. The nearest of each come
    first. Of other areas' tests those of the unit ring alone count, where they are near."""
    name = Path(path).parent.name if path.endswith("/__init__.py") else Path(path).stem
    steps = _steps(importers(root), path)
    of_area = area_tests(root, area_of(path))
    nearest: list[tuple[bool, bool, float, str]] = []
    others: list[tuple[float, str]] = []
    for file in {*of_area, *unit_tests(root)}:
        has_name = Path(file).stem.startswith(f"test_{name}")
        far = steps.get(file, math.inf)
        if far < PRODUCT_STEP or (has_name and (far < math.inf or file in of_area)):
            nearest.append((not has_name, file not in of_area, far, file))
        elif file in of_area:
            others.append((far, file))
    return [file for *_, file in sorted(nearest)], [file for _, file in sorted(others)]


def _steps(importers: Importers, path: str) -> dict[str, int]:
    """Return how far each file is from ``path`` that imports it at all."""
    found: dict[str, int] = {}
    ahead = [(0, path)]
    while ahead:
        far, near = heapq.heappop(ahead)
        if near not in found:
            found[near] = far
            for file, step in importers.get(near, ()):
                heapq.heappush(ahead, (far + step, file))
    return found


@cache
def importers(root: Path) -> Importers:
    """Return who imports each file of the repository at ``root``, a program it starts included."""
    files = [file for folder in CODE for file in sorted((root / folder).rglob("*.py"))]
    places = {_module(file.relative_to(root)): file.relative_to(root).as_posix() for file in files}
    found: Importers = defaultdict(list)
    for path in places.values():
        step = TESTS_STEP if path.startswith("tests/") else PRODUCT_STEP
        for module in _named(ast.parse((root / path).read_text("utf-8")), places):
            found[places[module]].append((path, step))
        if Path(path).name.startswith("test_"):
            for folder in Path(path).parents:
                found[f"{folder}/conftest.py"].append((path, CONFTEST_STEP))
    return found


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _named(tree: ast.Module, modules: dict[str, str]) -> Iterator[str]:
    """Yield the modules that a file imports or names in a text, as it does to start one."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module = node.value.partition(":")[0]
            names = [module, f"{module}.__main__"]
        yield from (name for name in names if name in modules)
