"""Profile a machine: start ranks, gather what they report, keep a valid file at every moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from domino_tune.measure.collect import add_message
from domino_tune.measure.coverage import coverage
from domino_tune.measure.machine import this_machine
from domino_tune.runtime.launch import LaunchSpec, run_job
from domino_tune.store.profiles import load_profile, save_profile
from simulator.plan import MEGATRON, SlicePlan
from simulator.profile import Profile
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload

JOB: Final = "domino_tune.measure.rank_job:profile"


@dataclass(frozen=True, kw_only=True)
class ProfileTask:
    """What to measure: everything that plans of these slice counts need on this machine."""

    name: str
    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    row_slices: tuple[int, ...]
    col_slices: tuple[int, ...]
    samples: int = 20


def measure_profile(
    task: ProfileTask,
    spec: LaunchSpec,
    path: Path,
    progress: Callable[[Mapping[str, Any]], None],
) -> Profile:
    """Measure what ``path`` does not hold yet; it is written whole after every report."""
    profile = _existing(path) or _empty(task, spec)

    def keep(message: Mapping[str, Any]) -> None:
        nonlocal profile
        profile = add_message(profile, message)
        save_profile(profile, path)
        progress(message)

    run_job(JOB, _payload(task), spec, on_message=keep)
    return profile


def _existing(path: Path) -> Profile | None:
    return load_profile(path) if path.exists() else None


def _empty(task: ProfileTask, spec: LaunchSpec) -> Profile:
    link = spec.emulate_link_bits_per_s
    details = {"link_bits_per_s": str(link)} if link else {}
    return Profile(
        name=task.name,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=this_machine(task.cluster.ranks_per_node, spec.backend, details),
    )


def _payload(task: ProfileTask) -> dict[str, Any]:
    runs = coverage(task.model, task.workload, task.cluster, task.row_slices, task.col_slices)
    rows = max(r for r in (1, 2) if r <= task.workload.micro_batch_size)
    plan = SlicePlan(row_slices=rows, order="intra", wgrad="eager") if rows > 1 else MEGATRON
    shapes = Shapes(model=task.model, workload=task.workload, cluster=task.cluster, plan=plan)
    return {
        "model": asdict(runs.model),
        "workload": asdict(task.workload),
        "cluster": asdict(task.cluster),
        "plans": [asdict(plan) for plan in runs.plans],
        "collectives": [list(collective) for collective in runs.collectives],
        "contention": [{"plan": asdict(plan), "size_bytes": shapes.hidden_bytes(0)}],
        "samples": task.samples,
    }
