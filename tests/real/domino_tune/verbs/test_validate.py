"""`validate`: plans run for real, compared with what was predicted."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from domino_tune.base.errors import ToleranceError
from domino_tune.cli import show
from domino_tune.requests import ValidateRequest
from domino_tune.results import to_json
from domino_tune.results.measured import ValidateResult
from domino_tune.runtime.plan_runs import Measured, Runs, graph_notes, ignore, loss_problems
from domino_tune.store.plans import load_plan, save_plan
from domino_tune.store.profiles import load_profile
from domino_tune.verbs import calls
from domino_tune.verbs.validate import check_result, disturbances, validate
from simulator.build import build_schedule
from simulator.cost import CostModel, Factors
from simulator.errors import InfeasiblePlanError
from simulator.ops import Attention, Collective, Gemm, Pointwise
from simulator.plan import MEGATRON, NO_COMM
from simulator.schedule import COMPUTE
from simulator.schedules import fixed_order
from tests.support.runs import Runner
from tests.support.validation_cases import (
    CLUSTER,
    FOUR,
    MODEL,
    TWO,
    WORKLOAD,
    Files,
    write_files,
)

pytestmark = pytest.mark.usefixtures("needs_torch")

ROUNDS = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("validate"))


@pytest.fixture(scope="module")
def messages() -> list[str]:
    """The messages of progress while ``result`` was made."""
    return []


@pytest.fixture(scope="module")
def result(files: Files, messages: list[str]) -> ValidateResult:
    """Two plans, run for real on two ranks."""
    request = ValidateRequest(
        plan=(files.two, files.four), profile=files.profile, rounds=ROUNDS, backend="gloo"
    )
    return validate(request, messages.append)


def test_baseline_bound_and_plans_are_run(result: ValidateResult, files: Files) -> None:
    assert [one.name for one in result.plans] == ["baseline", "no_comm", "two", "four"]
    sharded = [replace(plan, sequence_parallel=True) for plan in (MEGATRON, NO_COMM)]
    assert [one.plan for one in result.plans] == [*sharded, TWO, FOUR]
    assert all(len(one.makespans_ms) == ROUNDS for one in result.plans)
    assert all(one.measured and not one.failed for one in result.plans)
    assert not result.interrupted
    assert result.profile.content_id == load_profile(files.profile).content_id
    assert result.machine_differences == ()


def test_numbers_belong_together(result: ValidateResult) -> None:
    baseline = result.plans[0]
    for one in result.plans:
        assert one.measured is not None
        assert baseline.measured is not None
        assert one.interval_ms is not None
        assert one.error is not None
        median = statistics.median(one.makespans_ms)
        assert one.measured.iteration_ms == pytest.approx(median)
        assert one.measured.speedup == pytest.approx(baseline.measured.iteration_ms / median)
        assert one.interval_ms.low <= median <= one.interval_ms.high
        assert one.error == pytest.approx(one.predicted.iteration_ms / median - 1)
    bound = result.plans[1]
    assert bound.measured is not None
    assert bound.measured.comm_ms == 0


def test_a_gpus_numbers_are_found_too_fast_for_a_cpu(result: ValidateResult) -> None:
    assert result.present_speed is not None
    assert result.present_speed < 1
    for one in result.plans:
        assert one.error is not None
        assert one.error_at_present_speed is not None
        assert one.error < one.error_at_present_speed


def test_memory_is_what_was_predicted(result: ValidateResult) -> None:
    for one in result.plans:
        assert one.measured is not None
        assert one.measured.peak_memory_gib is not None
        predicted = one.predicted.peak_memory_gib
        assert one.measured.peak_memory_gib == pytest.approx(predicted, rel=0.02)


def test_all_plans_give_one_loss(result: ValidateResult) -> None:
    losses = [one.loss for one in result.plans if one.plan.strategy != "no_comm"]
    assert losses[0] is not None
    assert 5 < losses[0] < 6
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-4)
    assert not any("differs" in text for text in result.warnings)


def test_every_op_is_compared(result: ValidateResult) -> None:
    for one in result.plans:
        timeline = result.timelines[f"{one.name} predicted"]
        assert sum(row.count for row in one.roles) == len(timeline.ops)
        assert {row.role: row.predicted_ms * 1e6 for row in one.roles} == pytest.approx(
            {role: float(total) for role, total in timeline.by_role.items()}
        )
        assert all(row.measured_ms > 0 for row in one.roles)


def test_the_measured_timeline_is_of_the_median_step(result: ValidateResult) -> None:
    for one in result.plans:
        measured = result.timelines[f"{one.name} measured"]
        ranked = sorted(one.makespans_ms)
        assert measured.makespan_ns / 1e6 == pytest.approx(ranked[(ROUNDS - 1) // 2])
        assert any(op.lane == COMPUTE for op in measured.ops)


def test_progress_tells_of_each_step(messages: list[str], result: ValidateResult) -> None:
    assert messages[0] == "starting 2 ranks"
    assert len(messages) == 1 + ROUNDS * len(result.plans)
    assert messages[-1].startswith(f"round {ROUNDS} of {ROUNDS}: {FOUR.label} ")


def test_tables_show_it_all(result: ValidateResult, capsys: pytest.CaptureFixture[str]) -> None:
    show.tables(replace(result, interrupted=True))
    out, err = capsys.readouterr()
    for text in (
        "Interrupted",
        "baseline",
        TWO.label,
        FOUR.label,
        "MiB",
        "step.adam",
        "attn.proj.ar",
    ):
        assert text in out
    assert result.profile.content_id in out
    assert "too few for an interval of 95 %" in err


def test_tables_without_measurements(
    result: ValidateResult, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = [
        replace(
            one, measured=None, error=None, error_at_present_speed=None, interval_ms=None,
            spread_ms=None, makespans_ms=(), roles=(), failed="out of memory",
        )
        for one in result.plans
    ]  # fmt: skip
    show.tables(replace(result, plans=tuple(bare), present_speed=None))
    assert "out of memory" in capsys.readouterr().out


def test_frames_hold_plans_and_their_ops(result: ValidateResult) -> None:
    frame = result.to_frame().set_index("name")
    assert list(frame.index) == ["baseline", "no_comm", "two", "four"]
    measured = result.plans[2].measured
    assert measured is not None
    assert frame.loc["two", "measured_iteration_ms"] == measured.iteration_ms
    assert frame.loc["two", "predicted_speedup"] == result.plans[2].predicted.speedup
    assert frame.loc["two", "error"] == result.plans[2].error
    assert (frame["measured_low_ms"] <= frame["measured_high_ms"]).all()
    assert (frame["rounds"] == ROUNDS).all()
    ops = result.plans[2].to_frame()
    assert list(ops["role"]) == [row.role for row in result.plans[2].roles]
    assert ops["measured_ms"].sum() > 0


def test_from_python_an_error_keeps_what_was_measured(files: Files) -> None:
    with pytest.raises(ToleranceError) as caught:
        calls.validate(
            plan=[files.two], profile=files.profile, rounds=3, backend="gloo", max_error="0.01%"
        )
    (note,) = caught.value.__notes__
    assert "Ops of two" in note


def test_json_is_json(result: ValidateResult) -> None:
    answer = json.loads(json.dumps(to_json(result), allow_nan=False))
    assert len(answer["plans"]) == 4
    assert "timelines" not in answer
    assert answer["plans"][2]["plan"]["label"] == TWO.label


def test_how_a_result_ends(result: ValidateResult) -> None:
    check_result(result)
    errors = ", ".join(f"{one.name} {one.error:+.1%}" for one in result.plans)
    with pytest.raises(ToleranceError, match=re.escape(f"--max-error 5%: {errors};")):
        check_result(replace(result, max_error=0.05))
    check_result(replace(result, max_error=1.0))
    with pytest.raises(KeyboardInterrupt):
        check_result(replace(result, interrupted=True))
    failed = tuple(replace(one, failed="out of memory") for one in result.plans)
    with pytest.raises(InfeasiblePlanError, match="No plan could be run"):
        check_result(replace(result, plans=failed))
    check_result(replace(result, plans=(*failed[:3], result.plans[3])))


def test_the_command_line(run: Runner, files: Files) -> None:
    trace = run.folder / "trace.json"
    done = run(
        "validate", "--plan", files.two, "--profile", files.profile, "--rounds", "3",
        "--backend", "gloo", "--max-error", "5%", "--trace", str(trace), "--json",
    )  # fmt: skip
    assert done.code == 3, done.err
    assert "Errors of predictions are above --max-error 5%" in done.err
    answer = json.loads(done.out)
    assert [len(one["makespans_ms"]) for one in answer["plans"]] == [3, 3, 3]
    events = json.loads(trace.read_text())["traceEvents"]
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert processes == [
        f"{name} {side}"
        for name in ("baseline", "no_comm", "two")
        for side in ("predicted", "measured")
    ]


def test_present_speed_scales_compute_alone() -> None:
    profile = load_profile("h100-dgx")
    then, now = CostModel(profile), CostModel(profile, factors=Factors(compute_speed=0.5))
    for compute in (
        Gemm(1024, 1024, 1024), Attention(1, 8, 8, 512, 64), Pointwise("norm", 1 << 20, 1 << 20)
    ):  # fmt: skip
        assert now.duration_ns(compute) == pytest.approx(2 * then.duration_ns(compute), abs=1)
    collective = Collective("all_reduce", 1 << 20, 1, 8)
    assert now.duration_ns(collective) == then.duration_ns(collective)


def run_of(label: str, losses: Sequence[float]) -> Measured:
    return Measured(
        label=label, makespans_ns=(1,) * len(losses), losses=tuple(losses),
        grad_norms=(1.0,) * len(losses),
    )  # fmt: skip


def test_losses_that_differ_are_told() -> None:
    first = run_of("first", [5.0, 4.0])
    assert loss_problems([first, run_of("same", [5.0, 4.00001])], "fp32") == []
    assert loss_problems([first, Measured(label="gone", failed="out of memory")], "fp32") == []
    (text,) = loss_problems([first, run_of("wrong", [5.0, 4.4])], "fp32")
    assert "The loss of wrong differs from first's" in text
    assert "10.0%" in text
    assert loss_problems([first, run_of("rough", [5.0, 4.04])], "bf16") == []
    (text,) = loss_problems([first, run_of("lost", [5.0, math.nan])], "fp32")
    assert "not finite" in text


def test_gradients_of_one_layer_that_differ_are_told() -> None:
    """Of many layers: neither the loss nor the norm of all gradients shows it."""
    usual = [(2.0, 1.0)] * 40

    def run_with(label: str, rank: int, layer: int, pair: tuple[float, float]) -> Measured:
        ranks = [list(usual), list(usual)]
        ranks[rank][layer] = pair
        return replace(run_of(label, [5.0]), layers=tuple(map(tuple, ranks)))

    first = run_with("first", 0, 0, usual[0])
    assert loss_problems([first, run_with("same", 1, 7, (2.0, 1.01))], "bf16") == []
    for layer, pair, words in (
        (8, (1.9, 1.0), "layer 7 in wrong"), (8, (2.0, -1.0), "by 100.0% on rank 1"),
        (0, (2.0, math.nan), "the embeddings and the head"),
    ):  # fmt: skip
        (text,) = loss_problems([first, run_with("wrong", 1, layer, pair)], "bf16")
        assert words in text


def test_a_disturbed_machine_is_told() -> None:
    steady = replace(run_of("two", [5.0]), makespans_ns=(100, 101, 99, 100, 102, 100))
    shaken = replace(run_of("four", [5.0]), makespans_ns=(100, 130, 99, 140, 102, 128))
    few = replace(shaken, makespans_ns=shaken.makespans_ns[:3])
    assert disturbances([steady, few], 0.97) == []
    assert disturbances([Measured(label="gone", failed="out of memory")], None) == []
    first, second = disturbances([steady, shaken], 0.8)
    assert "Iterations of four vary by ± 1" in first
    assert "0.80 times the speed that it was profiled at" in second


def test_it_is_told_how_steps_were_launched() -> None:
    eager = Measured(label="two")
    captured = Measured(label="two", captured=True)
    fallen = Measured(label="four", why_not_captured="RuntimeError: not permitted")
    (text,) = graph_notes([eager, Measured(label="gone", failed="out of memory")])
    assert "here each op is launched" in text
    (text,) = graph_notes([captured, captured])
    assert "whole CUDA graphs" in text
    first, second = graph_notes([captured, fallen])
    assert "four could not be captured as a CUDA graph (RuntimeError: not permitted)" in first
    assert second == text


def test_what_ranks_say_of_graphs_is_kept() -> None:
    """As a rank on a GPU ends its report."""
    runs = Runs(
        model=MODEL, workload=WORKLOAD, cluster=CLUSTER, plans=[(MEGATRON, fixed_order(MEGATRON))],
        rounds=1,
    )  # fmt: skip
    step = {"kind": "step", "plan": 0, "makespan_ns": 7, "loss": 5.0, "grad_norm": 1.0}
    ops = len(build_schedule(MODEL, WORKLOAD, CLUSTER, MEGATRON))
    end = {
        "kind": "end", "plan": 0, "start_ns": [0] * ops, "end_ns": [1] * ops,
        "typical_ns": [1.0] * ops, "peak_bytes": 3, "captured": True, "why_not_captured": "",
    }  # fmt: skip
    for message in (step, end):
        runs._take(message, ignore)
    (found,) = runs.measured()
    assert found.captured
    assert found.makespans_ns == (7,)
    assert found.timeline is not None


def test_one_rank_alone_plays_any_group_with_emulated_collectives(files: Files) -> None:
    """Rank 0 of eight, its collectives as long as the profile says; nothing is said of losses."""
    profile = load_profile(files.profile)
    made = load_plan(files.two)
    eight = replace(
        made, model=replace(MODEL, num_attention_heads=8, num_key_value_heads=8, head_dim=8),
        cluster=replace(CLUSTER, tp=8, ranks_per_node=8),
    )  # fmt: skip
    place = str(Path(files.two).parent / "eight.json")
    save_plan(eight, place)
    request = ValidateRequest(
        plan=(place,), profile=files.profile, rounds=3, backend="gloo", emulate_collectives=True
    )
    found = validate(request)
    assert found.emulated_collectives
    assert found.machine_differences == ()
    assert not any("differs" in text for text in found.warnings)
    assert found.profile.content_id == profile.content_id
    timeline = found.timelines["eight measured"]
    cost = CostModel(profile)
    spans = zip(timeline.ops, timeline.start_ns, timeline.end_ns, strict=True)
    collectives = [
        (end - start, cost.duration_ns(op.signature)) for op, start, end in spans if op.lane
    ]
    assert collectives
    assert all(measured_ns >= alone_ns for measured_ns, alone_ns in collectives)


def test_missing_cuda_is_said_before_another_machine(
    run: Runner, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    text = run.refused("validate", *files.options, "--backend", "nccl")
    assert "torch sees no CUDA device" in text
