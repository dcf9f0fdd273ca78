"""Factors from runs whose truth is known: played on a drawn machine, then fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import mean
from typing import Any, Final, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from domino_tune.base.cores import in_turn, on_all_cores
from domino_tune.requests import SimulateRequest
from domino_tune.search.calibration import (
    CONSTANT_SHARE,
    LAUNCH_ERROR,
    LEAST_ERROR,
    NOISE,
    NOISE_RUNS,
    Fitted,
    MeasuredRun,
    _best,
    _Problem,
    fit_runs,
    predicted_ms,
)
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import plan_of, resolve
from simulator.draws import MOST_FACTOR, PARTS, Draw, family_of
from simulator.dtypes import MS_PER_NS
from simulator.predict import played, predict
from simulator.profile import Profile

LAYOUTS: Final[tuple[dict[str, Any], ...]] = (
    {"model": "gpt3-1.3b", "tp": 8, "seq_length": 1024, "micro_batch_size": 2},
    {"model": "gpt3-6.7b", "tp": 8, "micro_batch_size": 2},
    {"model": "gpt3-6.7b", "tp": 4, "dp": 2, "grad_accumulation": 2},
    {"model": "gpt3-6.7b", "tp": 2, "pp": 2, "dp": 2, "grad_accumulation": 4},
    {"model": "llama3-8b", "tp": 2, "dp": 4, "seq_length": 4096},
    {"model": "llama3-8b", "tp": 8, "seq_length": 8192},
    {"model": "gpt3-1.3b", "tp": 1, "dp": 8, "micro_batch_size": 2},
    {"model": "gpt3-1.3b", "tp": 2, "dp": 16, "seq_length": 1024, "micro_batch_size": 4},
    {"model": "gpt3-13b", "tp": 4, "pp": 2, "micro_batch_size": 2, "grad_accumulation": 2},
    {"model": "llama2-7b", "tp": 4, "seq_length": 4096},
    {"model": "gpt3-2.7b", "tp": 2, "dp": 4, "micro_batch_size": 2},
    {"model": "gpt3-6.7b", "tp": 8, "dp": 2, "seq_length": 1024},
)
TOLD: Final = 8
"""Layouts that are fitted; the others are predicted."""
TRUTH: Final = {
    "gemm": 1.06, "attention": 0.97, "pointwise": 1.15, "collective": 1.02,
    "collective_between_nodes": 1.25,
}  # fmt: skip
CONSTANT_MS: Final = 0.2


@cache
def profile(*, power: bool = False) -> Profile:
    known = load_profile("h100-dgx")
    return known if power else replace(known, power=None)


def run_of(
    given: Mapping[str, Any], truth: Mapping[str, float], constant_ms: float = 0.0,
    known: Profile | None = None,
) -> MeasuredRun:  # fmt: skip
    """A run as it takes on a machine whose parts are off by the factors of ``truth``."""
    asked: dict[str, Any] = {
        "profile": "h100-dgx", "strategy": "megatron", "seq_length": 2048, "micro_batch_size": 1,
        "cuda_graph": True, "overrides": ("num_hidden_layers=2",),
    }  # fmt: skip
    request = SimulateRequest(**{**asked, **given})
    case = replace(resolve(request), profile=known or profile())
    plan = plan_of(request, None, case)
    there = case.drawn(Draw(factors={one: truth[part] for part in truth for one in PARTS[part]}))
    measured_ms = predict(there, plan).makespan_ns * MS_PER_NS + constant_ms
    return MeasuredRun(label=str(given), case=case, plan=plan, measured_ms=measured_ms)


@cache
def runs() -> tuple[MeasuredRun, ...]:
    return tuple(run_of(given, TRUTH, CONSTANT_MS) for given in LAYOUTS)


@cache
def fitted() -> Fitted:
    return fit_runs(runs()[:TOLD])


def errors(times_ms: Sequence[float], measured: Sequence[MeasuredRun]) -> list[float]:
    return [
        abs(time_ms / run.measured_ms - 1)
        for time_ms, run in zip(times_ms, measured, strict=True)
    ]  # fmt: skip


def test_runs_tell_what_other_layouts_take() -> None:
    others = runs()[TOLD:]
    before = [predict(run.case, run.plan).makespan_ns * MS_PER_NS for run in others]
    assert max(errors(predicted_ms(others, fitted()), others)) < 0.01
    assert min(errors(before, others)) > 0.02


def test_factors_that_the_runs_tell_are_near_the_truth() -> None:
    parts = fitted().parts
    assert set(parts) == set(TRUTH)
    told = {name for name, one in parts.items() if one.error < 0.7 * one.prior}
    assert {"gemm", "pointwise", "collective_between_nodes"} <= told
    for name, one in parts.items():
        width = one.error if name in told else one.prior
        assert abs(np.log(one.factor / TRUTH[name])) < np.log1p(width), name
    assert abs(fitted().constant_ms - CONSTANT_MS) < fitted().constant_error_ms


def test_what_runs_are_off_by_is_learnt_with_the_factors() -> None:
    """Runs that no part explains leave the parts less sure than runs that the parts explain."""
    assert fitted().noise < NOISE
    off = [
        replace(run, measured_ms=run.measured_ms * (1.15 if number % 2 else 1 / 1.15))
        for number, run in enumerate(runs()[:TOLD])
    ]
    found = fit_runs(off)
    assert 0.06 < found.noise < 0.2
    for name in ("gemm", "pointwise"):
        assert found.parts[name].error > fitted().parts[name].error
        assert found.parts[name].error <= found.parts[name].prior


def test_runs_never_make_a_part_less_sure() -> None:
    for one in fitted().parts.values():
        assert 0 < one.error <= one.prior * (1 + 1e-9)
    assert fitted().constant_error_ms <= fitted().constant_prior_ms * (1 + 1e-9)
    shortest_ms = min(run.measured_ms for run in runs()[:TOLD])
    assert fitted().constant_prior_ms == pytest.approx(CONSTANT_SHARE * shortest_ms)


def test_the_fit_explains_its_runs_better_than_the_profile_does() -> None:
    told = runs()[:TOLD]
    before, after, left_out = (
        errors(times, told)
        for times in (fitted().before_ms, fitted().after_ms, fitted().left_out_ms)
    )
    assert max(after) < 0.01 < 0.05 < mean(before)
    assert mean(after) < mean(left_out) < mean(before)
    nominal = [predict(run.case, run.plan).makespan_ns * MS_PER_NS for run in told]
    assert fitted().before_ms == pytest.approx(nominal)
    assert fitted().after_ms == pytest.approx(predicted_ms(told, fitted()))


def test_a_run_is_predicted_by_the_others_as_if_they_were_fitted_alone() -> None:
    """One step from the fit of all runs comes near the fit of all but one."""
    number = 4
    others = [run for index, run in enumerate(runs()[:TOLD]) if index != number]
    (anew,) = predicted_ms([runs()[number]], fit_runs(others))
    assert fitted().left_out_ms[number] == pytest.approx(anew, rel=0.005)


def test_a_constant_is_as_sure_as_the_runs_that_tell_it() -> None:
    """Were nothing else unknown, its precision would be its prior's and the runs' together; where
    a run alone tells it, the others do not say what that run takes."""
    measured_ms = [run.measured_ms for run in runs()[:TOLD]]
    precision = sum(1 / (fitted().noise * each) ** 2 for each in measured_ms)
    least_ms = (1 / fitted().constant_prior_ms ** 2 + precision) ** -0.5
    assert least_ms < fitted().constant_error_ms < 0.6 * fitted().constant_prior_ms
    long = [run_of(given, {}) for given in LAYOUTS[1:TOLD]]
    short = run_of(LAYOUTS[0], {}, constant_ms=0.1)
    left_out_ms = fit_runs([short, *long]).left_out_ms[0]
    assert left_out_ms == pytest.approx(short.measured_ms - 0.1, rel=0.005)


def test_a_machine_like_its_profile_keeps_all_factors() -> None:
    found = fit_runs([run_of(given, {}) for given in LAYOUTS[:4]])
    for one in found.parts.values():
        assert one.factor == pytest.approx(1.0, abs=1e-6)
    assert found.constant_ms == pytest.approx(0.0, abs=1e-6)


def test_factors_are_fitted_again_only_where_the_noise_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One exact run tells nothing of noise; three that nothing explains tell of a lot."""
    alone = [run_of(LAYOUTS[0], {})]
    off = [
        replace(run, measured_ms=run.measured_ms * factor)
        for run, factor in zip(runs()[:3], (1.3, 0.7, 1.3), strict=True)
    ]
    usual = [fit_runs(told) for told in (alone, off)]
    monkeypatch.setattr("domino_tune.search.calibration.SETTLED", np.inf)
    once = [fit_runs(told) for told in (alone, off)]
    assert usual[0] == once[0]
    assert usual[1] != once[1]


