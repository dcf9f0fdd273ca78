"""layout: the best layouts, compared with an evaluation of every layout."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from domino_tune.requests import LayoutRequest
from domino_tune.results.layouts import LayoutsResult
from domino_tune.search.layouts import KEPT, Candidate, LayoutSearch
from domino_tune.store.plans import load_plan
from domino_tune.store.shelf import DISK
from domino_tune.verbs.layout_space import base_of, candidates_of, layouts_of
from domino_tune.verbs.layouts import LISTING, conclude, space_of, tune_layouts
from simulator.errors import InfeasiblePlanError, InputError
from simulator.memory import peak_bytes
from simulator.plan import SlicePlan
from tests.support.runs import Runner

SMALL = LayoutRequest(
    model="gpt3-1.3b", profile="a100-sxm", seq_length=2048, gpus=4, global_batch_size=4,
    overrides=("num_hidden_layers=4",),
)  # fmt: skip


@cache
def found(asked: LayoutRequest = SMALL) -> LayoutsResult:
    return tune_layouts(asked)


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize(
    "asked",
    [
        SMALL.but(profile="h100-dgx", pp=1, recompute="none"),
        SMALL.but(dp=1, cp=1, recompute="full", recompute_layers=1),
    ],
    ids=["few layouts", "the first layer of a stage recomputed"],
)
def test_the_answer_is_that_of_looking_at_every_plan(asked: LayoutRequest) -> None:
    result = found(asked)
    candidates, _, _edge = candidates_of(base_of(asked, DISK), asked)
    for one in candidates:
        for plan in one.plans:
            one.timed[plan] = one.time(plan).timed
    best = sorted(candidates, key=lambda one: one.best_ns())
    times = [one.best_ns() * 1e-6 for one in best[:KEPT]]
    assert [one.iteration_ms for one in result.layouts] == pytest.approx(times)
    unsliced = min(one.best_ns(one.unsliced) for one in candidates) * 1e-6
    assert result.best_without_domino is not None
    compared = [unsliced, *_rivals_ms(result)]
    assert result.best_without_domino.iteration_ms == pytest.approx(min(compared))
    for one in candidates:
        for plan, bound_ns in one.bounds_ns.items():
            timed = one.timed[plan]
            assert timed is None or bound_ns <= timed.iteration_ns


def _rivals_ms(result: LayoutsResult) -> list[float]:
    """Return the times of the plans that the verdict compares with Domino in the best layout."""
    assert result.best.verdict is not None
    contestants = result.best.verdict.contestants
    return [one.iteration_ms for one in contestants if one.fits and one.strategy != "domino"]


def test_numbers_of_a_layout_agree_with_each_other() -> None:
    result = found(SMALL.but(pp=1))
    assert result.optimality == "proven"
    assert result.evaluations < result.plans
    rival = result.best_without_domino
    assert rival is not None
    assert rival.domino_gain == 1.0
    assert rival.iteration_ms <= min(_rivals_ms(result)) + 1e-9  # no row of it contradicts that
    assert "recomputation of single ops" in result.not_searched
    for one in result.layouts:
        assert one.tp * one.pp * one.cp * one.dp == 4
        assert one.dp * one.micro_batch_size * one.grad_accumulation == 4
        assert one.tokens_per_second_per_gpu == pytest.approx(4 * 2048 / 4 / one.iteration_ms * 1e3)
        assert one.domino_gain == pytest.approx(rival.iteration_ms / one.iteration_ms)
        assert one.domino_gain_here is None or one.domino_gain_here >= 1
    memory = [one.peak_memory_gib for one in result.frontier]
    assert memory == sorted(memory, reverse=True)
    times = [one.iteration_ms for one in result.frontier]
    assert times == sorted(times)
    assert result.frontier[0].iteration_ms == result.layouts[0].iteration_ms
    first = result.layouts[0]
    assert first.iteration_ms <= result.best.iteration_ms + 1e-9  # a rival may be faster there
    assert result.best.cluster.tp == first.tp
    assert result.best.plan.strategy in ("domino", "megatron")


def test_what_is_given_stays() -> None:
    asked = SMALL.but(pp=2, micro_batch_size=1, recompute="full", sequence_parallel=False)
    lines: list[str] = []
    for one in tune_layouts(asked, lines.append).layouts:
        assert (one.pp, one.micro_batch_size, one.recompute) == (2, 1, "full")
        assert not one.plan.sequence_parallel
    assert {one.tp for one in layouts_of(base_of(asked, DISK), asked.but(tp=2))} == {2}
    assert lines[0] == LISTING
    assert "layouts that may fit" in lines[1]
    assert any("plan done" in line for line in lines)


def test_layers_that_are_recomputed_are_a_fixed_setting() -> None:
    asked = SMALL.but(tp=2, pp=2, cp=1, micro_batch_size=1, recompute="full", recompute_layers=1)
    result = found(asked)
    assert result.best.workload.recompute_layers == 1
    some = found(asked.but(recompute_layers=None))
    assert some.best.workload.recompute_layers == 0
    assert result.best.iteration_ms < some.best.iteration_ms
    with pytest.raises(InputError, match="--recompute-layers needs --recompute"):
        tune_layouts(asked.but(recompute=None))


def test_slices_of_quantized_layers_have_gradients_of_their_own() -> None:
    asked = SMALL.but(profile="h100-dgx", tp=2, pp=1, micro_batch_size=2, fp8_recipe="tensorwise")
    candidates, *_ = candidates_of(base_of(asked, DISK), asked)
    assert any(plan.row_slices > 1 for one in candidates for plan in one.plans)
    assert not any(plan.merge_wgrad for one in candidates for plan in one.plans)
    assert found(asked).layouts


def test_a_layout_recomputes_the_fewest_layers_that_fit() -> None:
    asked = SMALL.but(tp=2, cp=1, pp=1, micro_batch_size=2, memory_margin="73.2GiB")
    candidates, *_ = candidates_of(base_of(asked, DISK), asked)
    again = []
    for one in candidates:
        for plan in one.plans[::5]:
            timed = one.time(plan).timed
            fewest = min((layers for layers in one.again if fits(one, plan, layers)), default=None)
            assert (timed.again if timed else None) == fewest
            assert timed is None or timed.iteration_ns >= one.bounds_ns[plan]
            again.append(fewest)
    assert any(again), "some layouts need some layers recomputed, and not all"


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("every", [slice(0, None, 2), slice(1, None, 2)], ids=["one", "other"])
@pytest.mark.parametrize("margin", ["72.5GiB", "73.2GiB", "74GiB"])
def test_bounds_of_plans_that_fit_by_a_hair_hold_with_as_few_recomputed_layers(
    margin: str, every: slice,
) -> None:  # fmt: skip
    """They recompute fewer layers than plans that are sure to fit."""
    asked = SMALL.but(cp=1, memory_margin=margin)
    candidates, _, close = candidates_of(base_of(asked, DISK), asked)
    fewer = 0
    for one in (*candidates, *close)[every]:
        found = {plan: one.time(plan).unsure for plan in one.plans}
        one.unsure = {plan: held for plan, held in found.items() if held}
        timed = one.time_unsure()
        assert timed is None or one.unsure_bound_ns <= timed.iteration_ns
        fewer += any(
            held.again < one.least[plan.sequence_parallel].sure for plan, held in one.unsure.items()
        )
    assert fewer


def test_a_search_that_is_stopped_at_once_answers_with_what_it_has() -> None:
    space = space_of(SMALL.but(cp=1))
    search = LayoutSearch(space.candidates, pause=lambda: stop_if(search.first is not None))
    with suppress(StopIteration):
        search.run()
    result = conclude(space, search, stopped_by="user")
    assert result.optimality == "best_found"
    assert result.best.plan.strategy in ("domino", "megatron")


def stop_if(done: bool) -> None:
    if done:
        raise StopIteration


def fits(one: Candidate, plan: SlicePlan, again: int) -> bool:
    return peak_bytes(one.recomputing(again), plan) <= one.case.memory.sure_bytes


def test_long_sequences_are_shared() -> None:
    asked = SMALL.but(model="llama3-8b", seq_length=32768)
    assert {one.cp for one in layouts_of(base_of(asked, DISK), asked)} == {1, 2, 4}
    assert {one.cp for one in layouts_of(base_of(SMALL, DISK), SMALL)} == {1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"global_batch_size": None}, "give --gpus N and --global-batch-size B"),
        ({"gpus": None}, "give --gpus N and --global-batch-size B"),
        ({"grad_accumulation": 2}, "Unknown field 'grad_accumulation'"),
        ({"dp": 4, "global_batch_size": 6}, "No layout divides 4 GPUs and 6 sequences as asked"),
        ({"tp": 3}, "No layout divides 4 GPUs"),
        (
            {"recompute": "per-op", "implementation": "torch", "sequence_parallel": False},
            r"as asked: with tp 4, .*--recompute per-op .*sequence-parallel",
        ),
    ],
)
def test_what_does_not_go_with_layouts_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tune_layouts(SMALL.but(**fields))


def test_a_model_that_fits_nowhere() -> None:
    with pytest.raises(InfeasiblePlanError, match="the smallest change that fits: --gpus 64"):
        tune_layouts(SMALL.but(model="gpt3-175b", overrides=()))
    asked = SMALL.but(model="llama3-70b", overrides=(), profile="h100-dgx", seq_length=8192)
    with pytest.raises(InfeasiblePlanError, match="the smallest change that fits: --gpus 32"):
        tune_layouts(asked.but(global_batch_size=16))


def test_the_command_prints_layouts_and_writes_the_best_plan(run: Runner, tmp_path: Path) -> None:
    words = (
        "layout", "--model", "gpt3-1.3b", "--profile", "a100-sxm", "--seq-length", "2048",
        "--gpus", "4", "--global-batch-size", "4", "--set", "num_hidden_layers=4",
        "--pp", "1",
    )  # fmt: skip
    plan, page, trace = (tmp_path / name for name in ("plan.json", "page.html", "trace.json"))
    done = run(*words, "--json", "--out", str(plan), "--report", str(page), "--trace", str(trace))
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    names = (
        "tp", "pp", "vpp", "cp", "dp", "micro_batch_size", "recompute", "mfu", "domino_gain",
        "tokens_per_second_per_gpu", "peak_memory_gib",
    )  # fmt: skip
    assert all(name in one for one in shown["layouts"] for name in names)
    assert (shown["optimality"], len(shown["layouts"])) == ("proven", shown["candidates"])
    assert shown["evaluations"] > 0
    written, compared = load_plan(str(plan)), shown["best"]["verdict"]["contestants"]
    assert written.cluster.world_size == 4
    leader = max((one for one in compared if one["fits"]), key=lambda one: one["chance"])
    assert written.plan.strategy == leader["strategy"]
    assert round(written.predicted.iteration_ms, 6) == leader["iteration_ms"]
    assert "micro-batch" in page.read_text("utf-8")
    assert trace.stat().st_size
    text = run(*words, "--recompute", "none", "--dp", "2").out
    assert "(num_hidden_layers=4) on 4 GPUs, 4 sequences an iteration" in text
    assert "Without Domino the best found is" in text
    assert "Proven the fastest of" in text
    assert "Not searched, so perhaps faster: " in text
