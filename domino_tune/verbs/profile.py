"""profile: measure this machine into a profile until time is up; a later run continues."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from domino_tune.base.progress import Progress, no_progress
from domino_tune.measure.coverage import (
    CPU,
    GPU,
    coverage,
    cta_counts,
    model_free_probes,
    needed_bytes,
)
from domino_tune.measure.laws import lacking_loads
from domino_tune.measure.machine import differences, machine_of, ranks_per_node
from domino_tune.measure.probe_set import ProbeSet, lacks_waits
from domino_tune.measure.profiling import measure_profile, outliers_of
from domino_tune.requests import ProfileRequest
from domino_tune.requests.command_line import command_line
from domino_tune.requests.options import flag_of
from domino_tune.results.profile import MeasuredSection, ProfilingResult
from domino_tune.runtime.launch import find_launcher
from domino_tune.runtime.launch.launch import check_ready
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.files import (
    bundled_names,
    check_writable,
    make_folder,
    only_user,
    user_profiles_dir,
)
from domino_tune.store.plans import ProfileRef
from domino_tune.store.profiles import load_profile
from domino_tune.store.shelf import load_model, override
from domino_tune.verbs.ranks import check_runnable, launch_spec
from simulator.dtypes import GIB, Dtype
from simulator.errors import InputError, ProfileError
from simulator.profile import SECTIONS, Profile
from simulator.sharding import check_shardable
from simulator.specs import ClusterSpec, Workload

FOR_MODEL: Final = ("seq_length", "micro_batch_size")
LEAST_LENGTH: Final = 128
"""Shortest sequence that advice may suggest."""
MINUTE_S: Final = 60
NO_POWER: Final = (
    "Power and clock are not measured: NVIDIA's bindings are not installed "
    "(pip install 'domino_tune[kernels]')."
)
START_S: Final = 8
"""Time budgeted for starting ranks."""


@dataclass(frozen=True, kw_only=True)
class ProfileTask:
    """A resolved request: the profile to continue, and all probes that it needs."""

    request: ProfileRequest
    spec: LaunchSpec
    path: Path
    profile: Profile
    probes: ProbeSet
    notes: tuple[str, ...]

    @property
    def lacking(self) -> ProbeSet:
        """Probes that the profile does not hold yet."""
        return self.left_of(self.profile)

    def left_of(self, profile: Profile) -> ProbeSet:
        """Return the probes that ``profile`` does not hold yet."""
        return self.probes.lacking(profile, self.request.samples, self.spec.world_size)


def profile(request: ProfileRequest, progress: Progress = no_progress) -> ProfilingResult:
    """Measure the probes that the profile of that name lacks; ``progress`` gets rounds and times.

    Raise InputError for inconsistent options or a profile of another machine, and RunError if ranks
    fail; the file then holds everything that was measured before.
    """
    began = time.monotonic()
    task = resolve_task(request)
    with _locked(task.path):
        known = _existing(task.path, task.profile, force=request.force)
        return _measured(replace(task, profile=known), progress, began)


def _locked(path: Path) -> AbstractContextManager[None]:
    """Lock the profile's file, which only one run at a time may write; under a launcher rank 0
    locks it."""
    if not _is_main():
        return nullcontext()
    return only_user(path, "wait for it to end, or give another --name")


def _measured(task: ProfileTask, progress: Progress, began: float) -> ProfilingResult:
    request, lacking = task.request, task.lacking
    if lacking.is_empty:
        if not _is_main():
            raise SystemExit(0)
        return _result(task, task.profile, seconds=0.0)
    seconds = None
    if request.minutes is not None:
        seconds = max(1.0, request.minutes * MINUTE_S - START_S)
    if _is_main():
        progress(f"starting {task.spec.world_size} ranks: {_amount(lacking)}")
    measured = measure_profile(
        task.profile,
        lacking,
        task.spec,
        task.path,
        samples=request.samples,
        seconds=seconds,
        listener=lambda message: _report(progress, message),
    )
    return _result(task, measured, seconds=time.monotonic() - began)


def profile_path(name: str) -> Path:
    """Return the path of the profile ``name``. Raise InputError for a bundled profile's name."""
    if name in bundled_names():
        raise InputError(
            f"{name!r} is the name of a bundled profile, which a measured one may not replace; "
            "give another --name."
        )
    return user_profiles_dir() / f"{name}.json"