@pytest.mark.parametrize("rounding_ms", [0.0, 0.05, 5.0])
def test_noise_of_one_run_by_hand(rounding_ms: float) -> None:
    """The prior counts NOISE_RUNS times, the run once less the share that the unknowns explain.
    What rounding explains is no noise."""
    run = replace(runs()[0], rounding_ms=rounding_ms)
    problem = _Problem([run], in_turn)
    x = np.zeros(len(problem.names) + 1)
    told = float((problem.jacobian(x)[0] ** 2).sum())
    off = np.log(problem.times_ms(x)[0] / run.measured_ms)
    unexplained = max(0.0, off**2 - (rounding_ms / run.measured_ms) ** 2 / 3)
    problem.learn_noise(x)
    squares = NOISE_RUNS * NOISE**2 + unexplained
    assert problem.noise**2 == pytest.approx(squares / (NOISE_RUNS + 1 / (1 + told)))


def test_a_parts_prior_is_its_ops_errors_by_their_times() -> None:
    run = runs()[0]
    found = fit_runs([run])
    alone = played(run.case, run.plan)
    for part, families in PARTS.items():
        spent = unsure = 0.0
        for op in alone.schedule.ops():
            if family_of(op.signature) in families:
                estimate = alone.cost.estimate(op.signature)
                spent += estimate.duration_us
                unsure += estimate.duration_us * estimate.error
        assert (part in found.parts) == bool(spent)
        if spent:
            prior = max(LEAST_ERROR, unsure / spent)
            assert found.parts[part].prior == pytest.approx(prior, rel=1e-9), part


