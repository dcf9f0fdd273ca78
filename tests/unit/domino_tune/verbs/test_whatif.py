from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from domino_tune.requests import SimulateRequest, WhatIfRequest
from domino_tune.results import to_json
from domino_tune.results.from_json import result_from_json
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.whatif import KEYS, changed, link_bandwidth, link_latency
from domino_tune.verbs.whatif import whatif as run_verb
from simulator.errors import InputError
from tests.support.runs import Runner


def whatif(run: Runner, *options: str) -> dict[str, Any]:
    done = run("whatif", *run.workload, *options, "--json")
    assert done.code == 0, done.err
    result: dict[str, Any] = json.loads(done.out)
    return result


def times(result: dict[str, Any]) -> list[float]:
    return [point["iteration_ms"] for point in result["points"]]


def test_one_times_changes_nothing(run: Runner) -> None:
    for key in ("link_bandwidth", "link_latency", "gpu_flops", "memory_bandwidth", "contention"):
        result = whatif(run, "--change", f"{key}=1x")
        assert times(result) == [result["base"]["iteration_ms"]]


@pytest.mark.parametrize("key", ["link_bandwidth", "gpu_flops", "memory_bandwidth"])
def test_a_faster_machine_is_not_slower(run: Runner, key: str) -> None:
    """Under a CUDA graph, since the host of so small a model decides the rest."""
    found = times(whatif(run, "--cuda-graph", "--sweep", f"{key}=0.5x,1x,2x,4x"))
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_contention_and_latency_cost_time(run: Runner) -> None:
    for sweep in ("contention=off,1x,1.5x,3x", "link_latency=0.5x,1x,4x"):
        found = times(whatif(run, "--sweep", sweep))
        assert found == sorted(found)


def test_values_with_units_are_set_against_the_profiles_own(run: Runner) -> None:
    case = simulate(
        SimulateRequest(
            model=run.tiny, profile="h100-dgx", tp=2, seq_length=256, micro_batch_size=2
        )
    ).case
    faster = changed(case, {"link_bandwidth": f"{2 * link_bandwidth(case) / 1e9}GB/s"})
    assert faster.factors.link_bandwidth == pytest.approx(2)
    slower = changed(case, {"link_latency": f"{3 * link_latency(case) * 1e6}us"})
    assert slower.factors.link_latency == pytest.approx(3)
    other = changed(case, {"gpu_flops": "1978.8TFLOPS", "memory_bandwidth": "1675GB/s"})
    assert other.factors.gpu_flops == pytest.approx(2)
    assert other.factors.memory_bandwidth == pytest.approx(0.5)
    quantized = replace(case, workload=replace(case.workload, fp8_recipe="tensorwise"))
    other = changed(quantized, {"gpu_flops": "1978.8TFLOPS"})
    assert other.factors.gpu_flops == pytest.approx(1, rel=1e-3), "of its FP8, as in MFU"
    assert case.factors == resolve(SimulateRequest(
        model=run.tiny, profile="h100-dgx", tp=2, seq_length=256, micro_batch_size=2
    )).factors  # fmt: skip


def test_workload_and_ranks(run: Runner) -> None:
    result = whatif(
        run, "--change", "seq_length=512", "--change", "micro_batch_size=2x", "--change", "tp=4",
        "--change", "nodes=2", "--change", "cuda_graph=on",
    )  # fmt: skip
    point = result["points"][0]
    assert point["workload"]["seq_length"] == 512
    assert point["workload"]["micro_batch_size"] == 4
    assert point["cluster"] == {
        "tp": 4, "dp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 0, "ranks_per_node": 2,
        "ranks_per_domain": 0, "cuda_graph": True, "power_cap_w": 0, "clock_mhz": 0,
    }  # fmt: skip


def test_a_sweeps_impossible_points_are_told_with_the_reason(run: Runner) -> None:
    result = whatif(run, "--sweep", "tp=1,2,3")
    assert [point["error"] is None for point in result["points"]] == [True, True, False]
    assert "num_attention_heads = 8" in result["points"][2]["error"]
    assert "tp=3" in run("whatif", *run.workload, "--sweep", "tp=1,2,3").err
    assert "No point" in run.refused("whatif", *run.workload, "--sweep", "tp=3,5")


