"""The repository's rooms and the imports between them, read from the sources."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

from tests.conftest import REPOSITORY

ROOTS: Final = ("api", "lab", "domino_tune", "profiles", "scripts", "simulator")
SPLIT: Final = ("lab", "domino_tune", "scripts")
"""Folders whose packages and loose files are separate rooms; every other folder is one room."""


def modules() -> dict[str, Path]:
    """Return the file of every module of ours, by dotted name, without tests."""
    found = {}
    for root in ROOTS:
        for path in sorted((REPOSITORY / root).rglob("*.py")):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    """Return the room that contains a module."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] in SPLIT else 1])


def imports_of(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield each module of ``known`` that the file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                target = name if name in known else node.module
                if target in known:
                    yield target


def rooms() -> dict[str, set[str]]:
    """Return the rooms that each room imports from, except itself."""
    known, found = modules(), defaultdict[str, set[str]](set)
    for module, path in known.items():
        here = room_of(module)
        found[here] |= {room_of(target) for target in imports_of(path, known)} - {here}
    return dict(found)


def longest_chain(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the longest chain of imports. Raise CycleError if rooms import in a circle."""
    chains: dict[str, list[str]] = {}
    for room in TopologicalSorter(graph).static_order():
        below = max((chains[other] for other in graph.get(room, ())), key=len, default=[])
        chains[room] = [room, *below]
    return max(chains.values(), key=len)
