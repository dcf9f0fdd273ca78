"""calibrate: a profile whose factors explain measured iterations of the user's own jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Final

from domino_tune.base.cores import on_all_cores
from domino_tune.base.progress import Progress, no_progress
from domino_tune.requests import CalibrateRequest, SimulateRequest
from domino_tune.requests.from_text import by_field, request_from_text
from domino_tune.results.calibrate import CalibratedRun, CalibrateResult, LearntPart
from domino_tune.search.calibration import NOISE, Fitted, MeasuredRun, fit_runs
from domino_tune.store.files import check_writable, make_folder, read_text
from domino_tune.store.formats.megatron_log import read_megatron_log
from domino_tune.store.formats.run_table import RunRow, read_runs
from domino_tune.store.models import LoadedModel
from domino_tune.store.plans import ProfileRef
from domino_tune.store.profiles import bundled_names, load_profile, save_profile, user_profiles_dir
from domino_tune.store.shelf import DISK, Shelf
from domino_tune.verbs.resolve import plan_of, resolve
from simulator.calibration import CalibratedPart, Calibration
from simulator.errors import DominoTuneError, InputError
from simulator.predict import predict
from simulator.profile import Profile
from simulator.provenance import Provenance

MOST_LEFT: Final = 0.25
"""Error of a run beyond which the runs contradict it."""
FAR: Final = 3.0
"""Prior widths by which a factor moves seldom."""


def calibrate(
    request: CalibrateRequest, progress: Progress = no_progress, *, shelf: Shelf = DISK
) -> CalibrateResult:
    """Fit the profile's factors to the runs, and save the calibrated profile.

    Names are looked up on ``shelf``. Raise InputError for runs that contradict each other or the
    machine, and where the name is taken by a profile that is not calibrated.
    """
    profile = shelf.profile(request.profile)
    if profile.calibration is not None:
        raise InputError(
            f"Profile {profile.name!r} is calibrated already; start from {profile.calibration.base}"
            ", and give all runs together."
        )
    rows = _rows(request)
    path = _path(profile, request.name)
    runs = [_run(row, request.profile, OneProfile(profile, shelf)) for row in rows]
    progress(f"{len(runs)} runs")
    fitted = fit_runs(runs, on_all_cores)
    _refuse_contradictions(runs, fitted)
    made = replace(
        profile, name=request.name, calibration=_calibration(profile, fitted, runs, request)
    )
    save_profile(made, path)
    return _result(made, str(path), fitted, runs)


@dataclass(frozen=True)
class OneProfile:
    """The profile of all runs, beside the models of ``shelf``."""

    start: Profile
    shelf: Shelf

    def profile(self, name: str) -> Profile:
        """Return the profile, whose look-ups all runs share."""
        return self.start

    def model(self, name: str, overrides: Iterable[str] = ()) -> LoadedModel:
        """Return the model of ``shelf``."""
        return self.shelf.model(name, overrides)


def _path(profile: Profile, name: str) -> Path:
    """Return where the calibrated profile goes, before the long fit starts.

    Raise InputError for a name that is no name, or of a profile that would be lost.
    """
    if name in bundled_names():
        raise InputError(
            f"{name!r} is the name of a bundled profile, which stays as it is; give another --name."
        )
    replace(profile, name=name)  # raises for what is no name
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
    if len(rows) < 2:
        raise InputError(
            f"There are {len(rows)} runs; give two or more by --runs or --megatron-log, of layouts "
            "that differ."
        )
    return rows


def _run(row: RunRow, profile: str, shelf: Shelf) -> MeasuredRun:
    try:
        options = by_field(row.options)
        given = options.pop("profile", "") or profile
        if given != profile:
            raise InputError(f"it is of profile {given!r}; calibrate one at a time.")
        if options.get("plan"):
            raise InputError("it gives a plan file; give the plan's options instead.")
        usual = {} if options.get("strategy") else {"strategy": "megatron"}
        asked = {**options, **usual, "profile": profile}
        request = request_from_text(SimulateRequest, asked)
        case = resolve(request, shelf=shelf)
        plan = plan_of(request, None, case)
        predict(case, plan)
    except DominoTuneError as error:
        raise InputError(f"{row.label}: {error}") from None
    return MeasuredRun(label=row.label, case=case, plan=plan, measured_ms=row.measured_ms)


def _refuse_contradictions(runs: Sequence[MeasuredRun], fitted: Fitted) -> None:
    """Raise InputError for a run that no factors explain beside the others."""
    left = [
        (after_ms / run.measured_ms - 1, run.label)
        for run, after_ms in zip(runs, fitted.after_ms, strict=True)
    ]
    off, worst = max(left, key=lambda one: abs(one[0]))
    if abs(off) > MOST_LEFT:
        raise InputError(
            f"The runs contradict each other: with the factors that explain them best, {worst} is "
            f"predicted {off:+.0%} off, of which more than {MOST_LEFT:.0%} is refused. Check its "
            "options and its time, or leave it out."
        )


def _calibration(
    profile: Profile, fitted: Fitted, runs: Sequence[MeasuredRun], request: CalibrateRequest
) -> Calibration:
    parts = tuple(
        CalibratedPart(part=name, factor=round(one.factor, 6), error=round(one.error, 6))
        for name, one in sorted(fitted.parts.items())
    )
    files = [Path(one).name for one in (request.runs, *request.megatron_log) if one]
    return Calibration(
        parts=parts,
        constant_ms=round(fitted.constant_ms, 6),
        runs=len(runs),
        base=profile.name,
        provenance=Provenance(
            kind="fitted",
            source=f"{len(runs)} measured iterations: {', '.join(files)}",
            error=round(_mean_error(runs, fitted.left_out_ms), 6),
            note=f"Factors on {profile.name}; priors are its look-ups' errors, runs are off by "
            f"{NOISE:.0%} (assumed).",
        ),
    )


def _mean_error(runs: Sequence[MeasuredRun], times_ms: Sequence[float]) -> float:
    return mean(
        abs(time_ms / run.measured_ms - 1) for run, time_ms in zip(runs, times_ms, strict=True)
    )


def _result(
    made: Profile, path: str, fitted: Fitted, runs: Sequence[MeasuredRun]
) -> CalibrateResult:
    told = zip(runs, fitted.before_ms, fitted.after_ms, fitted.left_out_ms, strict=True)
    return CalibrateResult(
        profile=ProfileRef.of(made),
        path=path,
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
        warnings=tuple(_warnings(fitted)),
    )  # fmt: skip


def _warnings(fitted: Fitted) -> list[str]:
    """Return which factors the profile's own errors hardly explain."""
    found = []
    for name, one in fitted.parts.items():
        most = (1 + one.prior) ** FAR
        if not 1 / most <= one.factor <= most:
            found.append(
                f"The factor of {name} is {one.factor:.2f}, which an error of {one.prior:.0%} "
                "hardly explains: measure that part of the profile again, or check the runs."
            )
    return found
