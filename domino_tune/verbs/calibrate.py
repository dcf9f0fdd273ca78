"""calibrate: a profile whose factors explain measured iterations of the user's own jobs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Final

from domino_tune.base.cores import Ahead, in_turn, where_many
from domino_tune.base.progress import Progress, no_progress
from domino_tune.requests import CalibrateRequest, SimulateRequest
from domino_tune.requests.options import by_field, request_from_text
from domino_tune.results.profile import CalibratedRun, CalibrateResult, LearntPart
from domino_tune.search.calibration import Fitted, MeasuredRun, fit_runs
from domino_tune.store.files import (
    bundled_names,
    check_writable,
    make_folder,
    read_text,
    user_profiles_dir,
)
from domino_tune.store.formats.megatron_log import read_megatron_log
from domino_tune.store.formats.run_table import RunRow, read_runs
from domino_tune.store.plans import ProfileRef
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.store.shelf import DISK, Shelf
from domino_tune.verbs.resolve import plan_of, resolve
from simulator.case import Case
from simulator.draws import CalibratedPart, Calibration
from simulator.dtypes import GIB, MS_PER_NS
from simulator.errors import DominoTuneError, InputError
from simulator.lookup import Provenance
from simulator.memory import peak_bytes
from simulator.model_flops import executed_per_gpu, least_iteration_s
from simulator.predict import predict
from simulator.profile import Profile

# Runs to calibrate by -----------------------------------------------------------------------------
# Which cannot have been, and which are samples of one.

LEAST_RUNS: Final = 2
MOST_APART: Final = 0.25
"""By how much samples of one run may differ, as a share of their mean."""
MOST_LABELS: Final = 4
"""Samples of a run that a message names."""


def check_possible(run: MeasuredRun) -> None:
    """Raise InputError, which names it, for a run that is faster than its GPUs can be or needs more
    memory than they have."""
    if run.plan.strategy == "no_comm":
        raise InputError(
            f"{run.label}: strategy no_comm is a bound, which no job can run; give the strategy "
            "that ran, mostly megatron."
        )
    _check_rate(run)
    machine = run.case.profile.machine
    try:
        needed_gib = peak_bytes(run.case, run.plan) / GIB
    except DominoTuneError as error:
        raise InputError(f"{run.label}: {error}") from None
    if needed_gib > machine.gpu_memory_gib:
        raise InputError(
            f"{run.label}: it needs {needed_gib:,.0f} GiB a GPU, where {machine.gpu} has "
            f"{machine.gpu_memory_gib:,.0f}, so it cannot have run as it is given; probably the "
            "layout, the batch, recomputation or the model is another. Correct it, or leave it out."
            f" {run.note}".rstrip()
        )


def _check_rate(run: MeasuredRun) -> None:
    case, machine = run.case, run.case.profile.machine
    math = case.workload.math
    tf32 = "it multiplied in TF32 (implementation_set tf32=true), " if math == "fp32" else ""
    least_ms = 1e3 * least_iteration_s(case)
    if run.measured_ms < least_ms:
        rate = 1e-12 * executed_per_gpu(case, round(run.measured_ms / MS_PER_NS))
        maths = dict.fromkeys((math, case.workload.linear_math))
        peaks = " and ".join(f"{machine.peaks[one]:,.5g} in {one}" for one in maths)
        raise InputError(
            f"{run.label}: {run.measured_ms:,.6g} ms would be {rate:,.0f} TFLOP/s a GPU, where "
            f"{machine.gpu} has {peaks}, which take {least_ms:,.6g} ms; probably {tf32}the number "
            "of GPUs, the batch or the model is another, or the time is not of a whole iteration. "
            f"Correct it, or leave it out. {run.note}".rstrip()
        )


def merged_samples(
    runs: Sequence[MeasuredRun], *, predicted: bool = False
) -> tuple[Sequence[MeasuredRun], tuple[str, ...]]:
    """Return runs of layouts that differ, those of one layout put together as their mean, and
    notes that say which were. ``predicted``: also those that differ in nothing that counts, whose
    predicted times are the same.

    Raise InputError for samples that contradict each other, and fewer than LEAST_RUNS layouts.
    """
    by_layout: dict[Hashable, list[MeasuredRun]] = {}
    for run in runs:
        key = predict(run.case, run.plan).makespan_ns if predicted else _layout(run)
        by_layout.setdefault(key, []).append(run)
    layouts = list(by_layout.values())
    same_words = "are predicted to take the same time" if predicted else "are of one layout"
    merged = [_merged(same, same_words) for same in layouts]
    if len(merged) < LEAST_RUNS:
        raise InputError(
            f"All runs {same_words}: {_labels(layouts[0])}. Give {LEAST_RUNS} or more of "
            "layouts that differ."
        )
    notes = tuple(
        f"{_labels(same)} {same_words}, so they count as {len(same)} samples of one run, "
        f"{one.measured_ms:,.6g} ms."
        for one, same in zip(merged, layouts, strict=True)
        if len(same) > 1
    )
    return merged, notes


def _layout(run: MeasuredRun) -> Hashable:
    """Return what runs of the same job in the same layout have in common."""
    case = run.case
    return case.model, case.workload, case.cluster, case.sequence_parallel, run.plan


def _merged(same: Sequence[MeasuredRun], same_words: str) -> MeasuredRun:
    if len(same) == 1:
        return same[0]
    times = [run.measured_ms for run in same]
    if max(times) - min(times) > MOST_APART * mean(times):
        raise InputError(
            f"{_labels(same)} {same_words} and contradict each other: {min(times):,.6g} to "
            f"{max(times):,.6g} ms. Check their options and times, or leave one out."
        )
    rounding_ms = max(run.rounding_ms for run in same)
    return replace(same[0], label=_labels(same), measured_ms=mean(times), rounding_ms=rounding_ms)


def _labels(same: Sequence[MeasuredRun]) -> str:
    named = [run.label for run in same[:MOST_LABELS]]
    more = len(same) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


# calibrate ----------------------------------------------------------------------------------------

USUAL: Final = "megatron"
"""Strategy of a run that does not name one."""
MOST_LEFT: Final = 0.25
"""Largest relative error of a run; a larger one means that the runs contradict each other."""
MOST_LEFT_OUT: Final = 0.25
"""Mean relative error of runs as the others predict them, from which on there is a warning."""
FAR: Final = 3.0
"""Number of prior widths by which a factor seldom moves."""


def calibrate(
    request: CalibrateRequest, progress: Progress = no_progress, *, shelf: Shelf = DISK
) -> CalibrateResult:
    """Fit the profile's factors to the runs, and save the calibrated profile.

    Names are looked up on ``shelf``. Raise InputError for runs that contradict each other or the
    machine, and if a profile that is not calibrated has the name.
    """
    profile = shelf.profile(request.profile)
    check_base(profile)
    asked = [asked_in(row, request.profile) for row in _rows(request)]
    path = _path(profile, request.name)
    one_profile = shelf._replace(profile=lambda _: profile)
    runs = [measured(one, one_profile) for one in asked]
    progress(f"{len(runs)} runs")
    files = [Path(one).name for one in (request.runs, *request.megatron_log) if one]
    made, result = calibrated(profile, request.name, runs, ", ".join(files), where_many)
    save_profile(made, path)
    return replace(result, path=str(path))


@dataclass(frozen=True, kw_only=True)
class AskedRun:
    """A measured iteration: a name for people, the plan as a request, its time, the most by which
    that was rounded, and a note that is repeated in the answer."""

    label: str
    request: SimulateRequest
    measured_ms: float
    rounding_ms: float = 0.0
    note: str = ""


def check_base(profile: Profile) -> None:
    """Raise InputError for a profile that cannot be calibrated."""
    if profile.calibration is not None:
        raise InputError(
            f"Profile {profile.name!r} is calibrated already; start from {profile.calibration.base}"
            ", and give all runs together."
        )


def calibrated(
    profile: Profile, name: str, runs: Sequence[MeasuredRun], told: str, ahead: Ahead = in_turn
) -> tuple[Profile, CalibrateResult]:
    """Return the profile that explains ``runs``, under its new ``name``, and the result of the fit.

    ``told`` says where the runs come from. Raise InputError for runs that contradict each other.
    """
    notes = tuple(run.note for run in runs if run.note)
    runs, merged = merged_samples(runs)
    runs, more = merged_samples(runs, predicted=True)
    fitted = fit_runs(runs, ahead)
    _refuse_contradictions(runs, fitted)
    made = replace(profile, name=name, calibration=_calibration(profile, fitted, runs, told))
    return made, replace(_result(made, fitted, runs), notes=notes + merged + more)


def _path(profile: Profile, name: str) -> Path:
    """Return the path of the calibrated profile, before the long fit starts.

    Raise InputError for an invalid name, or the name of a profile that would be lost.
    """
    if name in bundled_names():
        raise InputError(
            f"{name!r} is the name of a bundled profile, which stays as it is; give another --name."
        )
    replace(profile, name=name)  # raises for an invalid name
    if name == profile.name:
        raise InputError(
            f"{name!r} is the profile to start from, which stays as it is; give another --name."
        )
    path = user_profiles_dir() / f"{name}.json"
    if path.is_file() and load_profile(path).calibration is None:
        raise InputError(
            f"{name!r} is a profile of yours that is not calibrated; give another --name, so that "
            "it is not lost."
        )
    make_folder(path.parent, "choose another home with $DOMINO_TUNE_HOME")
    check_writable(path)
    return path


def _rows(request: CalibrateRequest) -> list[RunRow]:
    rows = read_runs(read_text(request.runs), request.runs) if request.runs else []
    rows += [read_megatron_log(read_text(path), Path(path).name) for path in request.megatron_log]
    if len(rows) < LEAST_RUNS:
        raise InputError(
            f"There are {len(rows)} runs; give two or more by --runs or --megatron-log, of layouts "
            "that differ."
        )
    return rows


def asked_in(row: RunRow, profile: str) -> AskedRun:
    """Return the run of a row. Raise InputError, which names the row, if it is faulty."""
    try:
        options = by_field(row.options)
        given = options.pop("profile", "") or profile
        if given != profile:
            raise InputError(f"it is of profile {given!r}; calibrate one at a time.")
        if options.get("plan"):
            raise InputError("it gives a plan file; give the plan's options instead.")
        usual = {} if options.get("strategy") else {"strategy": USUAL}
        request = request_from_text(SimulateRequest, {**options, **usual, "profile": profile})
    except DominoTuneError as error:
        raise InputError(f"{row.label}: {error}") from None
    return AskedRun(
        label=row.label, request=request, measured_ms=row.measured_ms, rounding_ms=row.rounding_ms,
        note=row.note,
    )  # fmt: skip


def planned(run: AskedRun, shelf: Shelf) -> MeasuredRun:
    """Return the run as a case and a plan. Raise InputError, which names the run, if that is
    impossible."""
    try:
        case = resolve(run.request, shelf=shelf)
        plan = plan_of(run.request, None, case)
    except DominoTuneError as error:
        raise InputError(f"{run.label}: {error}") from None
    return MeasuredRun(
        label=run.label, case=case, plan=plan, measured_ms=run.measured_ms,
        rounding_ms=run.rounding_ms, note=run.note,
    )  # fmt: skip


def check_predictable(run: MeasuredRun, *, whole: bool = False) -> None:
    """Raise InputError, which names the run, if it is impossible or cannot be predicted. To take
    only milliseconds, check one layer and micro-batch unless ``whole``: ``planned`` has checked how
    layers are divided."""
    check_possible(run)
    try:
        predict(run.case if whole else _one_layer(run.case), run.plan)
    except DominoTuneError as error:
        raise InputError(f"{run.label}: {error}") from None


def _one_layer(case: Case) -> Case:
    return replace(
        case,
        model=replace(case.model, num_hidden_layers=1),
        cluster=replace(case.cluster, pp=1, vpp=1),
        workload=replace(
            case.workload, grad_accumulation=1, pp_layers=(), recompute_layers=0,
            overlap_p2p=False,
        ),
    )  # fmt: skip


def measured(run: AskedRun, shelf: Shelf) -> MeasuredRun:
    """Return the run as ``planned`` does. Raise InputError also if it cannot be predicted."""
    made = planned(run, shelf)
    check_predictable(made, whole=True)
    return made


def _refuse_contradictions(runs: Sequence[MeasuredRun], fitted: Fitted) -> None:
    """Raise InputError for a run that no factors explain together with the others."""
    left = [
        (after_ms / run.measured_ms - 1, run)
        for run, after_ms in zip(runs, fitted.after_ms, strict=True)
    ]
    off, worst = max(left, key=lambda one: abs(one[0]))
    if abs(off) > MOST_LEFT:
        raise InputError(
            f"The runs contradict each other: with the factors that explain them best, "
            f"{worst.label} is predicted {off:+.0%} off, of which more than {MOST_LEFT:.0%} is "
            f"refused. Check its options and its time, or leave it out. {worst.note}".rstrip()
        )


def _calibration(
    profile: Profile, fitted: Fitted, runs: Sequence[MeasuredRun], told: str
) -> Calibration:
    parts = tuple(
        CalibratedPart(part=name, factor=round(one.factor, 6), error=round(one.error, 6))
        for name, one in sorted(fitted.parts.items())
    )
    return Calibration(
        parts=parts,
        constant_ms=round(fitted.constant_ms, 6),
        runs=len(runs),
        base=profile.name,
        provenance=Provenance(
            kind="fitted",
            source=f"{len(runs)} measured iterations: {told}",
            error=round(_mean_error(runs, fitted.left_out_ms), 6),
            note=f"Factors on {profile.name}; priors are its look-ups' errors, runs are off by "
            f"{fitted.noise:.1%} (from what the factors leave, and 2% assumed).",
        ),
    )


def _mean_error(runs: Sequence[MeasuredRun], times_ms: Sequence[float]) -> float:
    return mean(
        abs(time_ms / run.measured_ms - 1) for run, time_ms in zip(runs, times_ms, strict=True)
    )


def _result(made: Profile, fitted: Fitted, runs: Sequence[MeasuredRun]) -> CalibrateResult:
    told = zip(runs, fitted.before_ms, fitted.after_ms, fitted.left_out_ms, strict=True)
    return CalibrateResult(
        profile=ProfileRef.of(made),
        parts=tuple(
            LearntPart(part=name, factor=one.factor, prior=one.prior, error=one.error)
            for name, one in fitted.parts.items()
        ),
        constant_ms=fitted.constant_ms,
        constant_error_ms=fitted.constant_error_ms,
        runs=tuple(
            CalibratedRun(
                label=run.label, measured_ms=run.measured_ms, before_ms=float(before),
                after_ms=float(after), left_out_ms=float(left),
            )
            for run, before, after, left in told
        ),
        before_error=_mean_error(runs, fitted.before_ms),
        after_error=_mean_error(runs, fitted.after_ms),
        left_out_error=_mean_error(runs, fitted.left_out_ms),
        warnings=tuple(_warnings(fitted, _mean_error(runs, fitted.left_out_ms))),
    )  # fmt: skip


def _warnings(fitted: Fitted, left_out_error: float) -> list[str]:
    """Return which factors the profile's own errors hardly explain, and whether a run says little
    of another."""
    found = []
    if left_out_error > MOST_LEFT_OUT:
        found.append(
            f"On average, runs are {left_out_error:.0%} off when the others predict them, so do "
            "not trust this profile for other layouts: check options and times, or give more runs."
        )
    for name, one in fitted.parts.items():
        most = (1 + one.prior) ** FAR
        if not 1 / most <= one.factor <= most:
            found.append(
                f"The factor of {name} is {one.factor:.2f}, which an error of {one.prior:.0%} "
                "hardly explains: measure that part of the profile again, or check the runs."
            )
    return found
