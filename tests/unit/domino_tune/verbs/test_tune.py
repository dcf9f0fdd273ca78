from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from domino_tune.requests import TuneRequest
from domino_tune.search.simulated import space_of
from domino_tune.store.plans import load_plan
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.tune import cases_to_tune, tune_cases
from domino_tune.verbs.tune import tune as run_verb
from simulator.errors import InfeasiblePlanError
from simulator.overlap import EP_OVERLAP
from tests.support.runs import Runner

PROMISED = (
    "best", "baseline_ms", "no_comm_ms", "speedup", "optimality", "space_size", "evaluations",
    "seconds", "trials", "infeasible",
)  # fmt: skip


def tune(run: Runner, *options: str) -> dict[str, Any]:
    return run.answer("tune", *run.workload, *options)


@pytest.mark.parametrize("search", ["exhaustive", "bayes", "random"])
def test_json_has_what_was_promised(run: Runner, search: str) -> None:
    trials = () if search == "exhaustive" else ("--trials", "3")
    result = tune(run, "--search", search, *trials)
    assert [name for name in PROMISED if name not in result] == []
    assert result["optimality"] in (
        ("proven",) if search == "exhaustive" else ("proven", "best_found")
    )
    assert result["evaluations"] == len(result["trials"])
    assert result["space_size"] > 10_000
    assert set(result["infeasible"]) == {"duplicate", "order", "rows", "wgrad"}
    assert result["speedup"] == pytest.approx(
        result["baseline_ms"] / result["best"]["iteration_ms"], rel=1e-5
    )


def test_best_is_at_least_as_good_as_any_cell_of_the_map(run: Runner) -> None:
    result = tune(run)
    cells = [cell["iteration_ms"] for cell in result["grid"] if cell["iteration_ms"]]
    assert result["best"]["iteration_ms"] <= 1.01 * min(cells)


def test_same_seed_same_plan_file(run: Runner) -> None:
    written = []
    for name in ("a.json", "b.json"):
        path = run.folder / name
        tune(run, "--search", "bayes", "--trials", "4", "--seed", "7", "--out", str(path))
        written.append(path.read_bytes())
    assert written[0] == written[1]


def test_plan_file_is_replayed_to_the_nanosecond(run: Runner) -> None:
    path = run.folder / "plan.json"
    best = tune(run, "--search", "bayes", "--trials", "4", "--out", str(path))["best"]
    Path(run.tiny).unlink()  # the plan file holds the model
    done = run("simulate", "--plan", str(path), "--json")
    assert done.code == 0, done.err
    again = json.loads(done.out)
    assert again["plan"] == best["plan"]
    assert again["iteration_ms"] == best["iteration_ms"]


def test_micro_batch_is_tuned_with_the_global_batch_kept(run: Runner) -> None:
    result = tune(
        run, "--grad-accumulation", "2", "--tune-also", "micro_batch_size", "--search", "random",
        "--trials", "2",
    )  # fmt: skip
    assert {trial["micro_batch_size"] for trial in result["trials"]} == {1, 2, 4}
    best = result["best"]["workload"]
    assert best["micro_batch_size"] * best["grad_accumulation"] == 4


def test_micro_batches_that_do_not_fit_are_counted() -> None:
    request = TuneRequest(
        model="gpt3-13b", profile="a100-sxm", tp=4, seq_length=2048, micro_batch_size=8,
        search="random", trials=2, tune_also=("micro_batch_size",),
    )  # fmt: skip
    cases = cases_to_tune(resolve(request), request.tune_also)
    result = tune_cases(cases, request)
    fitting = {trial.micro_batch_size for trial in result.trials}
    assert len(fitting) < 4
    assert result.space_size == sum(space_of(case, None).size for case in cases)
    assert result.infeasible["memory"] >= 20_000


def test_batches_that_keep_the_global_batch() -> None:
    request = TuneRequest(
        model="gpt3-1.3b", profile="a100-sxm", tp=8, seq_length=256, micro_batch_size=4,
        grad_accumulation=3,
    )  # fmt: skip
    case = resolve(request)
    batches = [s.workload for s in cases_to_tune(case, ("micro_batch_size",))]
    assert [(w.micro_batch_size, w.grad_accumulation) for w in batches] == [
        (1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1),
    ]  # fmt: skip
    assert cases_to_tune(case, ()) == [case]


