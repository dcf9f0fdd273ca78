"""Fit the bundled profiles: ``python -m lab.fits``.

Of published tables, profiles hold fitted numbers; of the B200's, the rows of GEMMs, too, as 514
rows are too few for a law. Of our own measurements they hold each row. The same input gives the
same bytes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from domino_tune.store.profiles import save_profile
from lab.fits.a100 import a100_profile
from lab.fits.b200 import b200_profile
from lab.fits.common import Sources
from lab.fits.h100 import h100_profile
from lab.fits.h200 import h200_profile
from lab.fits.unshipped import fit_unshipped
from simulator.profile import Profile

GPUS: Final[dict[str, Callable[[Sources], Profile]]] = {
    "h100-dgx": h100_profile, "a100-sxm": a100_profile, "b200-sxm": b200_profile,
    "h200-sxm": h200_profile,
}  # fmt: skip
"""Name → the description of the GPU."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write one JSON file per bundled profile into ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"),
                        help="folder of the published tables")  # fmt: skip
    parser.add_argument("--measurements", type=Path, default=Path("measurements"),
                        help="folder of our own measurements")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("profiles"), help="folder to write into")
    parser.add_argument("--only", choices=["fitted", *sorted(GPUS)],
                        help="one profile, or data/fitted from DOMINO_TUNE_FACTS")  # fmt: skip
    given = parser.parse_args(arguments)
    if given.only == "fitted":
        tables = os.environ.get("DOMINO_TUNE_FACTS")
        if tables is None:
            parser.error("--only fitted needs DOMINO_TUNE_FACTS, the folder of the tables that the "
                         "repository does not hold: see data/NOTICE.md")  # fmt: skip
        fit_unshipped(Path(tables), given.data)
        return
    for name, described in GPUS.items():
        if given.only in (None, name):
            profile = described(Sources(given.data, given.measurements))
            save_profile(profile, given.out / f"{name}.json")


if __name__ == "__main__":
    main()
