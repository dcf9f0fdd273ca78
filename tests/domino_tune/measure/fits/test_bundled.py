"""The bundled profiles are what the fitting program makes of the published tables."""

from __future__ import annotations

from pathlib import Path

import pytest

import profiles
from domino_tune.measure.fits.__main__ import main


@pytest.mark.facts
@pytest.mark.parametrize("name", ["a100-sxm", "h100-dgx"])
def test_the_same_tables_give_the_same_bytes(facts_dir: Path, tmp_path: Path, name: str) -> None:
    main(["--facts", str(facts_dir), "--out", str(tmp_path), "--only", name])
    bundled = Path(profiles.__file__).parent / f"{name}.json"
    assert (tmp_path / f"{name}.json").read_bytes() == bundled.read_bytes()
