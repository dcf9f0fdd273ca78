"""Fit the bundled profiles from published tables: ``python -m domino_tune.measure.fit_bundled``.

The same tables give the same bytes. Only fitted numbers are kept, never the tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from domino_tune.measure.bundled_a100 import a100_profile
from domino_tune.measure.bundled_h100 import h100_profile
from domino_tune.store.profiles import save_profile

BUILDERS = {"h100-dgx": h100_profile, "a100-sxm": a100_profile}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write one JSON file a bundled profile into ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=Path, required=True, help="folder of the published tables")
    parser.add_argument("--out", type=Path, default=Path("profiles"), help="folder to write into")
    parser.add_argument("--only", choices=sorted(BUILDERS), help="fit this profile alone")
    given = parser.parse_args(arguments)
    for name, build in BUILDERS.items():
        if given.only in (None, name):
            save_profile(build(given.facts), given.out / f"{name}.json")


if __name__ == "__main__":
    main()
