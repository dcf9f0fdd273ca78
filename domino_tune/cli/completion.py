"""Completion in bash, zsh and fish: answers what the shell asks while a user types a command.

A shell asks by running the program with ``_DOMINO_TUNE_COMPLETE`` in its environment, at every
press of Tab: nothing heavy may be imported here. Without an answer it completes names of files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import typer

PROGRAM: Final = "domino-tune"
ASKED: Final = "_DOMINO_TUNE_COMPLETE"


def _models() -> Iterable[str]:
    from simulator.presets import MODELS

    return MODELS


def _profiles() -> Iterable[str]:
    from domino_tune.store.files import bundled_names, user_names

    return {*bundled_names(), *user_names()}


NAMES: Final[dict[str, Callable[[], Iterable[str]]]] = {
    "model": _models,
    "for_model": _models,
    "profile": _profiles,
    "into": _profiles,
    "first": _profiles,
    "second": _profiles,
}
"""Field of a request -> the names that it takes."""


def completer(field: str, choices: Sequence[str]) -> Callable[[str], list[str]] | None:
    """Return what completes a field's value: its choices or its names; None for anything else."""
    names = NAMES.get(field)
    if not (choices or names):
        return None

    def complete(incomplete: str) -> list[str]:
        known = choices or sorted(names() if names else ())
        return [name for name in known if name.startswith(incomplete)]

    return complete


def answer(app: typer.Typer) -> int:
    """Print the answer to the shell's question; return the exit code that it expects."""
    try:
        app([], prog_name=PROGRAM, standalone_mode=False)
    except SystemExit as end:
        sys.stdout.flush()
        return end.code if isinstance(end.code, int) else 0
    return 0


def is_asked() -> bool:
    """Return whether a shell asks for completion."""
    return ASKED in os.environ
