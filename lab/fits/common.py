"""Records, rounding and errors for all fits."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def rounded(value: float, digits: int = 4) -> float:
    """Return ``value`` with the digits that noisy timings justify, equal on every machine."""
    return float(f"{value:.{digits}g}")


def mape(predicted: Floats, measured: Floats) -> float:
    """Return the mean of |predicted/measured − 1|."""
    return float(np.mean(np.abs(predicted / measured - 1.0)))


def records(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file, gzipped or not, without those that only record an
    error."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    return [record for record in found if "error" not in record]
