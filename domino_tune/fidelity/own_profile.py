"""The ops of a proof's plans and what launching them costs, measured on the GPU and the host that
will run them, before any plan runs.

Everything else (collectives, contention) stays that of the profile it is laid over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from domino_tune.errors import RunError
from domino_tune.measure.op_rows import SECTIONS, add_ops, measured_ops
from domino_tune.runtime.launch import run_job
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.tables import print_line
from simulator.profile import LaunchSection, Profile, Provenance
from simulator.specs import ClusterSpec, ModelSpec, Workload

NAME: Final = "this-gpu"
JOB: Final = "domino_tune.measure.lone_jobs:ops"
MEASURED: Final = Provenance(
    kind="measured", source="scripts/gpu-proof: ops in place on the GPU that ran the plans"
)


def own_profile(
    base: Profile, model: ModelSpec, workloads: Iterable[Workload], path: Path, stop_at: float,
    spec: LaunchSpec,
) -> Profile | None:  # fmt: skip
    """``base`` with every op of the slicings of ``workloads`` measured by a lone rank of ``spec``.

    ``path`` keeps what has been, batch by batch; None where ``stop_at`` (time.monotonic) came
    first. Raises RunError where a plan could not be played.
    """
    mine = _begun(base, path)
    for workload in workloads:
        left_s = stop_at - time.monotonic()
        if left_s <= 0:
            return None
        size = f"{workload.micro_batch_size} x {workload.seq_length}"
        print_line(f"measuring the ops of {model.name}, {size} tokens ...", sys.stderr)
        told = _measured(model, workload, mine, left_s, spec)
        if told["plan"]["failed"]:
            raise RunError(
                f"Ops of {model.name} could not be measured: {dict(told['plan']['failed'])}. Is "
                "the GPU free?"
            )
        mine = add_ops(mine, told["plan"]["ops"])
        if "launch" in told:
            mine = with_launch(mine, told["launch"]["cost_us"])
        save_profile(mine, path)
        if not told["plan"]["complete"]:
            return None
    return laid_over(base, mine)


def _begun(base: Profile, path: Path) -> Profile:
    if path.exists():
        return load_profile(path)
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Profile(name=NAME, created=created, machine=base.machine)


def _measured(
    model: ModelSpec, workload: Workload, known: Profile, seconds: float, spec: LaunchSpec
) -> dict[str, Mapping[str, Any]]:
    """What the rank reports, by kind."""
    payload = {
        "model": asdict(model),
        "workload": asdict(workload),
        "cluster": asdict(ClusterSpec(tp=spec.tp)),
        "known": [[signature.kind, *signature] for signature in measured_ops(known)],
        "seconds": seconds,
    }
    found: list[Mapping[str, Any]] = []
    run_job(JOB, payload, spec, on_message=found.append)
    return {message["kind"]: message for message in found}


def with_launch(mine: Profile, cost_us: Mapping[str, float]) -> Profile:
    """``mine`` with one batch's launch costs added to the mean of those before."""
    count = mine.launch.samples if mine.launch else 0
    known = mine.launch.cost_us if mine.launch else {}
    mean = {
        kind: (count * known.get(kind, 0.0) + cost) / (count + 1) for kind, cost in cost_us.items()
    }
    launch = LaunchSection(mode="async", cost_us=mean, samples=count + 1, provenance=MEASURED)
    return replace(mine, launch=launch)


def laid_over(base: Profile, mine: Profile) -> Profile:
    """``base``, in which the rows of ``mine`` stand for those of the same op, and its launch costs
    for the others. Laws stay."""
    changed: dict[str, Any] = {"launch": mine.launch or base.launch}
    for kind, (_, _, key) in SECTIONS.items():
        below, above = getattr(base, kind), getattr(mine, kind)
        if above is None:
            continue
        rows = {key(row): row for section in (below, above) if section for row in section.rows}
        note = f"Laid over {base.name}: {below.provenance.note}" if below else ""
        changed[kind] = replace(
            below or above, rows=tuple(rows[at] for at in sorted(rows)),
            provenance=replace(MEASURED, note=note),
        )  # fmt: skip
    return replace(base, name=NAME, created=mine.created, **changed)
