"""Areas of the code that get faults, and the tests that should notice them, the nearest first:
those that import a file, at once or through other modules."""

from __future__ import annotations

import ast
import heapq
import math
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from lab import told

TOLD: Final[dict[str, Any]] = told(__file__)
AREAS: Final[dict[str, list[str]]] = {name: one["code"] for name, one in TOLD["areas"].items()}
TESTS: Final[dict[str, list[str]]] = {name: one["tests"] for name, one in TOLD["areas"].items()}
ALL_CASES: Final = tuple(name for name, one in TOLD["areas"].items() if one["all_cases"])
MUTATED: Final = tuple(folder for folders in AREAS.values() for folder in folders)
EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    (one["path"], one["old"], one["new"]): one["why"] for one in TOLD["equivalent"]
}
"""The reason, by file, line without the fault and line with it."""
CODE: Final = ("api", "domino_tune", "lab", "profiles", "simulator", "tests")
CONFTEST_STEP: Final = 10
"""A conftest.py may serve each test of its folder; a test that imports for itself is nearer."""
PRODUCT_STEP: Final = 100
"""One step through a module of the product is further than any path through the tests' own."""
Importers = dict[str, list[tuple[str, int]]]  # By path: who imports it, and how long a step that is


def area_of(path: str) -> str:
    """Return the area of a file of MUTATED."""
    return next(
        area for area, folders in AREAS.items()
        if any(Path(path).is_relative_to(folder) for folder in folders)
    )  # fmt: skip


def sources(root: Path) -> dict[str, str]:
    """Return the text of each file that may get a fault, by its path under ``root``."""
    files = (path for folder in MUTATED for path in sorted((root / folder).rglob("*.py")))
    texts = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in files}
    return {path: text for path, text in texts.items() if path not in TOLD["gpu_files"]}


def area_tests(root: Path, area: str) -> list[str]:
    """Return the paths of an area's test files under ``root``, in each ring that has them."""
    rings = (root / "tests" / ring for ring in TOLD["rings"])
    return _tests(
        root, *(path for ring in rings for part in TESTS[area] for path in ring.glob(part))
    )


def _tests(root: Path, *places: Path) -> list[str]:
    files = {
        file for place in places
        for file in (place.rglob("test_*.py") if place.is_dir() else (place,))
    }  # fmt: skip
    return sorted(file.relative_to(root).as_posix() for file in files)


def ordered_tests(root: Path, path: str) -> tuple[list[str], list[str]]:
    """Return the tests that should notice a file's faults: those that have its name or import it,
    perhaps through the tests' own modules, then the others of its area. The nearest of each come
    first. Of other areas' tests those of the unit ring alone count, where they are near."""
    name = Path(path).parent.name if path.endswith("/__init__.py") else Path(path).stem
    steps, of_area = _steps(importers(root), path), area_tests(root, area_of(path))
    nearest: list[tuple[bool, bool, float, str]] = []
    others: list[tuple[float, str]] = []
    for file in {*of_area, *_tests(root, root / "tests/unit")}:
        has_name = Path(file).stem.startswith(f"test_{name}")
        far = steps.get(file, math.inf)
        if far < PRODUCT_STEP or (has_name and (far < math.inf or file in of_area)):
            nearest.append((not has_name, file not in of_area, far, file))
        elif file in of_area:
            others.append((far, file))
    return [file for *_, file in sorted(nearest)], [file for _, file in sorted(others)]


def _steps(importers: Importers, path: str) -> dict[str, int]:
    found, ahead = dict[str, int](), [(0, path)]
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
    files = [file.relative_to(root) for one in CODE for file in sorted((root / one).rglob("*.py"))]
    places = {
        ".".join(file.with_suffix("").parts).removesuffix(".__init__"): file.as_posix()
        for file in files
    }
    found: Importers = defaultdict(list)
    for path in places.values():
        step = 1 if path.startswith("tests/") else PRODUCT_STEP
        for module in _named(ast.parse((root / path).read_text("utf-8"))):
            if module in places:
                found[places[module]].append((path, step))
        if Path(path).name.startswith("test_"):
            for folder in Path(path).parents:
                found[f"{folder}/conftest.py"].append((path, CONFTEST_STEP))
    return found


def _named(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a file imports or may name in a text, as it does to start one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{each.name}" for each in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module = node.value.partition(":")[0]
            yield from (module, f"{module}.__main__")
