"""Power caps and clocks, as users set and read them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domino_tune.runtime.plan_runs import Measured
from domino_tune.verbs.validate import PlanToRun, at_speed, present_speed
from simulator.case import Case
from simulator.engine import play
from simulator.greedy import order_of
from simulator.plan import NO_COMM, SlicePlan
from simulator.predict import played
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload
from tests.support.runs import Runner
from tests.unit.simulator.cases import hot_profile

JOB = (
    "--model", "llama2-7b", "--profile", "h100-dgx", "--tp", "8", "--seq-length", "2048",
    "--micro-batch-size", "4",
)  # fmt: skip


def answer(run: Runner, *words: str) -> dict[str, Any]:
    return run.answer("simulate", *JOB, *words)


def test_a_lower_cap_is_slower_and_takes_less_energy(run: Runner) -> None:
    usual, capped = answer(run), answer(run, "--power-cap", "450W")
    assert capped["iteration_ms"] > usual["iteration_ms"]
    assert capped["clock_mhz"] < usual["clock_mhz"]
    assert capped["joules_per_token"] < usual["joules_per_token"]
    assert capped["power_w"] <= 450
    assert capped["cluster"]["power_cap_w"] == 450


@pytest.mark.parametrize("text", ["450", "450W", "0.45kW", "450w"])
def test_watts_are_written_as_people_do(run: Runner, text: str) -> None:
    assert answer(run, "--power-cap", text)["cluster"]["power_cap_w"] == pytest.approx(450)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--power-cap", "abc"), "write it like 500W."),
        (("--power-cap", "0"), "above 0"),
        (("--power-cap", "100W"), "above the 134 W"),
        (("--set", "clock_mhz=99"), "from 600 to 1980 MHz"),
    ],
)
def test_limits_that_no_gpu_has(run: Runner, words: tuple[str, ...], said: str) -> None:
    assert said in run.refused("simulate", *JOB, *words)


def test_a_cap_that_the_lowest_clock_does_not_keep_is_told(run: Runner) -> None:
    found = answer(run, "--power-cap", "150W")
    assert any("cannot be kept" in text for text in found["warnings"])
    assert found["power_w"] > 150


def test_limits_stand_in_the_plan_and_end_with_its_machine(run: Runner, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    search = ("--search", "random", "--trials", "2", "--out", plan)
    assert run("tune", *JOB, "--power-cap", "500W", *search).code == 0
    kept = json.loads(run("simulate", "--plan", plan, "--json").out)
    assert kept["cluster"]["power_cap_w"] == 500
    moved = json.loads(run("simulate", "--plan", plan, "--profile", "a100-sxm", "--json").out)
    assert moved["cluster"]["power_cap_w"] == 0


def test_whatif_sweeps_the_cap(run: Runner) -> None:
    done = run("whatif", *JOB, "--sweep", "power_cap=400W,500W,600W", "--json")
    points = json.loads(done.out)["points"]
    clocks = [point["clock_mhz"] for point in points]
    assert clocks == sorted(clocks)
    assert len(set(clocks)) == 3


def test_a_machine_that_is_as_predicted_computes_at_its_profiles_speed() -> None:
    """The clock is in the prediction, so it must not be found again as a slower machine."""
    case = Case(
        model=replace(MODELS["llama2-7b"], num_hidden_layers=4),
        workload=Workload(seq_length=2048, micro_batch_size=4),
        cluster=ClusterSpec(tp=8), profile=hot_profile(),
    )  # fmt: skip
    bound = played(case, NO_COMM)
    timeline = play(bound.schedule, bound.program)
    typical_ns = tuple(float(bound.cost.duration_ns(op.signature)) for op in timeline.ops)
    measured = Measured(label="bound", timeline=timeline, typical_ns=typical_ns)
    speed = present_speed(bound.cost, measured)
    assert speed is not None
    assert speed == pytest.approx(1)
    plan = SlicePlan(row_slices=2)
    run = played(case, plan)
    one = PlanToRun(name="plan", plan=plan, order=order_of(case, plan))
    assert at_speed(case, one, run, speed).makespan_ns == run.totals.makespan_ns
