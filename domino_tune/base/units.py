"""Quantities as users write them, and medians of timings."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from simulator.errors import InputError

Dimension = Literal["factor", "number", "bytes", "bytes/s", "s", "flop/s", "W"]
_NUMBER: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*(\S*)\s*")
_PREFIXES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_BINARY: Final = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}


class QuantityError(InputError):
    """A text is not a quantity."""


class Quantity(NamedTuple):
    """A value in the dimension's base unit; a ``factor`` multiplies the old value."""

    value: float
    dimension: Dimension


def _units() -> dict[str, tuple[float, Dimension]]:
    """Return every unit by its spelling. Prefixes have either case; B is bytes, b and bit bits."""
    found: dict[str, tuple[float, Dimension]] = {
        "": (1.0, "number"), "x": (1.0, "factor"), "×": (1.0, "factor"), "%": (0.01, "factor"),
        "ns": (1e-9, "s"), "us": (1e-6, "s"), "µs": (1e-6, "s"), "ms": (1e-3, "s"), "s": (1.0, "s"),
        "W": (1.0, "W"), "w": (1.0, "W"), "kW": (1e3, "W"),
    }  # fmt: skip
    for prefix, scale in {**_PREFIXES, **_BINARY}.items():
        for written in {prefix, prefix.upper(), prefix.capitalize()}:
            found[f"{written}B"] = (scale, "bytes")
            for per in ("/s", "ps"):
                found[f"{written}B{per}"] = (scale, "bytes/s")
            for bit in ("bit", "bit/s", "bps", "b/s"):
                found[f"{written}{bit}"] = (scale / 8, "bytes/s")
            for flop in ("FLOPS", "FLOP/s", "flops", "flop/s"):
                found[f"{written}{flop}"] = (scale, "flop/s")
    return found


UNITS: Final = _units()
EXAMPLES: Final[dict[Dimension, str]] = {
    "factor": "2x", "number": "16", "bytes": "80GiB", "bytes/s": "400GB/s or 1gbit", "s": "5us",
    "flop/s": "900TFLOPS", "W": "500W",
}  # fmt: skip


def rounded(value: float) -> float:
    """Return ``value`` with as many digits as noisy timings justify, the same on every machine."""
    return float(f"{value:.4g}")


def parse_quantity(name: str, text: str, allowed: tuple[Dimension, ...]) -> Quantity:
    """Return the quantity in ``text``; ``name`` begins the text of an error.

    Raise QuantityError for a text that is no finite quantity of an ``allowed`` dimension.
    """
    examples = ", ".join(EXAMPLES[dimension] for dimension in allowed)
    match = _NUMBER.fullmatch(text)
    unit = UNITS.get(match[2]) if match else None
    if match is None or unit is None or unit[1] not in allowed:
        raise QuantityError(f"{name} cannot be {text!r}; write it like {examples}.")
    value = float(match[1]) * unit[0]
    if not math.isfinite(value):
        raise QuantityError(f"{name} must be finite, got {text!r}; write it like {examples}.")
    return Quantity(value, unit[1])


def positive(name: str, text: str) -> float:
    """Return a number above 0; raise InputError for any other text."""
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,9})?(e[0-9]{1,2})?", text.strip()) or not float(
        text
    ):
        raise InputError(
            f"{name} must be a number above 0, got {text!r}; write it like 2.5 or 15e12."
        )
    return float(text)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in ``attn,moe_router``; none of an empty text."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


def moe_imbalance(name: str, text: str) -> float:
    """Return the factor of ``1.2``; raise InputError unless it is a number ≥ 1."""
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text.strip()) or float(text) < 1:
        raise InputError(f"{name} must be a number ≥ 1, got {text!r}; write it like 1.2.")
    return float(text)


def power_cap_w(name: str, text: str) -> float:
    """Return the watts of ``500W`` or ``500``; raise QuantityError unless it is a power > 0."""
    watts = parse_quantity(name, f"{text}W" if text.strip().isdigit() else text, ("W",)).value
    if not watts:
        raise QuantityError(f"{name} must be above 0, got {text!r}; write it like 500W.")
    return watts


# Medians of repeated timings ----------------------------------------------------------------------
# Confidence intervals and spread.

CONFIDENCE: Final = 0.95


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return (low, high) that holds the true median with CONFIDENCE, for any distribution.

    Uses order statistics: each timing is above the median with probability 1/2. Fewer than six
    timings give no interval of 95 %; then it is their whole range.
    """
    ordered = sorted(values)
    count = len(ordered)
    below, outside = 0, 0.0
    while below < count // 2:
        outside += math.comb(count, below) / 2**count
        if 2 * outside > 1 - CONFIDENCE:
            break
        below += 1
    rank = max(below, 1)
    return ordered[rank - 1], ordered[count - rank]


def half_spread(values: Sequence[float]) -> float:
    """Return half of the interquartile range; below four values, half of the whole range."""
    if len(values) < 4:
        return (max(values) - min(values)) / 2
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2
