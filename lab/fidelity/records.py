"""Records: measurements, in a file with the inputs that they were made for.

A second run uses what the files hold, and measures only the rest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from domino_tune.base.tables import print_line
from domino_tune.store.files import write_whole
from domino_tune.store.parsing import parse
from lab.fidelity.scores import Setting
from simulator.errors import InputError


def kept(
    path: Path, inputs: Mapping[str, Any], measure: Callable[[], Any], what: str
) -> dict[str, Any]:
    """Return the result in a file as plain data. If the file does not exist, measure and write it;
    print ``what`` is measured.

    Raise InputError if the file has other inputs.
    """
    if not path.exists():
        print_line(f"{what} ...", sys.stderr)
        result = asdict(measure())
        write_whole(path, json.dumps({"inputs": inputs, "result": result}, indent=1) + "\n")
    record, wanted = json.loads(path.read_text()), json.loads(json.dumps(inputs))
    if record["inputs"] != wanted:
        differing = sorted(name for name in wanted if record["inputs"].get(name) != wanted[name])
        raise InputError(
            f"{path} was measured with another {', '.join(differing)}. Remove it, or give another "
            "--folder."
        )
    found: dict[str, Any] = record["result"]
    return found


def setting_from(plain: Mapping[str, Any]) -> Setting:
    """Return the setting from the JSON of its ``asdict``."""
    return parse(Setting, plain, source="a setting", error=InputError)
