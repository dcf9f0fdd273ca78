"""Parts of a framework's modules, without importing the rest of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def function_of(path: Path, name: str, names: dict[str, Any]) -> Any:
    """Return the function or class of this name, defined with ``names`` as globals."""
    code = ast.Module(body=[_definition(path, name)], type_ignores=[])
    exec(compile(code, str(path), "exec", flags=0, dont_inherit=True), names)
    return names[name]


def fields_of(path: Path, name: str) -> set[str]:
    """Return the annotated fields of a class."""
    body = _definition(path, name).body
    targets = [one.target for one in body if isinstance(one, ast.AnnAssign)]
    return {one.id for one in targets if isinstance(one, ast.Name)}


def asked_of(path: Path) -> set[str]:
    """Return the keys that the module reads from configs: ``cfg.KEY``, ``….get('KEY')``, ``'KEY' in
    …``.
    """
    return set(_asked(ast.parse(path.read_text())))


def texts_of(path: Path) -> set[str]:
    """Return the string literals of the module."""
    return {text for node in ast.walk(ast.parse(path.read_text())) for text in _text(node)}


def _asked(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and "cfg" in ast.unparse(node.value):
            yield node.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".get", ".pop")):
            yield from (text for argument in node.args[:1] for text in _text(argument))
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            yield from _text(node.left)


def _text(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _definition(path: Path, name: str) -> ast.FunctionDef | ast.ClassDef:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    raise LookupError(f"{path} defines no {name}")
