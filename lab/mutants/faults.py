"""Fault: one small change of one line of code, made by an operator of cosmic-ray."""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

from lab.mutants.areas import TOLD, area_of

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
    """Return whether a node of parso's tree is not code that a test could notice.

    Annotations, decorators and the ``*`` of parameters are declarations, which mypy checks. The
    text of an error is for people. ``strict=`` of zip is an assertion. ``**`` before a dict is not
    a power.
    """
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
    """Return lines that no test covers: logging, errors' texts, programs' beginnings, GPUs'
    code."""
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
    """Return ``count`` random faults, at most one for each place, the same for the same seed.

    Areas get equal shares, or as many as they have: in proportion to their code, the small ones
    would get a handful, which says nothing about their tests. Areas take turns.
    """
    places: dict[str, dict[tuple[str, int, int], list[Fault]]] = {}
    for path, text in texts.items():
        of_area = places.setdefault(area_of(path), defaultdict(list))
        for fault in faults_of(path, text):
            of_area[path, fault.line, fault.column].append(fault)
    rng, chosen = random.Random(seed), []
    for of_area in places.values():
        drawn = rng.sample(sorted(of_area), min(count, len(of_area)))
        chosen.append([rng.choice(of_area[place]) for place in drawn])
    turns = [fault for turn in zip_longest(*chosen) for fault in turn if fault]
    return turns[:count]
