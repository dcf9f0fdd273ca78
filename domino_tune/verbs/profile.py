"""profile: measure this machine into a profile, as far as the time allows; go on the next time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from domino_tune.base.progress import Progress, no_progress
from domino_tune.measure.coverage import coverage, cta_counts
from domino_tune.measure.machine import machine_of, ranks_per_node
from domino_tune.measure.model_free import CPU, GPU, general
from domino_tune.measure.outliers import outliers_of
from domino_tune.measure.probe_set import Wanted
from domino_tune.measure.profiling import measure_profile
from domino_tune.measure.same_machine import differences
from domino_tune.requests import ProfileRequest
from domino_tune.requests.command_line import command_line
from domino_tune.results.profile import MeasuredSection, ProfilingResult
from domino_tune.runtime.launch.launch import check_ready
from domino_tune.runtime.launch.launcher import find_launcher
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.files import check_writable, make_folder, only_user
from domino_tune.store.models import load_model
from domino_tune.store.plans import ProfileRef
from domino_tune.store.profiles import bundled_names, load_profile, user_profiles_dir
from domino_tune.verbs.ranks import check_runnable, launch_spec
from simulator.errors import InputError, ProfileError
from simulator.profile import SECTIONS, Profile
from simulator.specs import ClusterSpec, Dtype, Workload, check_shardable
from simulator.units import GIB

FOR_MODEL: Final = ("seq_length", "micro_batch_size")
MINUTE_S: Final = 60
START_S: Final = 8
"""Of a time budget, what starting ranks takes."""
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A request, resolved: where to go on from, and all that is wanted."""

    request: ProfileRequest
    spec: LaunchSpec
    path: Path
    profile: Profile
    wanted: Wanted
    notes: tuple[str, ...]

    @property
    def lacking(self) -> Wanted:
        """What the profile does not hold yet."""
        return self.left_of(self.profile)

    def left_of(self, profile: Profile) -> Wanted:
        """What ``profile`` does not hold yet."""
        return self.wanted.lacking(profile, self.request.samples, self.spec.world_size)


def profile(request: ProfileRequest, progress: Progress = no_progress) -> ProfilingResult:
    """Measure what the profile of that name lacks; ``progress`` is told how far it is.

    Raises InputError for what does not fit together, a profile of another machine included, and
    RunError when ranks fail; what was measured until then is in the file.
    """
    began = time.monotonic()
    task = resolve_task(request)
    with _alone_with(task.path):
        known = _existing(task.path, task.profile, force=request.force)
        return _measured(replace(task, profile=known), progress, began)


def _alone_with(path: Path) -> AbstractContextManager[None]:
    """Only one run at a time writes a profile; of a launcher's ranks, that is the first."""
    if not _speaks():
        return nullcontext()
    return only_user(path, "wait for it to end, or give another --name")


def _measured(task: Task, progress: Progress, began: float) -> ProfilingResult:
    request, lacking = task.request, task.lacking
    if lacking.is_empty:
        if not _speaks():
            raise SystemExit(0)
        return _result(task, task.profile, seconds=0.0)
    seconds = None
    if request.minutes is not None:
        seconds = max(1.0, request.minutes * MINUTE_S - START_S)
    if _speaks():
        progress(f"starting {task.spec.world_size} ranks: {_amount(lacking)}")
    measured = measure_profile(
        task.profile,
        lacking,
        task.spec,
        task.path,
        samples=request.samples,
        seconds=seconds,
        listener=lambda message: _tell(progress, message),
    )
    return _result(task, measured, seconds=time.monotonic() - began)


def profile_path(name: str) -> Path:
    """Where a profile of that name is kept. Raises InputError for a name of a bundled one."""
    if name in bundled_names():
        raise InputError(
            f"{name!r} is a bundled profile, which a measured one may not stand in front of; give "
            "another --name."
        )
    return user_profiles_dir() / f"{name}.json"


def resume_command(request: ProfileRequest) -> str:
    """The command that goes on where this one stopped: the same, ``--force`` included, which is
    needed as long as nothing measured here is in the file."""
    return command_line("profile", request)


