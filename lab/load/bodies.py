"""Bodies of requests, as a user would write them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from domino_tune.store.profiles import dump_profile, load_profile

BUNDLED: Final = "h100-dgx"
CACHED: Final[dict[str, Any]] = {
    "model": "llama2-7b", "profile": BUNDLED, "tp": 8, "seq_length": 4096,
    "micro_batch_size": 8, "row_slices": 2, "col_slices": 1,
}  # fmt: skip
"""A simulation that is requested again and again."""
GPT3_13B: Final[dict[str, Any]] = {
    "model": "gpt3-13b", "profile": BUNDLED, "tp": 8, "seq_length": 1024,
    "micro_batch_size": 16,
}  # fmt: skip

JSON: Final = {"Content-Type": "application/json"}
ENDLESS_TRIALS: Final = 10_000
"""Trials of a tune that lasts longer than any load here."""


def what_if(number: int) -> dict[str, Any]:
    """Return a what-if of the 13B model. Each ``number`` to 1000 has another link bandwidth."""
    factor = 0.5 + (number * 37 % 1000) / 500
    return {**GPT3_13B, "row_slices": 4, "col_slices": 2, "change": [f"link_bandwidth={factor}x"]}


def tune(seed: int, trials: int) -> dict[str, Any]:
    """Return a random search of ``trials`` plans. Each ``seed`` is another search."""
    return {"kind": "tune", **GPT3_13B, "search": "random", "trials": trials, "seed": seed}


def sweep(number: int) -> dict[str, Any]:
    """Return a sweep over four link bandwidths."""
    factors = ",".join(f"{0.5 + step / 4 + number % 100 / 1000:g}x" for step in range(4))
    return {"kind": "whatif", **CACHED, "sweep": f"link_bandwidth={factors}"}


def profile(name: str) -> bytes:
    """Return the file of the bundled profile under another name."""
    return dump_profile(replace(load_profile(BUNDLED), name=name))
