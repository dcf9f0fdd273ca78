"""The proof on one GPU, played on a CPU rank: what does not need the GPU."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.fidelity.cells import PLANS, TUNED
from domino_tune.fidelity.gpu import ProofCase, checks, main, play_case, proof_cases
from domino_tune.fidelity.gpu_speed import PLANS as SPEED_PLANS
from domino_tune.fidelity.gpu_speed import (
    keep_speed,
    measure_speed,
    read_speed,
    speed_checks,
    speed_table,
)
from domino_tune.fidelity.kept import keep, read
from domino_tune.fidelity.own_profile import own_profile
from domino_tune.measure.gpu_ops import OpsCase, slice_plans, wanted
from domino_tune.store.profiles import load_profile
from simulator.cost import CostModel
from simulator.errors import InputError
from simulator.specs import Workload
from tests.domino_tune.validation_cases import MODEL

CASE = ProofCase(
    model=MODEL, workload=Workload(seq_length=32, micro_batch_size=4, dtype="fp32"), tp=4,
    cuda_graph=False, profile="h100-dgx", rounds=3, backend="gloo",
)  # fmt: skip


def test_a_lone_rank_plays_all_plans_and_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path))
    setting = play_case(CASE)
    assert {cell.plan for cell in setting.cells} == {*PLANS, TUNED}
    assert all(len(cell.first) == len(cell.second) == 3 for cell in setting.cells)
    assert setting.link == "eager"
    assert [check.what for check in checks([setting])]
    place = tmp_path / "kept.json"
    keep(place, setting, asdict(CASE))
    assert read(place, asdict(CASE)) == setting
    with pytest.raises(InputError, match="with another rounds"):
        read(place, {**asdict(CASE), "rounds": 4})


def test_the_ops_of_its_plans_are_measured_first(tmp_path: Path) -> None:
    base, path = load_profile("h100-dgx"), tmp_path / "ops.json"
    asked = [(CASE.model, CASE.workload)]
    assert own_profile(base, asked, path, time.monotonic(), CASE.spec) is None
    own = own_profile(base, asked, path, time.monotonic() + 120, CASE.spec)
    assert own is not None
    assert own.collectives == base.collectives
    assert own.section("gemm").fits == base.section("gemm").fits
    case = OpsCase(
        model=CASE.model, workload=CASE.workload, tp=CASE.tp,
        plans=slice_plans(CASE.workload.micro_batch_size),
    )  # fmt: skip
    cost = CostModel(own)
    for plan in case.plans:
        for signature in wanted(case, plan):
            assert cost.estimate(signature).source == "measured"
    kept = path.read_bytes()
    again = own_profile(base, asked, path, time.monotonic() + 120, CASE.spec)
    assert again is not None
    assert again.content_id == own.content_id
    assert path.read_bytes() == kept


def test_its_speed_is_told_and_kept(tmp_path: Path) -> None:
    speed = measure_speed(CASE.model, CASE.workload, CASE.spec, 3)
    assert [plan.label for plan in speed.plans] == [plan.label for plan in SPEED_PLANS]
    assert len(speed.ratios) == 3
    keep_speed(tmp_path / "speed.json", speed)
    assert read_speed(tmp_path / "speed.json") == speed
    table = speed_table([speed], 100.0)
    assert [row[:2] for row in table.rows] == [(CASE.model.name, p.label) for p in speed.plans]
    assert [check.ok is None for check in speed_checks([speed])] == [False, True]


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("no GPU must be here for this")
    assert main(["--folder", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "torch sees no CUDA device" in said
    assert "Traceback" not in said


def test_every_shape_is_launched_both_ways() -> None:
    cases = list(proof_cases("h200-sxm", 20))
    assert len({case.name for case in cases}) == len(cases) == 8
    assert len(cases) * (len(PLANS) + 1) >= 24
