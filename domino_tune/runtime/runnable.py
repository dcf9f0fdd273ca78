"""What the runtime does not run, for who starts ranks to know beforehand. Needs no torch."""

from __future__ import annotations

from typing import Final

from simulator.errors import InputError
from simulator.specs import ModelSpec

FIX: Final = "use --set attention_dropout=0"


def check_runnable(model: ModelSpec, fix: str = FIX) -> None:
    """Raise InputError for a model that ranks cannot play; ``fix`` says what to do about it."""
    if model.attention_dropout:
        raise InputError(
            f"attention_dropout = {model.attention_dropout} is not run: sliced attention would "
            f"need masks that slicing does not change; {fix}."
        )
