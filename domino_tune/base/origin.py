"""Our packages: their version, and where Python finds them, since others' names may hide them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

PACKAGES: Final = ("simulator", "profiles", "api")
"""Our packages beside domino_tune; nothing of them may be imported here."""
HOME: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
"""The folder that holds domino_tune and PACKAGES."""

REMEDY: Final = (
    "A file or folder there has the name of a part of domino_tune, which cannot run without its "
    "own. Rename it, start from another folder, remove that place from PYTHONPATH, or install "
    "domino_tune in an environment of its own"
)
"""What to do about hidden packages."""


def hidden_packages(names: Iterable[str] = PACKAGES) -> list[str]:
    """Return one sentence for each of ``names`` that Python finds outside of HOME, or not at all.

    Their names are common, and Python looks first in the folder where it starts: another
    ``simulator.py`` there must not run in place of ours.
    """
    found = []
    for name in names:
        places = _places(name)
        if [os.path.realpath(place) for place in places] != [os.path.join(HOME, name)]:
            there = ", ".join(places) or "nowhere"
            found.append(f"package {name!r} comes from {there}, not from {HOME}.")
    return found


def _places(name: str) -> list[str]:
    """Return the folders, or the file, of a top-level package or module, without importing it."""
    try:
        spec = find_spec(name)
    except ValueError:  # it is imported, and was made by hand
        return ["the running program"]
    if spec is None:
        return []
    return list(spec.submodule_search_locations or [spec.origin or "Python itself"])


# The version of the program -----------------------------------------------------------------------
# Pyproject.toml states the same.

VERSION: Final = "0.1.0"
