"""Tables of a GPU's records, from records that a law itself would leave: it is found again."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from domino_tune.store.profiles import load_profile
from lab.bench.gpu_records import (
    FOLDER,
    NAME,
    admission_table,
    case_of,
    clock_tables,
    copies_table,
    fitted_law,
    gpu_records,
    rows_of,
    sustained_table,
    variant_table,
)
from lab.gpu.played_plans import PLANS
from lab.verdict import SkippedError, count_verdicts
from simulator.ops import Pointwise
from simulator.power import PowerSection
from simulator.predict import played
from simulator.profile import Profile

ELASTICITY = {"gemm": 0.9, "attention": 0.8, "pointwise": 0.1}
DRAWS = {"gemm": 800.0, "attention": 900.0, "pointwise": 500.0, "collective": 120.0}
IDLE_W = 100.0


@cache
def true_law() -> PowerSection:
    """A GPU other than the profile says."""
    known = load_profile(NAME).power
    assert known is not None
    families = tuple(
        replace(
            one, draw_w=DRAWS[one.family],
            elasticity=ELASTICITY.get(one.family, one.elasticity),
        )
        for one in known.families
    )  # fmt: skip
    return replace(known, idle_w=IDLE_W, families=families)


@cache
def clock_rows() -> list[dict[str, Any]]:
    """What stage ``clocks`` would find on it."""
    law, profile = true_law(), replace(load_profile(NAME), power=true_law())
    rows: list[dict[str, Any]] = [{"case": "rest", "clock_mhz": 345.0, "power_w": IDLE_W}]
    for family in ("gemm", "attention", "pointwise"):
        share = ((law.cap_w - law.idle_w) / DRAWS[family]) ** (1 / law.exponent)
        mhz = law.boost_mhz * min(1.0, share)
        watts = law.idle_w + DRAWS[family] * (mhz / law.boost_mhz) ** law.exponent
        rows.append({"case": f"{family} alone", "clock_mhz": mhz, "power_w": watts})
    for one in PLANS:
        found = played(case_of(one, profile), one.plan)
        assert found.power is not None
        step_ms = found.totals.makespan_ns / 1e6
        rows.append(
            {
                "case": one.name, "clock_mhz": float(found.power.clock_mhz), "step_ms": step_ms,
                "power_w": found.power.energy_j / step_ms * 1e3, "step_j": found.power.energy_j,
            }
        )  # fmt: skip
    return rows


def sustained_rows() -> list[dict[str, Any]]:
    """Some layers whose clock fell, and one whose clock did not."""
    near = [{name: value + off for name, value in ELASTICITY.items()} for off in (-0.01, 0, 0.01)]
    return [{"elasticity": found} for found in (*near, {})]


def test_a_law_is_found_again() -> None:
    profile = load_profile(NAME)
    found = fitted_law(clock_rows(), sustained_rows(), profile)
    for one in true_law().families:
        again = found.family(one.family)
        assert again.draw_w == pytest.approx(one.draw_w, rel=0.02), one.family
        assert again.elasticity == pytest.approx(one.elasticity)
        assert again.kind == "fitted"
    assert (found.idle_w, found.kinds["idle_w"]) == (IDLE_W, "measured")
    assert found.exponent == true_law().exponent
    assert profile.power is not None
    assert fitted_law([], [], profile).families == profile.power.families


def test_clocks_of_withheld_plans_are_held_against_the_law() -> None:
    measured, checks = clock_tables(clock_rows(), sustained_rows(), load_profile(NAME))
    assert len(measured.rows) == 4 + len(PLANS)
    assert count_verdicts([checks]) == (2, 0)
    wrong = [
        {**row, "clock_mhz": row["clock_mhz"] * 1.1} if row["case"].startswith("llama") else row
        for row in clock_rows()
    ]
    _, checks = clock_tables(wrong, sustained_rows(), load_profile(NAME))
    assert count_verdicts([checks]) == (0, 2)


def test_times_at_a_long_runs_clock_are_told_beside_bursts() -> None:
    profile = load_profile(NAME)
    gemms = profile.section("gemm").rows[:3]
    ops = [
        {"signature": ["gemm", *row.signature], "median_us": times * row.median_us}
        for row, times in zip(gemms, (1.0, 1.2, 1.3), strict=True)
    ]
    unknown = {"signature": ["gemm", *gemms[0].signature._replace(m=7)], "median_us": 1.0}
    rows = [
        {"ops": [*ops, unknown], "clock_mhz": mhz, "elasticity": elasticity}
        for mhz, elasticity in ((1470.0, {"gemm": 0.9}), (1500.0, {}))
    ]
    table = sustained_table(rows, profile)
    assert table.rows == [("gemm", "6", "1.00", "1.20", "1.30", "0.90")]
    assert table.notes == ("Clocks: 1470 to 1500 MHz.",)


def _admission() -> dict[str, Any]:
    met = {
        "all_in_ns": 50_000.0, "end_ns": 230_000.0, "gemms_ns": [120_000.0, 100_000.0],
        "arrival": "behind",
    }  # fmt: skip
    return {
        "case": "a", "complete": True, "kind": "library", "shape": [1664, 2560, 5120], "margin": 0,
        "alone_ns": 100_000.0, "collective_ns": 150_000,
        "cells": [
            *({"ctas": ctas, "rate": rate, **met} for ctas in (4, 16) for rate in (6.0, 40.0)),
            {"ctas": 16, "rate": 40.0, **met, "arrival": "idle", "gemms_ns": []},
        ],
    }  # fmt: skip


def _copies(op: float) -> dict[str, Any]:
    cell = {"way": "within", "bytes": 1 << 20, "copy_alone_ns": 1e3, "collective_ns": 1.5e3}
    cells = [{**cell, "op_mean_ns": op}, {**cell, "op_mean_ns": None}]
    return {"case": str(op), "complete": True, "family": "gemm", "alone_ns": 100.0, "cells": cells}


def test_admission_is_told_in_shares() -> None:
    row, idle = admission_table([_admission()]).rows
    assert (idle[4], idle[-1]) == ("idle", "-")
    assert row == (
        "library", "1,664 × 2,560 × 5,120", "0", "100.0", "behind", "50.0", "0.50", "1.20", "1.20",
    )  # fmt: skip


def test_copies_are_told_by_medians() -> None:
    table = copies_table([_copies(110.0), _copies(120.0), _copies(190.0)])
    assert table.rows == [("gemm", "within", "1", "3", "1.200", "1.500")]


def _cost_us(profile: Profile, signature: Pointwise) -> float:
    estimate = profile.pointwise_table().estimate(signature)
    return estimate.duration_us


def test_other_kernels_are_told_beside_the_profile() -> None:
    profile = load_profile(NAME)
    copy = Pointwise("copy", 1 << 28, 1 << 28)
    ops = [
        {"signature": ["pointwise", *copy], "median_us": times * _cost_us(profile, copy)}
        for times in (1.0, 2.0, 1.5)
    ]
    (row,) = variant_table([{"ops": ops}], profile).rows
    assert row == ("copy", "3", "1.00", "1.50", "2.00")


def test_tables_are_of_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(SkippedError, match=r"scripts/gpu-profile"):
        gpu_records()
    (tmp_path / "admission.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in (_admission(), {"case": "b", "error": "OOM"}))
    )
    with gzip.open(tmp_path / "copies.jsonl.gz", "wt") as file:
        file.write(json.dumps(_copies(110.0)) + "\n")
    assert [table.title.split()[0] for table in gpu_records()] == ["Collectives", "Copies"]
    assert len(rows_of(tmp_path, "admission")) == 1
