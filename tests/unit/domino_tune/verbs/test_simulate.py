from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from domino_tune.requests import SimulateRequest
from domino_tune.verbs.simulate import MICROS_PLAYED
from domino_tune.verbs.simulate import simulate as run_verb
from simulator.predict import predict
from tests.support.runs import Runner

PROMISED = (
    "iteration_ms", "baseline_ms", "no_comm_ms", "speedup", "comm_ms", "exposed_comm_ms",
    "hidden_comm_fraction", "peak_memory_gib", "interval_ms", "confidence", "warnings", "plan",
    "profile",
)  # fmt: skip


def simulate(run: Runner, *options: str) -> dict[str, Any]:
    return run.answer("simulate", *run.workload, *options)


def test_json_has_what_was_promised(run: Runner) -> None:
    result = simulate(run)
    assert [name for name in PROMISED if name not in result] == []
    assert result["speedup"] == pytest.approx(result["baseline_ms"] / result["iteration_ms"])
    assert result["interval_ms"]["low"] < result["iteration_ms"] < result["interval_ms"]["high"]
    assert result["profile"]["content_id"].startswith("sha256:")
    assert result["no_comm_ms"] < result["iteration_ms"]


def test_same_question_same_bytes(run: Runner) -> None:
    command = ("simulate", *run.workload, "--json")
    assert run(*command).out == run(*command).out


def test_strategies_are_their_own_rows(run: Runner) -> None:
    baseline = simulate(run, "--strategy", "megatron")
    assert baseline["speedup"] == 1
    assert baseline["plan"]["label"] == "megatron sp"
    bound = simulate(run, "--strategy", "no_comm")
    assert bound["iteration_ms"] == bound["no_comm_ms"]
    assert bound["comm_ms"] == 0


def test_plan_options(run: Runner) -> None:
    options = ("--row-slices", "2", "--set", "attn_col_slices=2", "--set", "mlp_dgrad_slices=4")
    plan = simulate(run, *options, "--order", "intra", "--set", "wgrad=deferred")["plan"]
    assert plan["label"] == "domino 2x2/1 dgrad 2/4 intra wgrad=deferred sp"


def test_table_names_all_three_variants(run: Runner) -> None:
    """The plan that was asked for has the name of its strategy where another is recommended."""
    done = run("simulate", *run.workload)
    assert done.out.startswith("Use userbuffers")
    for word in ("baseline", "megatron", "Domino", "greedy", "bound", "no_comm", "Confidence"):
        assert word in done.out
    assert "chosen" not in done.out


def test_the_row_of_the_plan_is_named_where_no_verdict_recommends_another(run: Runner) -> None:
    request = SimulateRequest(
        model=run.tiny, profile="h100-dgx", tp=2, seq_length=256, micro_batch_size=2
    )
    found = replace(run_verb(request), verdict=None)
    assert [row[0] for row in found.tables()[0].rows] == ["baseline", "no SP", "chosen", "bound"]


def test_trace_and_report_are_written(run: Runner) -> None:
    trace, report = run.folder / "t.json", run.folder / "r.html"
    assert run("simulate", *run.workload, "--trace", str(trace), "--report", str(report)).code == 0
    assert json.loads(trace.read_text())["traceEvents"]
    assert "python -m domino_tune simulate" in report.read_text()


def test_ranks_fill_nodes_tp_first(run: Runner) -> None:
    found = run_verb(
        SimulateRequest(
            model=run.tiny, profile="a100-sxm", tp=4, dp=4, seq_length=256, micro_batch_size=2
        )
    )
    assert (found.cluster.nodes, found.cluster.tp_group, found.cluster.dp_group) == (
        2, (1, 4), (2, 2),
    )  # fmt: skip


def test_nodes_spread_a_group(run: Runner) -> None:
    close, spread = simulate(run), simulate(run, "--nodes", "2")
    assert spread["cluster"]["ranks_per_node"] == 1
    assert spread["comm_ms"] > close["comm_ms"]


def test_many_micro_batches_are_counted_whole(run: Runner) -> None:
    many = MICROS_PLAYED + 8
    request = SimulateRequest(
        model=run.tiny, profile="a100-sxm", tp=2, seq_length=256, micro_batch_size=2,
        grad_accumulation=many,
    )  # fmt: skip
    found = run_verb(request)
    sums = predict(found.case, found.plan, found.plan_file.order)
    assert found.iteration_ms == pytest.approx(sums.makespan_ns * 1e-6)
    assert found.timelines["chosen"].makespan_ns < sums.makespan_ns
    assert found.interval_ms.low < found.iteration_ms < found.interval_ms.high
    assert any(f"{MICROS_PLAYED} of {many} micro-batches" in text for text in found.warnings)


def test_what_does_not_fit_is_an_answer(run: Runner) -> None:
    """All numbers are there, and where the memory goes."""
    found = simulate(run, "--micro-batch-size", "16384")
    assert not found["fits"]
    parts = found["memory_gib"]
    assert list(parts) == [
        "parameters", "gradients", "optimizer", "activations", "logits", "buffers"
    ]  # fmt: skip
    assert sum(parts.values()) == pytest.approx(found["peak_memory_gib"])
    assert found["peak_memory_gib"] > 80
    assert any("it could not run" in text for text in found["warnings"])
    assert 0 < found["mfu"] < 1
    assert simulate(run)["fits"]


def test_speedups_are_over_the_baseline_with_sequence_parallelism(run: Runner) -> None:
    on, off = (simulate(run, flag) for flag in ("--sequence-parallel", "--no-sequence-parallel"))
    assert on["plan"]["sequence_parallel"]
    assert not off["plan"]["sequence_parallel"]
    assert on["baseline_ms"] == off["baseline_ms"]
    assert on["baseline_no_sp_ms"] == off["baseline_no_sp_ms"] != on["baseline_ms"]
    for found in (on, off):
        assert found["speedup"] == pytest.approx(found["baseline_ms"] / found["iteration_ms"])
        ratio = found["baseline_no_sp_ms"] / found["iteration_ms"]
        assert found["speedup_no_sp"] == pytest.approx(ratio, abs=1e-6)
    assert on["variants"]["baseline"]["label"] == "megatron sp"
    assert on["variants"]["baseline_no_sp"]["label"] == "megatron"


def test_flags_without_effect_are_accepted(run: Runner) -> None:
    flags = (
        "--data-parallel", "fsdp", "--set", "overlap_grad_reduce=no", "--set",
        "grad_dtype=bf16",
        "--set", "overlap_param_gather=no", "--sequence-parallel",
    )  # fmt: skip
    found = simulate(run, "--tp", "1", *flags)
    assert not found["plan"]["sequence_parallel"]
    assert found["cluster"]["dp"] == 1


def test_replicas_shard_the_optimizer_by_default(run: Runner) -> None:
    found = simulate(run, "--dp", "2")
    assert found["workload"]["data_parallel"] == "distributed-optimizer"
    whole = simulate(run, "--dp", "2", "--data-parallel", "replicas")
    assert found["memory_gib"]["optimizer"] == pytest.approx(
        whole["memory_gib"]["optimizer"] / 2, rel=1e-6
    )