def test_a_fit_is_as_it_was() -> None:
    """What is assumed of noise, constants and hosts is in these numbers."""
    known = {
        "gemm": (1.0375, 0.0418), "attention": (1.004, 0.099), "pointwise": (1.1909, 0.061),
        "collective": (1.0074, 0.045), "collective_between_nodes": (1.2533, 0.0436),
    }  # fmt: skip
    found = {name: (one.factor, one.error) for name, one in fitted().parts.items()}
    assert found == {name: pytest.approx(numbers, rel=5e-3) for name, numbers in known.items()}
    times_ms = fitted().constant_ms, fitted().constant_prior_ms, fitted().constant_error_ms
    assert times_ms == pytest.approx((0.15194, 0.18781, 0.0899), rel=5e-3)
    assert fitted().noise == pytest.approx(0.013942, rel=5e-3)


def test_of_several_hosts_the_likeliest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that would end worse is passed over; those after it are tried."""
    costs = {0.0: 1.0, 4.0: 0.1, 8.0: 0.5, 12.0: 0.7}
    likely, tried = {4.0: 1.0, 8.0: 0.9, 12.0: 0.4}, list[float]()

    class Hosts:
        def likely_cost(self, x: NDArray[np.float64]) -> float:
            return likely[x[0]]

    def squares(_: object, start: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        tried.append(start[0])
        return start, costs[start[0]]

    monkeypatch.setattr("domino_tune.search.calibration._least_squares", squares)
    found = _best(cast("_Problem", Hosts()), [np.array([one]) for one in costs])
    assert found[0] == 8.0
    assert tried == [0.0, 8.0, 12.0]


def test_more_cores_give_the_same_answer() -> None:
    told = runs()[:2]
    assert fit_runs(told, on_all_cores) == fit_runs(told)


def test_parts_that_no_run_uses_stay_out() -> None:
    alone = {"model": "gpt3-1.3b", "tp": 1}
    found = fit_runs([run_of({**alone, "micro_batch_size": size}, {}) for size in (1, 2)])
    assert set(found.parts) == {"gemm", "attention", "pointwise"}
    launching = fit_runs([run_of({**alone, "cuda_graph": False}, {})])
    assert set(launching.parts) == {"gemm", "attention", "pointwise", "launch"}
    assert launching.parts["launch"].prior == pytest.approx(LAUNCH_ERROR)
    powered = fit_runs([run_of(alone, {}, known=profile(power=True))])
    assert set(powered.parts) == {"gemm", "attention", "pointwise", "power"}


def test_a_fused_kernel_tells_of_gemms_and_collectives() -> None:
    given = {"model": "gpt3-1.3b", "tp": 8, "strategy": "fused"}
    found = fit_runs([run_of(given, {"collective": 1.1})])
    assert {"gemm", "collective"} <= set(found.parts)
    assert found.parts["collective"].prior < 0.12  # its own error, not that of such kernels
    assert found.parts["collective"].factor > 1.0


def test_a_slow_host_is_found_although_nothing_waited_for_it() -> None:
    """The profile's host is so fast that a third more of its costs hardly changes any time."""
    layouts = [
        {
            **LAYOUTS[number],
            "cuda_graph": False,
            "micro_batch_size": size,
            "implementation": "domino-tune",
        }
        for number, size in ((1, 1), (1, 2), (2, 1), (5, 1))
    ]
    for given in layouts:
        usual, slower = (run_of(given, {"launch": factor}).measured_ms for factor in (1.0, 1.3))
        assert slower == pytest.approx(usual, rel=1e-3)
    found = fit_runs([run_of(given, {"launch": 10.0}) for given in layouts])
    host = found.parts["launch"]
    assert host.factor == pytest.approx(10.0, rel=0.05)
    assert host.error < 0.1
    for name, one in found.parts.items():
        assert name == "launch" or one.factor == pytest.approx(1.0, abs=0.05)


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_draw_of_power_is_found_where_the_cap_holds_the_clock(factor: float) -> None:
    known = profile(power=True)
    assert known.power is not None
    hot = replace(known, power=replace(known.power, cap_w=450.0))
    told = [run_of(given, {"power": factor}, known=hot) for given in LAYOUTS[:6]]
    found = fit_runs(told)
    power = found.parts["power"]
    assert (power.factor > 1) == (factor > 1)
    assert abs(np.log(power.factor)) > abs(np.log(factor)) / 4
    assert power.error < 0.7 * power.prior
    assert max(errors(found.after_ms, told)) < 0.01


def test_a_power_law_without_error_is_hardly_moved() -> None:
    known = profile(power=True)
    assert known.power is not None
    sure = tuple(replace(one, error=0.0) for one in known.power.families)
    exact = replace(known, power=replace(known.power, families=sure))
    found = fit_runs([run_of(given, {"gemm": 1.05}, known=exact) for given in LAYOUTS[:3]])
    assert found.parts["power"].prior == pytest.approx(LEAST_ERROR)
    assert found.parts["power"].factor == pytest.approx(1.0, abs=2 * LEAST_ERROR)


@pytest.mark.parametrize("measured_ms", [1e-3, 1e9])
def test_absurd_times_end_in_factors_within_bounds(measured_ms: float) -> None:
    given = run_of({"model": "gpt3-1.3b", "tp": 2}, {})
    found = fit_runs([given, replace(given, measured_ms=measured_ms)])
    for one in found.parts.values():
        assert abs(np.log(one.factor)) <= np.log(MOST_FACTOR) * (1 + 1e-9)
    times = (*found.after_ms, *found.left_out_ms, found.constant_ms)
    assert all(np.isfinite(one) and one >= 0 for one in times)
