"""The proof on one GPU, played on a CPU rank: what does not need the GPU."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("torch")

from domino_tune.fidelity.cells import PLANS, TUNED
from domino_tune.fidelity.gpu import ProofCase, checks, play_case, proof_cases
from domino_tune.fidelity.kept import keep, read
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


def test_every_shape_is_launched_both_ways() -> None:
    cases = list(proof_cases("h200-sxm", 20))
    assert len({case.name for case in cases}) == len(cases) == 8
    assert len(cases) * (len(PLANS) + 1) >= 24
