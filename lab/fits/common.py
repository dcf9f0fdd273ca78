"""What all fits share: sources, descriptions of GPUs, rounding, errors, and least squares."""

from __future__ import annotations

import csv
import gzip
import json
import tomllib
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from simulator.errors import InputError
from simulator.lookup import Provenance
from simulator.profile import Machine, Profile

Floats = NDArray[np.float64]
Bounds = tuple[tuple[float, ...], tuple[float, ...]]
Cell = TypeVar("Cell")

CREATED: Final = "2026-11-20"  # The newest date in the sources
ASSUMED_ERROR: Final = 0.25
TRANSFER_ERROR: Final = 0.05
"""Expected error of an H200's ratio or rate on an H100: forward GEMMs of the same shape differ by
4 % on average (309 shapes, ``scripts/bench h200``)."""


class Description:
    """A description: ``gpus/NAME.toml``, a table a section, over that of the GPU ``like`` it."""

    def __init__(self, name: str) -> None:
        path = Path(__file__).parent / "gpus" / f"{name}.toml"
        told: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        like = told.pop("like", "")
        self.name = name
        self.told: dict[str, dict[str, Any]] = {**(Description(like).told if like else {}), **told}

    def words(self, section: str, error: float | None = None, **facts: object) -> Provenance:
        """Return a section's provenance, with ``facts`` in the places that its texts leave."""
        told = self.told[section]
        texts = {key: told[key].format(**facts) for key in ("source", "clock", "note")
                 if key in told}  # fmt: skip
        return Provenance(kind=told["kind"], error=told.get("error", error), **texts)


class Gpu(Description):
    """The description of a bundled profile's GPU; ``short``: its name in the tables."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.machine, self.short = Machine(**self.told["machine"]), name.partition("-")[0]

    def profile(self, **sections: Any) -> Profile:
        """Return the profile of these sections."""
        return Profile(name=self.name, created=CREATED, machine=self.machine, **sections)


class Sources(NamedTuple):
    """The folder of the published tables, and that of our own records by GPU."""

    data: Path
    measurements: Path

    def table(self, name: str) -> bytes:
        """Return a published table."""
        return (self.data / "measured" / name).read_bytes()

    def rows(self, name: str, **alike: object) -> list[Any]:
        """Return a table's rows that have these values; numbers as such, NaN where one lacks."""
        wanted = alike.items()
        rows = _rows(self.data / "measured" / name)
        return [row for row in rows if all(getattr(row, key) == value for key, value in wanted)]

    def ours(self, stage: str, gpu: str = "h200-sxm") -> list[dict[str, Any]]:
        """Return what a stage recorded on our GPU that has this profile."""
        return records(self.measurements / gpu / f"{stage}.jsonl.gz")


@cache
def _rows(path: Path) -> list[Any]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        names, *lines = csv.reader(line for line in file if not line.startswith("#"))
    made = namedtuple("made", names)  # type: ignore[misc]  # columns are the table's
    return [made(*cells) for cells in zip(*map(_typed, zip(*lines, strict=True)), strict=True)]


def _typed(cells: Sequence[str]) -> Sequence[Any]:
    with suppress(ValueError):
        return [int(cell) for cell in cells]
    with suppress(ValueError):
        return [float(cell or "nan") for cell in cells]
    return cells


def records(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file, gzipped or not, without those of errors."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    return [record for record in found if "error" not in record]


def rounded(value: float, digits: int = 4) -> float:
    """Return ``value`` with the digits that noisy timings justify, equal on every machine."""
    return float(f"{value:.{digits}g}")


def mape(predicted: Floats, measured: Floats) -> float:
    """Return the mean of |predicted/measured − 1|."""
    return float(np.mean(np.abs(predicted / measured - 1.0)))


def nonnegative(design: Floats, times: Floats, weights: Floats) -> tuple[Floats, float]:
    """Return coefficients ≥ 0 of least squares of weighted ``times``, and what is left."""
    weighted = design * weights[:, None]
    scale = weighted.max(axis=0)
    scale[scale == 0] = 1.0
    found, left = nnls(weighted / scale, times * weights)
    return np.asarray(found / scale, dtype=np.float64), float(left)


def robust(
    off: Callable[[Floats], Floats], start: tuple[float, ...], bounds: Bounds,
    *, linear_above: float, scaled: bool = False,
) -> Floats:  # fmt: skip
    """Return parameters of least ``off``, log errors, linear above a size; ``scaled`` by start."""
    found = least_squares(
        off, start, bounds=bounds, x_scale=start if scaled else 1.0, jac="3-point",
        loss="soft_l1", f_scale=linear_above, ftol=1e-14, xtol=1e-14, gtol=1e-14, max_nfev=500,
    )  # fmt: skip
    return np.asarray(found.x, dtype=np.float64)


def withheld(
    cells: Sequence[Cell],
    key: Callable[[Cell], Any],
    errors: Callable[[list[Cell], list[Cell]], Iterable[float]],
    folds: int | None = None,
) -> list[float]:
    """Return ``errors`` by fits of the others, by key or ``folds``. InputError: only one key."""
    keys = sorted({key(cell) for cell in cells})
    if len(keys) < 2:
        raise InputError(f"A law needs at least two ops of different shapes, got {keys}.")
    found: list[float] = []
    for fold in range(folds or len(keys)):
        out = set(keys[fold :: folds or len(keys)])
        mine = [cell for cell in cells if key(cell) in out]
        found += errors([cell for cell in cells if key(cell) not in out], mine)
    return found
