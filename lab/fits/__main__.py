"""Fit the bundled profiles: ``python -m lab.fits``. Of published tables, profiles hold fitted
numbers; of the B200's, the rows of GEMMs, too, as 514 rows are too few for a law. Of our own
measurements they hold each row. The same input gives the same bytes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from domino_tune.store.profiles import save_profile
from lab.fits.bundled import BUNDLED
from lab.fits.common import Sources
from lab.fits.unshipped import fit_unshipped


def main(arguments: Sequence[str] | None = None) -> None:
    """Write one JSON file per bundled profile into ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"),
                        help="folder of the published tables")  # fmt: skip
    parser.add_argument("--measurements", type=Path, default=Path("measurements"),
                        help="folder of our own measurements")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("profiles"), help="folder to write into")
    parser.add_argument("--only", choices=["fitted", *sorted(BUNDLED)],
                        help="one profile, or data/fitted from DOMINO_TUNE_FACTS")  # fmt: skip
    given = parser.parse_args(arguments)
    if given.only == "fitted":
        tables = os.environ.get("DOMINO_TUNE_FACTS")
        if tables is None:
            parser.error("--only fitted needs DOMINO_TUNE_FACTS, the folder of the tables that the "
                         "repository does not hold: see data/NOTICE.md")  # fmt: skip
        fit_unshipped(Path(tables), given.data)
        return
    sources = Sources(given.data, given.measurements)
    for name, made_of in BUNDLED.items():
        if given.only in (None, name):
            save_profile(made_of(sources), given.out / f"{name}.json")


if __name__ == "__main__":
    main()
