"""Plans that may not fit are shown with their chance, and never recommended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domino_tune.requests import (
    LayoutRequest,
    ScaleRequest,
    SimulateRequest,
    TuneRequest,
    WhatIfRequest,
)
from domino_tune.results.layouts import LayoutsResult
from domino_tune.results.simulate import SimulateResult
from domino_tune.search.layouts import Candidate
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.store.shelf import DISK
from domino_tune.verbs.layout_space import base_of, candidates_of
from domino_tune.verbs.layouts import tune_layouts
from domino_tune.verbs.resolve import Chosen, memory_margin, plan_of, resolve
from domino_tune.verbs.scale import tune_scale
from domino_tune.verbs.simulate import simulate_plan
from domino_tune.verbs.tune import tune
from domino_tune.verbs.whatif import whatif
from simulator.dtypes import GIB
from simulator.errors import InfeasiblePlanError, InputError
from simulator.usable import NO_MARGIN, SURE, UNSURE, Margin
from tests.support.room import with_gib
from tests.support.runs import Runner

SMALL = LayoutRequest(
    model="gpt3-1.3b", profile="a100-sxm", seq_length=2048, gpus=2, global_batch_size=4,
    overrides=("num_hidden_layers=4",), pp=1, recompute="none",
)  # fmt: skip
JOB: dict[str, Any] = {
    "model": "gpt3-1.3b", "profile": "a100-sxm", "tp": 2, "seq_length": 2048,
    "micro_batch_size": 2, "overrides": ("num_hidden_layers=4",),
}  # fmt: skip


def filled(usable_over_peak: float) -> SimulateResult:
    """Return a plan on a GPU whose usable memory is this multiple of the plan's peak."""
    request = SimulateRequest(**JOB)
    case = resolve(request)
    chosen = Chosen.of(case, plan_of(request, None, case))
    known = simulate_plan(case, chosen)
    taken = known.usable_memory.gpu_gib - known.usable_memory.usable_gib
    return simulate_plan(with_gib(case, taken + usable_over_peak * known.peak_memory_gib), chosen)


@pytest.mark.parametrize(
    ("usable_over_peak", "fits", "said"),
    [
        (1.5, True, ""),
        (1.05, True, "so it is not recommended; up to"),
        (0.97, False, "GiB are usable: it could not run"),
    ],
)
def test_a_simulation_says_how_likely_it_fits(
    usable_over_peak: float, fits: bool, said: str
) -> None:
    found = filled(usable_over_peak)
    assert found.fits is fits
    assert (found.fits_chance >= SURE) is (not said)
    assert (found.peak_memory_gib <= found.usable_memory.recommended_gib) is (not said)
    assert (
        any(said in text for text in found.warnings)
        if said
        else not any("recommended" in text for text in found.warnings)
    )
    assert found.usable_memory.reserved_gib > found.peak_memory_gib
    notes = found.tables()[0].notes
    assert any(f"{found.peak_memory_gib:.1f} allocated, about" in note for note in notes)
    assert any(note.startswith("Usable: ") and "− 0.5 CUDA context" in note for note in notes)


def on_gpus_of(gib: float, folder: Path) -> str:
    """Return a profile whose GPUs report this much memory."""
    known = load_profile("a100-sxm")
    machine = replace(known.machine, gpu_memory_gib=gib)
    path = folder / f"{gib}.json"
    save_profile(replace(known, machine=machine), path)
    return str(path)


def looked_at(candidates: list[Candidate]) -> list[tuple[int, int]]:
    """Return time and peak of every plan that may be recommended, the fastest first."""
    found = (one.time(plan).timed for one in candidates for plan in one.plans)
    return sorted((one.iteration_ns, one.peak_bytes) for one in found if one)


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> tuple[LayoutRequest, LayoutsResult]:
    """Layouts on GPUs where the fastest one leaves 3 % free."""
    large = tune_layouts(SMALL)
    known, first = large.best.usable_memory, large.layouts[0]
    gib = known.gpu_gib - known.usable_gib + 1.03 * first.peak_memory_gib
    asked = SMALL.but(profile=on_gpus_of(gib, tmp_path_factory.mktemp("profiles")))
    return asked, tune_layouts(asked)


def test_faster_layouts_that_may_not_fit_are_shown_but_not_recommended(
    edge: tuple[LayoutRequest, LayoutsResult],
) -> None:
    asked, result = edge
    best = result.layouts[0]
    every = (*result.layouts, *result.frontier)
    assert min(one.fits_chance for one in every) >= SURE
    assert result.best.fits_chance == pytest.approx(best.fits_chance)
    assert result.unsure_layouts
    for one in result.unsure_layouts:
        assert one.fits_chance < SURE
        assert one.iteration_ms < best.iteration_ms
        assert one.peak_memory_gib <= result.best.usable_memory.gpu_gib
    times = [one.iteration_ms for one in result.unsure_layouts]
    assert times == sorted(times)
    tables = [table.title for table in result.tables()]
    assert "Faster, but not recommended: layouts that fit with a chance below 80 %" in tables
    assert result.infeasible[UNSURE]
    assert result.optimality == "proven"
    candidates, _, _edge = candidates_of(base_of(asked, DISK), asked)
    fastest_ns, _ = looked_at(candidates)[0]
    assert best.iteration_ms == pytest.approx(fastest_ns * 1e-6)


