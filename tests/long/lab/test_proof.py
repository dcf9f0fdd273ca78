"""Stage ``proof`` on one CPU rank: ops first, then plans, and their tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.store.profiles import load_profile
from lab.bench import gpu_records
from lab.fidelity.scores import KINDS, TUNED
from lab.gpu.cases import RankCase, laid_over, slice_plans, with_launch
from lab.gpu.proof import BASE, ProofCase, cases_of, profile_of
from lab.gpu.stage import GpuCase, Stage
from simulator.cost import CostModel
from simulator.specs import Workload
from tests.support.validation_cases import MODEL

WORKLOAD = Workload(seq_length=32, micro_batch_size=4, dtype="fp32")
CASE = ProofCase(
    RankCase(model=MODEL, workload=WORKLOAD, tp=4, plans=slice_plans(4)), cuda_graph=False,
    rounds=3, backend="gloo",
)  # fmt: skip


def _stage(folder: Path, minutes: float = 5.0) -> tuple[Stage, list[GpuCase]]:
    stage = Stage(folder, "proof", minutes, "mine", torch.device("cpu"))
    return stage, list(cases_of(stage, [CASE]))


def test_it_measures_ops_then_plans_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "proof"
    stage, cases = _stage(folder, minutes=0)
    stage.run(cases)
    assert stage.rows() == []
    stage, cases = _stage(folder)
    stage.run(cases[1:])  # without the ops
    (row,) = stage.rows()
    assert "Ops of small are not measured" in row["error"]
    stage.run(cases)
    assert [row["case"] for row in stage.rows() if row.get("complete")] == [
        "ops small/tp4/b4x32", "plans small/tp4/b4x32 eager",
    ]  # fmt: skip
    own, base = load_profile(profile_of(stage, CASE, [CASE.ops.name])), load_profile(BASE)
    assert own.collectives == base.collectives
    assert own.section("gemm").fits == base.section("gemm").fits
    cost = CostModel(own)
    for plan in CASE.ops.plans:
        for signature in CASE.ops.signatures(plan):
            assert cost.estimate(signature).source == "measured"
    monkeypatch.setattr(gpu_records, "proof_case", lambda *_: CASE)  # of the GPUs' shapes
    checks, _, cells, *_ = gpu_records.proof_tables(gpu_records.rows_of(folder, "proof"))
    assert checks.rows[0][2] == str(len(cells.rows)) == str(len(KINDS["plain"].plans) + 1)
    assert {row[2] for row in cells.rows} == {*KINDS["plain"].plans, TUNED}
    assert _stage(folder)[0].left(cases) == []


def test_launch_costs_are_the_mean_of_all_batches() -> None:
    base = load_profile("h200-sxm")
    bare = replace(base, launch=None)
    assert laid_over(base, with_launch(bare, [])).launch == base.launch
    costs_us = [{"gemm": 10.0, "collective": 4.0}, {"gemm": 20.0, "collective": 8.0}]
    launch = laid_over(base, with_launch(bare, costs_us)).launch
    assert launch is not None
    assert launch.mode == "async"
    assert launch.cost_us == {"gemm": 15.0, "collective": 6.0}
