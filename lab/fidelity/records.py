"""Records: what was measured, in a file with the inputs it was measured for.

A second run takes what the files hold, and measures only the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from domino_tune.store.files import write_whole
from lab.fidelity.scores import Cell, Setting
from simulator.errors import InputError


def write_setting(path: Path, setting: Setting, inputs: Mapping[str, Any]) -> None:
    """Write a setting and its inputs."""
    write_record(path, asdict(setting), inputs)


def read_setting(path: Path, inputs: Mapping[str, Any]) -> Setting:
    """Return the setting in a file. Raise InputError where its inputs are not ``inputs``."""
    return setting_from(read_record(path, inputs))


def setting_from(plain: Mapping[str, Any]) -> Setting:
    """Return the setting that ``asdict`` made ``plain`` of, read from JSON."""
    cells = tuple(_cell(cell) for cell in plain["cells"])
    return Setting(**{**plain, "cells": cells})


def _cell(plain: Mapping[str, Any]) -> Cell:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
    }
    return Cell(**values)


def write_record(path: Path, result: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Write a result and its inputs as JSON."""
    write_whole(path, json.dumps({"inputs": inputs, "result": result}, indent=1) + "\n")


def read_record(path: Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result in a file. Raise InputError where its inputs are not ``inputs``."""
    record = json.loads(path.read_text())
    inputs = json.loads(json.dumps(inputs))
    if record["inputs"] != inputs:
        differing = sorted(name for name in inputs if record["inputs"].get(name) != inputs[name])
        raise InputError(
            f"{path} was measured with another {', '.join(differing)}. Remove it, or give another "
            "--folder."
        )
    result: dict[str, Any] = record["result"]
    return result