def resolve_task(request: ProfileRequest) -> Task:
    """Everything but the measuring. Raises InputError, before anything starts."""
    _check_options(request)
    spec = launch_spec(request, tp=request.tp, dp=request.dp or 1)
    check_ready(spec)
    machine = machine_of(spec)
    fresh = Profile(
        name=request.name,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine,
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
    dtype = cast("Dtype", request.dtype or ("bf16" if spec.backend == "nccl" else "fp32"))
    wanted, notes = _wanted(request, cluster, dtype, fresh)
    return Task(request=request, spec=spec, path=path, profile=known, wanted=wanted, notes=notes)


def _wanted(
    request: ProfileRequest, cluster: ClusterSpec, dtype: Dtype, profile: Profile
) -> tuple[Wanted, tuple[str, ...]]:
    if request.for_model is None:
        grid = GPU if profile.machine.backend == "nccl" else CPU
        return general(grid, cluster, dtype, profile), ()
    loaded = load_model(request.for_model, request.overrides)
    assert request.seq_length is not None
    assert request.micro_batch_size is not None
    workload = Workload(
        seq_length=request.seq_length, micro_batch_size=request.micro_batch_size, dtype=dtype
    )
    check_runnable(loaded.spec)
    check_shardable(loaded.spec, workload, cluster)
    memory = round(profile.machine.gpu_memory_gib * GIB)
    wanted = coverage(
        loaded.spec, workload, cluster, memory_bytes=memory, ctas=cta_counts(profile.machine)
    )
    need = max(case.peak_bytes(profile) for case in wanted.cases)
    if need > memory:
        raise InputError(
            f"Measuring needs {need / GIB:.1f} GiB a rank, and a rank has {memory / GIB:.1f} GiB; "
            "lower --micro-batch-size or --seq-length, or raise --tp."
        )
    return wanted, loaded.notes


def _check_options(request: ProfileRequest) -> None:
    given = [name for name in FOR_MODEL if getattr(request, name) is not None]
    if request.for_model is None and (given or request.overrides):
        flags = [_flag(name) for name in given] + ["--set"] * bool(request.overrides)
        raise InputError(
            f"{', '.join(flags)} say what to measure of a model; give --for-model too, or leave "
            "them out for a general grid."
        )
    missing = [_flag(name) for name in FOR_MODEL if name not in given]
    if request.for_model is not None and missing:
        raise InputError(f"--for-model needs {' and '.join(missing)} too; give them.")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _existing(path: Path, fresh: Profile, *, force: bool) -> Profile:
    """The file's profile, of this machine or by force made one of it, else ``fresh``."""
    if not path.exists():
        return fresh
    try:
        known = replace(load_profile(path), name=fresh.name)  # the file may be a copy
    except ProfileError as error:
        raise ProfileError(
            f"{error} Remove the file or give another --name to measure anew."
        ) from None
    found = differences(known.machine, fresh.machine)
    if found and not force:
        raise InputError(
            f"Profile {known.name!r} in {str(path)!r} is of another machine "
            f"({'; '.join(found)}). Give another --name, or --force to go on with it."
        )
    if found:  # what is measured now is of this machine; the detail tells that not all rows are
        earlier = known.machine.details.get("forced")
        forced = "; ".join([earlier, *found] if earlier else found)
        details = {**fresh.machine.details, "forced": forced}
        return replace(known, machine=replace(fresh.machine, details=details))
    return known


def _speaks() -> bool:
    """Whether this process is the one that answers: under torchrun or Slurm, that is rank 0."""
    launcher = find_launcher()
    return launcher is None or launcher.rank == 0


def _amount(wanted: Wanted) -> str:
    plans = sum(len(case.plans) for case in wanted.cases)
    return f"{plans} plans, {len(wanted.collectives)} collectives to measure"


def _tell(progress: Progress, message: Mapping[str, Any]) -> None:
    if message["kind"] == "progress":
        progress(
            f"round {message['round']} of {message['rounds']}, {_span(message['elapsed_s'])} gone, "
            f"about {_span(message['remaining_s'])} to go"
        )


def _span(seconds: float) -> str:
    """``1 min 05 s``."""
    minutes, rest = divmod(round(seconds), MINUTE_S)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _result(task: Task, measured: Profile, *, seconds: float) -> ProfilingResult:
    left = task.left_of(measured)
    sections = tuple(_section(task.profile, measured, left, name) for name in SECTIONS)
    return ProfilingResult(
        profile=ProfileRef(name=measured.name, content_id=measured.content_id),
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


def _section(before: Profile, after: Profile, left: Wanted, name: str) -> MeasuredSection:
    """``left`` counts by kind of op; contention, launch and skew have no rows to count."""
    kinds = {"gemm": "gemm", "attention": "attention", "pointwise": "pointwise"}
    lacking: int | None = None
    if name in kinds:
        lacking = sum(signature.kind == name for signature in left.ops)
    elif name == "collectives":
        lacking = len(left.collectives)
    elif name == "contention":
        rivals = left.contention
        lacking = 0 if rivals is None else len(rivals.sizes) * len(rivals.ctas)
    now, old = getattr(after, name), getattr(before, name)
    if now is not None and not hasattr(now, "rows"):
        return MeasuredSection(section=name, rows=None, new=int(now != old), left=lacking)
    rows, known = (getattr(section, "rows", ()) for section in (now, old))
    return MeasuredSection(
        section=name, rows=len(rows), new=len(set(rows) - set(known)), left=lacking
    )