def resume_command(request: ProfileRequest) -> str:
    """Return the command that continues, which is the same command."""
    # ``--force`` stays: it is needed until the file holds a measurement of this machine.
    return command_line(request)


def resolve_task(request: ProfileRequest) -> ProfileTask:
    """Return the task of a request. Raise InputError before anything starts."""
    _check_options(request)
    spec = launch_spec(request, tp=request.tp, dp=request.dp or 1)
    check_ready(spec)
    machine = machine_of(spec)
    fresh = Profile(
        name=request.name, created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), machine=machine
    )
    path = profile_path(request.name)
    make_folder(path.parent, "choose another home with $DOMINO_TUNE_HOME")
    check_writable(path)
    known = _existing(path, fresh, force=request.force)
    per_node = ranks_per_node(spec)
    cluster = ClusterSpec(
        tp=spec.tp,
        dp=spec.dp,
        ranks_per_node=machine.gpus_per_node if spec.world_size <= per_node else per_node,
    )
    dtype = request.dtype or ("bf16" if spec.backend == "nccl" else "fp32")
    probes, notes = _probes(request, cluster, dtype, fresh)
    if spec.backend == "nccl" and find_spec("pynvml") is None:
        notes = (*notes, NO_POWER)
    elif spec.backend == "nccl":
        probes = replace(probes, loads=lacking_loads(None))
    return ProfileTask(
        request=request, spec=spec, path=path, profile=known, probes=probes, notes=notes
    )


def _probes(
    request: ProfileRequest, cluster: ClusterSpec, dtype: Dtype, profile: Profile
) -> tuple[ProbeSet, tuple[str, ...]]:
    if request.for_model is None:
        grid = GPU if profile.machine.backend == "nccl" else CPU
        return model_free_probes(grid, cluster, dtype, profile), ()
    loaded = load_model(request.for_model)
    model = override(loaded.spec, request.overrides)
    assert request.seq_length is not None
    assert request.micro_batch_size is not None
    workload = Workload(
        seq_length=request.seq_length, micro_batch_size=request.micro_batch_size, dtype=dtype
    )
    check_runnable(model, cluster.tp)
    check_shardable(model, workload, cluster)
    memory = round(profile.machine.gpu_memory_gib * GIB)

    def needed(job: Workload) -> int:
        return needed_bytes(model, job, cluster, profile, memory)

    if (need := needed(workload)) > memory:
        fits = _largest_that_fits(workload, lambda job: needed(job) <= memory)
        raise InputError(
            f"Measuring needs {need / GIB:.1f} GiB a rank, and a rank has {memory / GIB:.1f} GiB"
            f"{_words_of(workload, fits)}."
        )
    ctas = cta_counts(profile.machine)
    return coverage(model, workload, cluster, memory_bytes=memory, ctas=ctas), loaded.notes


def _largest_that_fits(workload: Workload, fits: Callable[[Workload], bool]) -> Workload | None:
    """Return the largest of the smaller jobs that fits; None if even the smallest does not."""
    smaller = list(_smaller(workload))
    first = bisect_left(smaller, True, key=fits)  # smaller jobs need less
    return smaller[first] if first < len(smaller) else None


