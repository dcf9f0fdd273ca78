"""Fault: one small change of one line of code, made by an operator of cosmic-ray."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

MUTATED: Final = ("simulator", "domino_tune/search")
"""Folders whose code gets faults."""

BINARY: Final = (
    "Add_Sub", "Sub_Add", "Mul_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul",
)  # fmt: skip
COMPARISONS: Final = (
    "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
    "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is",
)  # fmt: skip
OPERATORS: Final = (
    *(f"core/ReplaceBinaryOperator_{each}" for each in BINARY),
    *(f"core/ReplaceComparisonOperator_{each}" for each in COMPARISONS),
    "core/ReplaceUnaryOperator_Delete_Not", "core/ReplaceUnaryOperator_Delete_USub",
    "core/AddNot", "core/ReplaceAndWithOr", "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse", "core/ReplaceFalseWithTrue", "core/NumberReplacer",
    "core/ReplaceBreakWithContinue", "core/ReplaceContinueWithBreak", "core/ZeroIterationForLoop",
)  # fmt: skip
"""Operators of cosmic-ray, without those that types forbid: ``//`` to ``/``, ``+`` to ``&``."""


@dataclass(frozen=True, order=True, kw_only=True)
class Fault:
    """An operator's change of a file; ``occurrence`` counts the places where it fits, from 0."""

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
        """Return the changed lines of ``source`` without and with the fault, joined to one."""
        old, new = source.splitlines(), self.applied(source).splitlines()
        while old and new and old[0] == new[0]:
            del old[0], new[0]
        while old and new and old[-1] == new[-1]:
            del old[-1], new[-1]
        return " ".join(map(str.strip, old)), " ".join(map(str.strip, new))


def faults_of(path: str, source: str) -> list[Fault]:
    """Return all faults of a file, by place."""
    nodes = list(ast_nodes(get_ast(source)))
    return sorted(fault for name in OPERATORS for fault in _of_operator(path, nodes, name))


def _of_operator(path: str, nodes: Sequence[Any], name: str) -> Iterator[Fault]:
    operator, occurrence = get_operator(name)(), 0
    for node in nodes:
        for (line, column), _ in operator.mutation_positions(node):
            if not is_left_out(node):
                yield Fault(path=path, line=line, column=column, operator=name,
                            occurrence=occurrence)  # fmt: skip
            occurrence += 1


def is_left_out(node: Any) -> bool:
    """Return whether a node of parso's tree is no code that a test could notice.

    Annotations, decorators and the ``*`` of parameters are declarations, which mypy checks. The
    text of an error is for people. ``strict=`` of zip is an assertion.
    """
    inside = set()
    if node.parent is not None and node.parent.type == "parameters":
        return True
    while (parent := node.parent) is not None:
        inside.add(parent.type)
        if parent.type == "decorator" or _is_annotation(node, parent) or _is_strict(parent):
            return True
        node = parent
    return {"raise_stmt", "fstring"} <= inside


def _is_annotation(node: Any, parent: Any) -> bool:
    """Return whether ``node`` is what stands behind ``:`` or ``->`` of a name or a function."""
    before = parent.children[parent.children.index(node) - 1]
    if parent.type in ("annassign", "tfpdef"):
        return node is not parent.children[0] and getattr(before, "value", "") == ":"
    return parent.type == "funcdef" and getattr(before, "value", "") == "->"


def _is_strict(parent: Any) -> bool:
    return parent.type == "argument" and getattr(parent.children[0], "value", "") == "strict"


def sources(root: Path) -> dict[str, str]:
    """Return the text of each file that may get a fault, by its path under ``root``."""
    files = (path for folder in MUTATED for path in sorted((root / folder).rglob("*.py")))
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in files}


def sample(texts: dict[str, str], count: int, seed: int) -> list[Fault]:
    """Return ``count`` random faults, at most one for each place, the same for the same seed."""
    places: dict[tuple[str, int, int], list[Fault]] = defaultdict(list)
    for path, text in texts.items():
        for fault in faults_of(path, text):
            places[path, fault.line, fault.column].append(fault)
    rng = random.Random(seed)
    chosen = rng.sample(sorted(places), min(count, len(places)))
    return [rng.choice(places[place]) for place in chosen]