def test_deepspeed_gets_only_what_it_can_run(run: Runner) -> None:
    path = run.folder / "plan.json"
    result = tune(run, "--target", "deepspeed", "--out", str(path))
    assert {trial["plan"]["order"] for trial in result["trials"]} <= {"inter", "intra"}
    plan = load_plan(path).plan
    assert (plan.slices, plan.wgrad) == ((2, 1, 1, 1, 1), "eager")
    assert run("plan", "export", str(path), "--to", "deepspeed").code == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--pp", "2"), "pipeline stages; make the plan with --pp 1"),
        (("--cp", "2"), "context parallelism"),
        (("--recompute", "full"), "recomputation"),
        (("--dp", "2", "--data-parallel", "fsdp"), "FSDP"),
    ],
)
def test_deepspeed_searches_no_layout_that_its_export_refuses(
    run: Runner, words: tuple[str, ...], what: str
) -> None:
    said = run.refused("tune", *run.workload, *words, "--target", "deepspeed")
    assert f"DeepSpeed's Domino does not run {what}" in said


@pytest.mark.parametrize(("model", "runs"), [("gpt3-1.3b", True), ("llama2-7b", False)])
def test_frameworks_are_those_whose_export_works(model: str, runs: bool) -> None:
    asked = TuneRequest(
        model=model, profile="h100-dgx", tp=2, seq_length=512, micro_batch_size=2,
        overrides=("num_hidden_layers=2",), sequence_parallel=False,
    )  # fmt: skip
    there = {one.framework: one for one in run_verb(asked).frameworks}
    assert (there["DeepSpeed"].plan is not None) == runs
    assert there["Megatron-LM"].plan is not None


def test_megatron_lm_runs_two_micro_batches_beside_each_other() -> None:
    """What the verdict recommends is a plan of Megatron-LM's own: its row names that plan."""
    asked = TuneRequest(
        model="qwen3-30b-a3b", profile="h100-dgx", tp=2, ep=8, dp=8, seq_length=4096,
        micro_batch_size=2, grad_accumulation=4, data_parallel="distributed-optimizer",
        overrides=("num_hidden_layers=4",),
    )  # fmt: skip
    found = run_verb(asked)
    assert found.best.verdict is not None
    overlapped = next(one for one in found.best.verdict.contestants if one.strategy == EP_OVERLAP)
    assert overlapped.speedup > 1
    there = {one.framework: one for one in found.frameworks}["Megatron-LM"]
    assert there.plan == overlapped.plan
    assert there.request is not None
    assert there.request["strategy"] == EP_OVERLAP


def test_micro_batches_that_a_target_cannot_run_are_passed_over(run: Runner) -> None:
    """DeepSpeed halves the batch: of 1, 2 and 4 sequences it cannot run 1."""
    result = tune(
        run, "--target", "deepspeed", "--grad-accumulation", "2",
        "--tune-also", "micro_batch_size",
    )  # fmt: skip
    assert {trial["micro_batch_size"] for trial in result["trials"]} == {2, 4}


def test_hopeless_workload_is_refused_at_once() -> None:
    request = TuneRequest(
        model="gpt3-175b", profile="a100-sxm", tp=8, seq_length=2048, micro_batch_size=8
    )
    with pytest.raises(InfeasiblePlanError, match="GiB") as caught:
        run_verb(request)
    assert caught.value.reason == "memory"


def test_contention_is_looked_at_from_off_to_three_times(run: Runner) -> None:
    found = tune(run)["contention"]
    assert [point["factor"] for point in found["points"]] == [0, 1, 1.25, 1.5, 2, 3]
    times = [point["chosen_ms"] for point in found["points"]]
    assert times == sorted(times)
    at_one = next(point for point in found["points"] if point["factor"] == 1)
    assert at_one["winner_ms"] == at_one["chosen_ms"]
    assert found["crossovers"][0]["factor"] == 0


def test_table_report_and_trace(run: Runner) -> None:
    report, trace = run.folder / "r.html", run.folder / "t.json"
    done = run("tune", *run.workload, "--report", str(report), "--trace", str(trace))
    assert done.code == 0, done.err
    fastest = "fastest of 4,624 plans under this profile"
    found = f"exhaustive: {fastest}; 196,608 combinations"
    for words in (found, "row slices", "chosen", "not runnable"):
        assert words in done.out
    assert f"exhaustive, {fastest}" in report.read_text()
    assert "python -m domino_tune tune" in report.read_text()
    assert trace.stat().st_size > 1000
