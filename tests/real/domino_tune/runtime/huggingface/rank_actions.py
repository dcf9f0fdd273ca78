"""What each rank does with the actions of users, and what it says of each."""

from __future__ import annotations

from pathlib import Path

import torch

from domino_tune.base.errors import RunError
from simulator.errors import InputError
from tests.real.domino_tune.runtime.huggingface.actions import ACTIONS, Given


def acted(rank: int, folder: Path, *names: str) -> dict[str, tuple[bool, str]]:
    """Return, by the action's name, whether it ran or was refused in words, and what it said."""
    found = {}
    for name in names or ACTIONS:
        torch.manual_seed(0)
        wanted = ACTIONS[name].refused
        try:
            ACTIONS[name].act(Given(rank=rank, folder=folder))
            found[name] = (not wanted, "ran")
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            refused = isinstance(error, InputError | RunError | ValueError)
            found[name] = (bool(wanted) and refused and wanted in said, said)
    return found
