"""Faults, areas of the code that get them, and the tests that should notice them, the nearest
first: those that import a file, at once or through other modules."""

from __future__ import annotations

import ast
import heapq
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

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
    found = (path for ring in rings for part in TESTS[area] for path in ring.glob(part))
    return _tests(root, *found)


def _tests(root: Path, *places: Path) -> list[str]:
    files = {
        file for place in places
        for file in (place.rglob("test_*.py") if place.is_dir() else (place,))
    }  # fmt: skip
    return sorted(file.relative_to(root).as_posix() for file in files)


def unit_tests(root: Path) -> list[str]:
    """Return the paths of the unit ring's test files under ``root``."""
    return _tests(root, root / "tests/unit")


def traced_tests(root: Path) -> list[str]:
    """Return the unit ring's and all areas' test files under ``root``, each once."""
    return sorted({*unit_tests(root), *(file for area in TESTS for file in area_tests(root, area))})


def ordered_tests(root: Path, path: str) -> tuple[list[str], list[str]]:
    """Return the tests that should notice a file's faults: those that have its name or import it,
    perhaps through the tests' own modules, then the others of its area. The nearest of each come
    first. Of other areas' tests those of the unit ring alone count, where they are near."""
    name = Path(path).parent.name if path.endswith("/__init__.py") else Path(path).stem
    steps, of_area = _steps(importers(root), path), area_tests(root, area_of(path))
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


# Faults: each a small change of one line of code, made by an operator of cosmic-ray ---------------

OPERATORS: Final = tuple(f"core/{each}" for each in TOLD["operators"])
"""Operators of cosmic-ray, without those that types forbid: ``//`` to ``/``, ``+`` to ``&``."""
LOGGING: Final = ("debug", "info", "warning", "error", "exception")
ON_GPU: Final = re.compile(r"torch\.cuda\.(?!device_count)|device='cuda'")
ASKS_FOR_GPU: Final = re.compile(r"[!=]= 'cuda'|\bis_cuda\b")


@dataclass(frozen=True, order=True, kw_only=True)
class Fault:
    """An operator's change of a file; ``occurrence`` counts the places where it applies, from 0."""

    path: str
    line: int
    column: int
    operator: str
    occurrence: int

    def applied(self, source: str) -> str:
        """Return the text of the file with the fault. Raise ValueError for another file's text."""
        made: str | None = mutate_code(source, get_operator(self.operator)(), self.occurrence)
        if made is None:
            raise ValueError(f"{self.operator} has no place {self.occurrence} in {self.path}.")
        return made

    def change(self, source: str) -> tuple[str, str]:
        """Return the changed lines of ``source`` without and with the fault, joined into one."""
        old, new = source.splitlines(), self.applied(source).splitlines()
        while old and new and old[0] == new[0]:
            del old[0], new[0]
        while old and new and old[-1] == new[-1]:
            del old[-1], new[-1]
        return " ".join(map(str.strip, old)), " ".join(map(str.strip, new))


def faults_of(path: str, source: str) -> list[Fault]:
    """Return all faults of a file, by place."""
    nodes, unseen, found = list(ast_nodes(get_ast(source))), unseen_lines(source), []
    for name in OPERATORS:
        operator, occurrence = get_operator(name)(), 0
        for node in nodes:
            for (line, column), _ in operator.mutation_positions(node):
                if line not in unseen and not is_left_out(node):
                    found.append(Fault(path=path, line=line, column=column, operator=name,
                                       occurrence=occurrence))  # fmt: skip
                occurrence += 1
    return sorted(found)


def is_left_out(node: Any) -> bool:
    """Return whether a node of parso's tree is not code that a test could notice. Annotations,
    decorators and the ``*`` of parameters are declarations, which mypy checks. The text of an error
    is for people. ``strict=`` of zip is an assertion. ``**`` before a dict is not a power."""
    inside = set()
    if node.parent is not None and node.parent.type == "parameters":
        return True
    if getattr(node, "value", "") == "**" and node.parent.type != "power":
        return True
    while (parent := node.parent) is not None:
        inside.add(parent.type)
        name = getattr(parent.children[0], "value", "") if parent.type == "argument" else ""
        if parent.type == "decorator" or name == "strict" or _is_annotation(node, parent):
            return True
        node = parent
    return {"raise_stmt", "fstring"} <= inside


def _is_annotation(node: Any, parent: Any) -> bool:
    before = parent.children[parent.children.index(node) - 1]
    if parent.type in ("annassign", "tfpdef"):
        return node is not parent.children[0] and getattr(before, "value", "") == ":"
    return parent.type == "funcdef" and getattr(before, "value", "") == "->"


def unseen_lines(source: str) -> set[int]:
    """Return lines that no test covers: logging, errors' texts, programs' beginnings, GPUs'."""
    nodes = (unseen for node in ast.walk(ast.parse(source)) for unseen in _unseen(node))
    return {line for one in nodes for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)}


def _unseen(node: ast.AST) -> Sequence[ast.stmt | ast.expr]:
    match node:
        case ast.If(test=asked):
            text = ast.unparse(asked)
            if "__name__" in text:
                return [node]
            return node.body if re.search(r"[^!]= 'cuda'|^[\w.]*\bis_cuda\b", text) else ()
        case ast.FunctionDef() | ast.ClassDef():
            text = ast.unparse(node)
            return [node] if ON_GPU.search(text) and not ASKS_FOR_GPU.search(text) else ()
        case ast.Call(func=ast.Attribute(attr=name)) if name in LOGGING:
            return [node]
        case ast.Call(func=ast.Name(id=name)) if name.endswith("Error"):
            return [text for text in node.args if isinstance(text, ast.JoinedStr)]
    return ()


def sample(texts: dict[str, str], count: int, seed: int) -> list[Fault]:
    """Return ``count`` random faults, at most one for each place, the same for the same seed. Areas
    get equal shares, or as many as they have: in proportion to their code, the small ones would get
    a handful, which says nothing about their tests. Areas take turns."""
    places: dict[str, dict[tuple[str, int, int], list[Fault]]] = {}
    for path, text in texts.items():
        of_area = places.setdefault(area_of(path), defaultdict(list))
        for fault in faults_of(path, text):
            of_area[path, fault.line, fault.column].append(fault)
    rng, chosen = random.Random(seed), []
    for of_area in places.values():
        drawn = rng.sample(sorted(of_area), min(count, len(of_area)))
        chosen.append([rng.choice(of_area[place]) for place in drawn])
    return [fault for turn in zip_longest(*chosen) for fault in turn if fault][:count]
