"""Settings that were played, kept in files: a run that is started again goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.fidelity.scores import Cell, Setting
from domino_tune.store.files import write_whole
from simulator.errors import InputError

ROUNDS: Final = ("first", "second", "emulated")


def keep(path: Path, setting: Setting, asked: Mapping[str, Any]) -> None:
    """Write ``setting`` and what was asked for."""
    keep_plain(path, asdict(setting), asked)


def read(path: Path, asked: Mapping[str, Any]) -> Setting:
    """A setting that was played before. Raises InputError where it was asked for otherwise."""
    setting = read_plain(path, asked)
    cells = tuple(
        Cell(**{**cell, **{name: tuple(cell[name]) for name in ROUNDS}})
        for cell in setting.pop("cells")
    )
    return Setting(**setting, cells=cells)


def keep_plain(path: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Write what was found, and what was asked for."""
    write_whole(path, json.dumps({"asked": asked, "setting": found}, indent=1) + "\n")


def read_plain(path: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was found. Raises InputError where it was asked for otherwise."""
    plain = json.loads(path.read_text())
    if plain["asked"] != asked:
        differing = sorted(name for name in asked if plain["asked"].get(name) != asked[name])
        raise InputError(
            f"{path} holds the same setting with another {', '.join(differing)}; remove it, or "
            "give another --folder."
        )
    found: dict[str, Any] = plain["setting"]
    return found
