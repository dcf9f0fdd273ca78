"""The bundled profiles are what the fitting program makes of the published tables."""

from __future__ import annotations

from pathlib import Path

import pytest

import profiles
from domino_tune.measure.fits.__main__ import main
from domino_tune.measure.fits.unshipped import fit_unshipped
from tests.conftest import DATA


@pytest.mark.thorough
def test_the_same_tables_give_the_same_bytes(tmp_path: Path) -> None:
    measurements = DATA.parent / "measurements"
    main(["--data", str(DATA), "--measurements", str(measurements), "--out", str(tmp_path)])
    bundled = Path(profiles.__file__).parent
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["a100-sxm.json", "b200-sxm.json", "h100-dgx.json", "h200-sxm.json"]
    for name in made:
        assert (tmp_path / name).read_bytes() == (bundled / name).read_bytes(), name


@pytest.mark.facts
def test_numbers_of_tables_that_are_not_held_are_what_the_tables_give(
    facts_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "measured").symlink_to(DATA / "measured")
    (tmp_path / "fitted").mkdir()
    fit_unshipped(facts_dir, tmp_path)
    held = sorted((DATA / "fitted").iterdir())
    assert len(held) == 3
    for path in held:
        assert (tmp_path / "fitted" / path.name).read_bytes() == path.read_bytes()