def test_a_plan_file_is_replayed_with_its_own_order(run: Runner) -> None:
    path = run.folder / "plan.json"
    run("tune", *run.workload, "--search", "bayes", "--trials", "3", "--out", str(path))
    done = run("whatif", "--plan", str(path), "--change", "link_bandwidth=0.25x", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    stored = json.loads(path.read_text())["plan"]
    for point in (result["base"], result["points"][0]):
        assert {key: point["plan"][key] for key in stored} == stored


def test_a_plan_that_was_made_for_other_values_is_told(run: Runner) -> None:
    path = run.folder / "plan.json"
    run("tune", *run.workload, "--search", "bayes", "--trials", "3", "--out", str(path))
    asked = ("whatif", "--plan", str(path), "--change", "link_bandwidth=2x", "--json")

    def notes(*options: str) -> list[str]:
        found: list[str] = json.loads(run(*asked, *options).out)["notes"]
        return found

    assert notes() == []
    assert notes("--tp", "2") == []
    assert notes("--tp", "4", "--seq-length", "128") == [
        "The plan was made for other values: seq_length 256, here 128; tp 2, here 4."
    ]
    (text,) = notes("--set", "num_hidden_layers=2")
    assert "model tiny, here tiny (num_hidden_layers=2)" in text


def test_retuning_is_never_worse(run: Runner) -> None:
    sweep = ("--sweep", "link_bandwidth=0.05x,1x", "--order", "intra", "--row-slices", "1")
    replayed, retuned = times(whatif(run, *sweep)), times(whatif(run, *sweep, "--retune"))
    assert all(new <= 1.01 * old for new, old in zip(retuned, replayed, strict=True))
    assert retuned[0] < replayed[0]


def test_table_and_picture(run: Runner) -> None:
    page = run.folder / "w.html"
    done = run("whatif", *run.workload, "--sweep", "link_bandwidth=0.5x,2x", "--report", str(page))
    assert done.code == 0
    assert "link_bandwidth=0.5x" in done.out
    assert "data-plot" in page.read_text()


def test_the_profile_is_not_touched(run: Runner) -> None:
    request = WhatIfRequest(
        model=run.tiny, profile="a100-sxm", tp=2, seq_length=256, micro_batch_size=2,
        change=("gpu_flops=2x",),
    )  # fmt: skip
    found = run_verb(request)
    assert found.profile.content_id == load_profile("a100-sxm").content_id
    assert found.points[0].prediction


def test_a_plan_that_the_change_rules_out_is_found_anew(run: Runner) -> None:
    message = run.refused("whatif", *run.workload, "--change", "micro_batch_size=1")
    assert "search for a plan that suits, with --retune" in message
    assert whatif(run, "--change", "micro_batch_size=1", "--retune")["points"][0]["plan"]


def test_notes_are_of_their_point(run: Runner) -> None:
    """What recipes rest on is told where layers are quantized."""
    job = ("--model", "llama3-8b", "--profile", "h100-dgx", "--tp", "4", "--seq-length", "1024",
           "--micro-batch-size", "2", "--set", "num_hidden_layers=2")  # fmt: skip
    said = run("whatif", *job, "--change", "fp8_recipe=delayed").err
    assert "fp8_recipe=delayed: Layers in delayed" in said
    assert "unchanged: Layers" not in said
    said = run("whatif", *job, "--fp8-recipe", "delayed", "--change", "fp8_recipe=none").err
    assert "unchanged: Layers in delayed" in said
    assert "none: Layers" not in said


def test_parts_of_layers_that_graphs_replay_may_be_several(run: Runner) -> None:
    for told in ("attn,moe_router", "attn+moe_router"):
        found = whatif(run, "--change", f"cuda_graph_scope={told}")["points"][0]
        assert found["workload"]["cuda_graph_scope"] == ["attn", "moe_router"]


def test_json_is_read_back(run: Runner) -> None:
    """Points that can and that cannot be, and the unchanged case."""
    told = whatif(run, "--sweep", "tp=4,5")
    read = result_from_json("whatif", told, seconds=0.0)
    assert to_json(read) == told
    assert [point.prediction is None for point in read.points] == [False, True]
    nothing: dict[str, Any] = {"changes": {}, "error": None}
    point, impossible = told["points"]
    for wrong, said in (
        ({"base": {"changes": {}, "speedup": 1.0}}, "iteration_ms"),
        ({"base": nothing}, "lacks a prediction"),
        ({"points": [nothing]}, "lacks a prediction"),
        ({"points": [{**point, "changes": {}}]}, "what is changed at a point"),
        ({"points": [{**impossible, "error": None}]}, "lacks a prediction"),
    ):
        with pytest.raises(InputError, match=said):
            result_from_json("whatif", {**told, **wrong}, seconds=0.0)
    stopped = result_from_json("whatif", {**told, "stopped_by": "time"}, seconds=0.0)
    assert "until its time was spent: points are missing." in str(stopped)


def test_every_key_is_in_the_issues_list() -> None:
    assert set(KEYS) == {
        "link_bandwidth", "link_latency", "gpu_flops", "memory_bandwidth", "tp", "nodes",
        "micro_batch_size", "seq_length", "cuda_graph", "contention", "power_cap", "clock_mhz",
        "fp8_recipe", "ep", "moe_dispatcher", "moe_imbalance", "host_speed", "cuda_graph_scope",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("link_bandwidth=1e-300x", "to 1000"), ("memory_bandwidth=1e-200x", "0.001 to 1000"),
        ("link_latency=1e300x", "0 to 1000"), ("link_latency=1e20s", "0 to 1000"),
        ("contention=1e300x", "0 meaning off"), ("contention=on", "2x, or off"),
        ("seq_length=1e300x", "seq_length"), ("nodes=1e300x", "nodes must be"),
    ],
)  # fmt: skip
def test_changes_beyond_any_machine_are_refused(run: Runner, change: str, expected: str) -> None:
    assert expected in run.refused("whatif", *run.workload, "--change", change)


def test_a_link_may_fall_to_gigabit_ethernet(run: Runner) -> None:
    assert times(whatif(run, "--change", "link_bandwidth=1gbit"))