def test_a_larger_margin_leaves_fewer_layouts(edge: tuple[LayoutRequest, LayoutsResult]) -> None:
    asked, result = edge
    tight = tune_layouts(asked.but(memory_margin="10%"))
    assert tight.layouts[0].iteration_ms >= result.layouts[0].iteration_ms
    assert tight.candidates < result.candidates
    told = {one.what: one.gib for one in tight.best.usable_memory.taken}
    assert told["margin"] == pytest.approx(0.1 * tight.best.usable_memory.gpu_gib)


def test_where_nothing_is_recommended_the_most_likely_layout_is_named(tmp_path: Path) -> None:
    """Everything except the memory is fixed, so that one layout is left, which leaves 3 % free."""
    fixed = SMALL.but(gpus=4, tp=2, micro_batch_size=1, recompute="full")
    large = tune_layouts(fixed)
    known, first = large.best.usable_memory, large.layouts[0]
    gib = known.gpu_gib - known.usable_gib + 1.03 * first.peak_memory_gib
    with pytest.raises(InfeasiblePlanError) as caught:
        tune_layouts(fixed.but(profile=on_gpus_of(gib, tmp_path)))
    assert caught.value.reason == UNSURE
    assert "with a chance of 80 % or more; the most likely one is tp 2 × dp 2 at" in str(
        caught.value
    )
    assert "micro-batch 1, recomputed, which fits with " in str(caught.value)


def test_a_tune_recommends_no_plan_below_80_percent(tmp_path: Path) -> None:
    asked = TuneRequest(
        **{**JOB, "overrides": ("num_hidden_layers=2",)}, search="random",
        trials=24,
    )  # fmt: skip
    large = tune(asked)
    peaks = sorted({trial.peak_memory_gib for trial in large.trials})
    assert len(peaks) > 1
    known = large.best.usable_memory
    share = known.recommended_gib / known.usable_gib
    gib = known.gpu_gib - known.usable_gib + (peaks[0] + 1e-6) / share
    result = tune(asked.but(profile=on_gpus_of(gib, tmp_path)))
    assert result.best.fits_chance >= SURE
    assert min(trial.fits_chance for trial in result.trials) >= SURE
    assert result.infeasible[UNSURE]
    assert result.to_frame()["fits_chance"].min() >= SURE


def test_a_sweep_recommends_what_fits(edge: tuple[LayoutRequest, LayoutsResult]) -> None:
    asked, result = edge
    found = tune_scale(ScaleRequest(**{**dict(asked), "gpus": (1, 2)})).found
    assert all(layout.fits_chance >= SURE for _, layout in found)
    assert found[-1][1] == result.layouts[0]


def test_a_what_if_has_the_chance_of_its_own_job() -> None:
    request = WhatIfRequest(**JOB, change=("micro_batch_size=8",), memory_margin="72GiB")
    base, point = (one.prediction for one in (lambda r: (r.base, r.points[0]))(whatif(request)))
    assert base is not None
    assert point is not None
    assert point.fits_chance < base.fits_chance
    assert point.usable_memory.taken == base.usable_memory.taken


@pytest.mark.parametrize(
    ("text", "margin"),
    [
        (None, NO_MARGIN), ("0", NO_MARGIN), ("0%", NO_MARGIN), ("4GiB", Margin(4 * GIB)),
        ("512MiB", Margin(GIB // 2)), ("4GB", Margin(4 * 10**9)), ("5%", Margin(share=0.05)),
        (" 2.5 % ", Margin(share=0.025)),
    ],
)  # fmt: skip
def test_margins_are_read(text: str | None, margin: Margin) -> None:
    assert memory_margin("--memory-margin", text) == margin


@pytest.mark.parametrize("text", ["4", "-1GiB", "2x", "100%", "GiB", "5us", ""])
def test_what_is_no_margin_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--memory-margin must be a size or less than 100 %, "):
        memory_margin("--memory-margin", text)


EDGES = (
    ("a100-sxm", "llama2-7b", "--tp 1 --dp 8 --micro-batch-size 4"),
    ("h100-dgx", "llama3-8b", "--tp 2 --dp 4 --micro-batch-size 4"),
    ("h200-sxm", "llama2-13b", "--tp 1 --dp 8 --micro-batch-size 4"),
    ("b200-sxm", "llama2-13b", "--tp 1 --dp 8 --micro-batch-size 5"),
)


@pytest.mark.parametrize(("profile", "model", "options"), EDGES)
def test_the_command_shows_what_was_subtracted(
    profile: str, model: str, options: str, run: Runner
) -> None:
    job = ("--model", model, "--profile", profile, "--seq-length", "4096", *options.split())
    shown = run.answer("simulate", *job, "--strategy", "megatron")
    usable, sizes = shown["usable_memory"], {}
    for one in usable["taken"]:
        sizes[one["what"]] = one["gib"]
        assert one["source"].split(":")[0] in ("assumed", "counted")
    assert list(sizes) == ["CUDA context", "communicators"]
    left = usable["gpu_gib"] - sum(sizes.values())
    assert usable["usable_gib"] == pytest.approx(left, abs=1e-5)
    assert shown["fits"] is (shown["peak_memory_gib"] <= usable["usable_gib"])
    sure = shown["peak_memory_gib"] <= usable["recommended_gib"]
    assert sure is (shown["fits_chance"] >= SURE)
    text = run("simulate", *job, "--strategy", "megatron", "--memory-margin", "1GiB").out
    assert "(reported) − 0.5 CUDA context − " in text
    assert "− 1.0 margin = " in text
    assert "reserved; " in text
