"""The GPU's stages, as far as they go without one."""

from __future__ import annotations

import gzip
import json
import math
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from domino_tune.measure.gpu import works
from domino_tune.measure.probe_set import timed_ops
from domino_tune.measure.profiling import add_message
from domino_tune.store.profiles import load_profile
from lab.gpu.__main__ import STAGES, Planned, archived, main, run_all
from lab.gpu.admission import CELLS
from lab.gpu.cases import RankCase, preset_cases, slice_plans
from lab.gpu.fp8 import Heads, attention_cases
from lab.gpu.ops import TRAINING_PLANS, played, single_gpu_session
from lab.gpu.stage import GpuCase, Stage
from simulator.dtypes import GIB
from simulator.ops import Collective, Gemm
from simulator.plan import MEGATRON
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload
from tests.real.domino_tune.runtime.jobs import LLAMA

MEMORY = 100.0 * GIB


def test_a_single_rank_plays_its_shard() -> None:
    model = replace(
        MODELS["llama2-7b"], num_hidden_layers=1, hidden_size=128, num_attention_heads=8,
        num_key_value_heads=8, head_dim=16, intermediate_size=256, vocab_size=1000,
    )  # fmt: skip
    workload = Workload(seq_length=16, micro_batch_size=2, dtype="fp32")
    session = single_gpu_session(model, workload, ClusterSpec(tp=8), torch.device("cpu"))
    result = session.executor(MEGATRON, None).run_step(*session.batch)
    assert math.isfinite(result.loss)
    assert session.parameters.weights["l0.w.mlp.fc2"].shape == (128, 32)
    assert float(session.parameters.weights["l0.w.mlp.fc2"].std()) > 0


def test_cases_are_distinct_and_the_asked_for_come_first() -> None:
    cases = list(preset_cases(MEMORY))
    assert len({case.name for case in cases}) == len(cases)
    assert [case.name for case in cases[:3]] == [
        "gpt3-13b/tp8/b8x2048",
        "llama2-7b/tp8/b8x4096",
        "llama2-70b/tp8/b8x4096",
    ]
    layouts = {
        op.layout
        for plan in cases[0].plans[:2]
        for op in cases[0].signatures(plan)
        if isinstance(op, Gemm)
    }
    assert layouts == {"forward", "dgrad", "wgrad"}
    assert not any(isinstance(op, Collective) for op in cases[0].signatures(MEGATRON))


def test_contention_covers_every_family_once_a_cell() -> None:
    named = list(works())
    assert len({work.case for work in named}) == len(named)
    assert {work.family for work in named} == {"gemm", "attention", "pointwise"}
    assert len(set(CELLS)) == len(CELLS)


def _stage(folder: Path) -> Stage:
    return Stage(folder, "ops", 60.0, "h200-sxm", torch.device("cpu"))


def test_what_does_not_fit_is_left_out() -> None:
    names = [{case.name for case in preset_cases(gib * GIB)} for gib in (40, 100)]
    assert names[0] < names[1]


def test_cases_are_played_once_and_leave_a_profile(tmp_path: Path) -> None:
    model = replace(LLAMA, num_hidden_layers=1)
    cases = [
        RankCase(
            model=model, workload=Workload(seq_length=seq, micro_batch_size=2, dtype="fp32"),
            tp=2, plans=slice_plans(2),
        )
        for seq in (16, 32)
    ]  # fmt: skip
    for some in (cases[:1], cases):
        stage = _stage(tmp_path)
        stage.run(played(stage, some))
    rows = _stage(tmp_path).rows()
    assert [(row["case"], row["complete"]) for row in rows] == [(c.name, True) for c in cases]
    measured = set(timed_ops(load_profile(tmp_path / "h200-sxm.json")))
    for case in cases:
        for plan in case.plans:
            assert case.signatures(plan) <= measured


