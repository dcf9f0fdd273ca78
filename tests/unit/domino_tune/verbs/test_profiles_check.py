"""What docs/accuracy.md says of the bundled profiles is what ``profiles check`` says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from domino_tune.requests import ProfilesCheckRequest
from domino_tune.results.files import Trust
from domino_tune.store.files import bundled_names
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.verbs.profiles import profiles_check
from simulator.lookup.expected import EXPECTED
from tests.conftest import REPOSITORY


def line_of(name: str) -> str:
    """The page's line of a profile."""

    def cell(found: Trust) -> str:
        assert found.interval_ms is not None
        assumed = found.shares.get("assumed", 0.0) + found.shares.get("extrapolated", 0.0)
        return (
            f"{found.level}: {assumed:.0%} assumed; {found.interval_ms.low:,.0f} to "
            f"{found.interval_ms.high:,.0f} ms"
        )

    found = profiles_check(ProfilesCheckRequest(profile=name)).trust
    return f"| `{name}` | {' | '.join(cell(one) for one in found)} |"


@pytest.mark.parametrize("name", bundled_names())
def test_readme_says_of_a_profile_what_the_program_says(name: str) -> None:
    assert line_of(name) in (REPOSITORY / "docs" / "accuracy.md").read_text(encoding="utf-8")


def test_a_case_that_cannot_be_simulated_says_why(tmp_path: Path) -> None:
    path = tmp_path / "bare.json"
    save_profile(replace(load_profile("h100-dgx"), gemm=None), path)
    for found in profiles_check(ProfilesCheckRequest(profile=str(path))).trust:
        assert (found.level, found.interval_ms) == (None, None)
        assert "no 'gemm' section" in found.note


@pytest.mark.parametrize("name", bundled_names())
def test_what_is_assumed_is_listed(name: str) -> None:
    profile = load_profile(name)
    listed = profiles_check(ProfilesCheckRequest(profile=name)).assumptions
    texts = [f"{one.where}: {one.what}" for one in listed]
    for expected in EXPECTED:
        assert any(expected.what in text for text in texts) == (expected.kind == "assumed")
    fit = profile.section("contention").fit
    for law in fit.compute:
        said = any(text.startswith(f"contention: {law.family} beside") for text in texts)
        assert said == (law.kind == "assumed")
    assert any("two collectives on the same links: 2 times" in text for text in texts)
    launch = profile.section("launch")
    said = any("gemm 6 us" in text for text in texts)
    assert said == (launch.provenance.kind == "assumed")
    for section in ("collectives", "contention", "attention"):
        whole = any(text.startswith(f"{section}: all: ") for text in texts)
        assert whole == (profile.section(section).provenance.kind == "assumed")
