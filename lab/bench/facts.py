"""Published measurements that benchmarks compare with: those in ``data``, and the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from domino_tune.measure.importers import read_table
from domino_tune.measure.importers.imported import Imported
from lab.fits.common import Sources
from lab.verdict import SkippedError

REPOSITORY: Final = Path(__file__).resolve().parents[2]
MEASURED: Final = REPOSITORY / "data" / "measured"
SOURCES: Final = Sources(REPOSITORY / "data", REPOSITORY / "measurements")


def facts_dir() -> Path:
    """Return ``DOMINO_TUNE_FACTS``, the folder of tables that are not in the repository
    (data/NOTICE.md).

    Raise SkippedError if it is not set to a folder.
    """
    folder = os.environ.get("DOMINO_TUNE_FACTS", "")
    if not (folder and Path(folder).is_dir()):
        raise SkippedError(
            f"no facts: DOMINO_TUNE_FACTS = {folder!r} is not a folder; see data/NOTICE.md"
        )
    return Path(folder)


@cache
def read_measured(name: str, importer: str) -> Imported:
    """Read a file of ``data/measured`` with the importer that users call."""
    return read_table((MEASURED / name).read_bytes(), importer)


def errors(table: Any, rows: Iterable[Any]) -> Iterator[float]:
    """Yield |looked up / measured − 1| of each row of a section in a table of its kind."""
    for row in rows:
        yield abs(table.estimate(row.signature).duration_us / row.median_us - 1)