def test_a_measured_gemm_is_known_again() -> None:
    gemm = Gemm(64, 32, 16, "wgrad", "bf16", True, bias=True)
    row = {
        "signature": ["gemm", *gemm], "median_us": 2.0, "spread_us": 0.1, "samples": 3,
    }  # fmt: skip
    profile = add_message(
        replace(load_profile("h100-dgx"), gemm=None),
        {"kind": "plan", "ops": [row]},
    )
    assert profile.gemm is not None
    assert [found.signature for found in profile.gemm.rows] == [gemm]


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_tells_its_cases_apart_and_how_long_they_take(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a simulated GPU: the stage announces what is left before it allocates anything."""
    told = SimpleNamespace(total_memory=141 * GIB, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
    stage = Stage(tmp_path, name, 1.0, "h200-sxm", torch.device("cpu"))
    left = stage.left(STAGES[name].cases(stage))
    assert len({case.name for case in left}) == len(left) >= 2
    assert f"{name}: {len(left)} cases are left, about " in stage.announced(left)
    assert 10 < sum(case.seconds for case in left) < 3600
    stage.write({"case": left[0].name, "complete": True})
    assert [case.name for case in stage.left(STAGES[name].cases(stage))] == [
        c.name for c in left[1:]
    ]


def test_without_a_gpu_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.gpu.__main__.smi", lambda *fields: [])
    assert main(["--out", str(tmp_path)]) == 2
    assert "No GPU" in capsys.readouterr().err


def test_stages_share_the_minutes_and_break_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes: one stage measures, one ends at once with an error, one has no time left."""

    def some(stage: Stage) -> Iterator[GpuCase]:
        yield GpuCase(name="one", seconds=1.0, measure=lambda: {"told": "1 W"})

    def broken(stage: Stage) -> Iterator[GpuCase]:
        raise RuntimeError("no such GPU")

    planned = {"some": Planned(some, 1.0), "broken": Planned(broken, 1.0)}
    monkeypatch.setattr("lab.gpu.__main__.STAGES", planned)
    monkeypatch.setattr("lab.gpu.__main__.device", lambda: torch.device("cpu"))
    assert run_all(list(planned), 1.0, tmp_path, "mine") == ["broken"]
    assert run_all(["some"], 0.0, tmp_path, "mine") == []
    assert "some: no time is left for it" in capsys.readouterr().out
    with tarfile.open(archived(tmp_path)) as archive:
        assert archive.getnames() == ["some.jsonl"]
    assert [
        row["told"] for row in Stage(tmp_path, "some", 1.0, "mine", torch.device("cpu")).rows()
    ] == ["1 W"]


def test_what_measurements_has_is_not_measured_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    line = json.dumps({"case": "one", "complete": True}).encode()
    (kept / "ops.jsonl.gz").write_bytes(gzip.compress(line))
    stage = Stage(tmp_path, "ops", 1.0, "mine", torch.device("cpu"), kept)
    cases = [GpuCase(name=name, seconds=1.0, measure=dict) for name in ("one", "two")]
    assert [case.name for case in stage.left(cases)] == ["two"]


def test_training_adds_up_weight_gradients(tmp_path: Path) -> None:
    """What a first micro-batch does not play: sums in fp32, and layers that are recomputed."""
    model = replace(LLAMA, num_hidden_layers=1)
    workload = Workload(
        seq_length=16, micro_batch_size=2, dtype="fp32", grad_accumulation=2, recompute="full"
    )
    case = RankCase(model=model, workload=workload, tp=2, plans=TRAINING_PLANS)
    stage = _stage(tmp_path)
    stage.run(played(stage, [case]))
    measured = set(timed_ops(load_profile(tmp_path / "h200-sxm.json")))
    sums = [op for op in measured if isinstance(op, Gemm) and op.accumulate]
    assert {op.layout for op in sums} == {"wgrad"}
    for plan in TRAINING_PLANS:
        assert case.signatures(plan) <= measured


def test_attention_has_a_time_or_a_reason_each_way(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "attention", 1.0, "mine", torch.device("cpu"))
    stage.run(attention_cases(stage, (Heads(1, 64, 4, 2, 24, 16), Heads(1, 64, 4, 4, 16, 16))))
    ways = {"cudnn forward", "cudnn backward", "flash forward", "flash backward"}
    for row in stage.rows():
        assert row["ns"].keys() | row["failed"].keys() == ways
