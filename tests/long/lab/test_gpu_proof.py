"""The parts of the GPU proof that need no GPU, on one CPU rank."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")


from domino_tune.store.profiles import load_profile
from lab.fidelity.settings import PLANS, TUNED
from lab.gpu.ops import OpsCase, needed_signatures, slice_plans
from lab.gpu_proof import speed
from lab.gpu_proof.__main__ import UNFINISHED, run
from lab.gpu_proof.cases import ProofCase
from lab.gpu_proof.own_profile import laid_over, own_profile, with_launch
from simulator.cost import CostModel
from simulator.errors import InputError
from simulator.specs import Workload
from tests.support.validation_cases import MODEL

CASE = ProofCase(
    model=MODEL, workload=Workload(seq_length=32, micro_batch_size=4, dtype="fp32"), tp=4,
    cuda_graph=False, rounds=3, backend="gloo",
)  # fmt: skip


def _options(folder: Path, minutes: float) -> argparse.Namespace:
    return argparse.Namespace(
        profile="h100-dgx", rounds=3, minutes=minutes, folder=str(folder),
        page=str(folder / "page.md"),
    )  # fmt: skip


def test_it_continues_with_the_files_of_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without time it measures nothing, then everything. Files work in another folder, too."""
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "proof"
    assert run(_options(folder, 0.0), [CASE]) == UNFINISHED
    assert run(_options(folder, 5.0), [CASE]) in (0, 1)
    page = (folder / "page.md").read_text()
    for plan in (*PLANS, TUNED):
        assert f" {plan} |" in page
    assert all(plan.label in page for plan in speed.PLANS)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    moved = folder.rename(tmp_path / "moved")
    assert run(_options(moved, 0.0), [CASE]) in (0, 1)
    assert {path.name: path.read_bytes() for path in moved.iterdir()} == files
    CASE.profile_in(moved).unlink()
    (moved / f"ops-{MODEL.name}-4x32.json").unlink()
    capsys.readouterr()
    with pytest.raises(InputError, match="with another profile"):
        run(_options(moved, 5.0), [CASE])


def test_the_ops_of_its_plans_are_measured_first(tmp_path: Path) -> None:
    base = load_profile("h100-dgx")
    inputs = CASE.model, [CASE.workload], tmp_path
    assert own_profile(base, *inputs, time.monotonic(), CASE.spec) is None
    own = own_profile(base, *inputs, time.monotonic() + 120, CASE.spec)
    assert own is not None
    assert own.collectives == base.collectives
    assert own.section("gemm").fits == base.section("gemm").fits
    case = OpsCase(
        model=CASE.model, workload=CASE.workload, tp=CASE.tp,
        plans=slice_plans(CASE.workload.micro_batch_size),
    )  # fmt: skip
    cost = CostModel(own)
    for plan in case.plans:
        for signature in needed_signatures(case, plan):
            assert cost.estimate(signature).source == "measured"
    again = own_profile(base, *inputs, time.monotonic(), CASE.spec)
    assert again is not None
    assert replace(again, created=own.created) == own


def test_launch_costs_are_the_mean_of_all_batches() -> None:
    base = load_profile("h200-sxm")
    bare = replace(base, launch=None)
    assert laid_over(base, with_launch(bare, [])).launch == base.launch
    costs_us = [{"gemm": 10.0, "collective": 4.0}, {"gemm": 20.0, "collective": 8.0}]
    launch = laid_over(base, with_launch(bare, costs_us)).launch
    assert launch is not None
    assert launch.mode == "async"
    assert launch.cost_us == {"gemm": 15.0, "collective": 6.0}