def _smaller(workload: Workload) -> Iterator[Workload]:
    """Yield smaller jobs: halve the micro-batch repeatedly, then the sequence."""
    while workload.micro_batch_size > 1:
        workload = replace(workload, micro_batch_size=workload.micro_batch_size // 2)
        yield workload
    while workload.seq_length >= 2 * LEAST_LENGTH:
        workload = replace(workload, seq_length=workload.seq_length // 2)
        yield workload


def _words_of(asked: Workload, fits: Workload | None) -> str:
    """Return what to ask for instead, as the end of a sentence."""
    if fits is None:
        return "; measure a smaller model"
    changed = [
        f"{flag_of(ProfileRequest, name)} {getattr(fits, name)}"
        for name in FOR_MODEL
        if getattr(fits, name) != getattr(asked, name)
    ]
    return f"; with {' '.join(changed)} it fits"


def _check_options(request: ProfileRequest) -> None:
    given = [name for name in (*FOR_MODEL, "overrides") if getattr(request, name)]
    if request.for_model is None and given:
        flags = [flag_of(ProfileRequest, name) for name in given]
        raise InputError(
            f"{', '.join(flags)} cannot be used without --for-model; give that too, or leave this "
            "out for a general grid."
        )
    missing = [flag_of(ProfileRequest, name) for name in FOR_MODEL if name not in given]
    if request.for_model is not None and missing:
        raise InputError(f"--for-model needs {' and '.join(missing)} too; give them.")


def _existing(path: Path, fresh: Profile, *, force: bool) -> Profile:
    """Return the file's profile, else ``fresh``; ``force`` makes it a profile of this machine."""
    if not path.exists():
        return fresh
    try:
        known = replace(load_profile(path), name=fresh.name)  # the file may be a copy
    except ProfileError as error:
        raise ProfileError(f"{error} Remove the file, or give another --name.") from None
    found = differences(known.machine, fresh.machine)
    if found and not force:
        raise InputError(
            f"Profile {known.name!r} in {str(path)!r} is of another machine "
            f"({'; '.join(found)}). Give another --name, or --force to go on with it."
        )
    if found:  # new rows are of this machine; this detail records that others are not
        earlier = known.machine.details.get("forced")
        forced = "; ".join([earlier, *found] if earlier else found)
        details = {**fresh.machine.details, "forced": forced}
        return replace(known, machine=replace(fresh.machine, details=details))
    return known


def _is_main() -> bool:
    """Return whether this process prints the result: under torchrun or Slurm, only rank 0 does."""
    launcher = find_launcher()
    return launcher is None or launcher.rank == 0


def _amount(probes: ProbeSet) -> str:
    plans = sum(len(case.plans) for case in probes.cases)
    return f"{plans} plans, {len(probes.collectives)} collectives to measure"


def _report(progress: Progress, message: Mapping[str, Any]) -> None:
    if message["kind"] == "progress":
        progress(
            f"round {message['round']} of {message['rounds']} after {_span(message['elapsed_s'])}, "
            f"about {_span(message['remaining_s'])} left"
        )


def _span(seconds: float) -> str:
    """Return a time as text: ``1 min 05 s``."""
    minutes, rest = divmod(round(seconds), MINUTE_S)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _result(task: ProfileTask, measured: Profile, *, seconds: float) -> ProfilingResult:
    left = task.left_of(measured)
    sections = tuple(_section(task, measured, left, name) for name in SECTIONS)
    return ProfilingResult(
        profile=ProfileRef.of(measured),
        path=str(task.path),
        complete=left.is_empty,
        seconds=seconds,
        sections=sections,
        outliers=outliers_of(measured),
        rows=sum(section.rows or 0 for section in sections),
        left=sum(section.left or 0 for section in sections),
        resume=None if left.is_empty else resume_command(task.request),
        notes=task.notes,
    )


def _section(task: ProfileTask, after: Profile, left: ProbeSet, name: str) -> MeasuredSection:
    """Return the counts of one section; fits such as launch and skew have no rows to count."""
    lacking: int | None = None
    if name == "power":
        lacking = len(left.loads)
    elif name in ("gemm", "attention", "pointwise"):
        lacking = sum(signature.kind == name for signature in left.ops)
    elif name == "collectives":
        lacking = len(left.collectives)
    elif name == "contention":
        probes = left.contention
        lacking = 0 if probes is None else len(probes.messages)
    elif name in ("skew", "resume"):
        known = getattr(after, name) is not None
        lacking = int(not known and lacks_waits(after, task.spec.world_size))
    now, old = getattr(after, name), getattr(task.profile, name)
    if now is not None and not hasattr(now, "rows"):
        return MeasuredSection(section=name, rows=None, new=int(now != old), left=lacking)
    rows, earlier = (getattr(section, "rows", ()) for section in (now, old))
    return MeasuredSection(
        section=name, rows=len(rows), new=len(set(rows) - set(earlier)), left=lacking
    )
