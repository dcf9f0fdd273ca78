"""A profile of this GPU and host: the ops of a proof's plans and their launch costs, measured here.

Everything else (collectives, contention) comes from a given profile.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from domino_tune.base.errors import RunError
from domino_tune.base.tables import print_line
from domino_tune.measure.importers.merge import merged_section
from domino_tune.measure.op_rows import SECTIONS, add_ops, measured_ops
from domino_tune.runtime.launch.launch import run_job
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.files import write_whole
from simulator.profile import LaunchSection, Profile
from simulator.provenance import Provenance
from simulator.specs import ClusterSpec, ModelSpec, Workload

NAME: Final = "this-gpu"
JOB: Final = "lab.gpu_proof.single_gpu_jobs:ops"
MEASURED: Final = Provenance(
    kind="measured", source="scripts/gpu-proof: ops in place on the GPU that ran the plans"
)


def own_profile(
    base: Profile, model: ModelSpec, workloads: Iterable[Workload], folder: Path, stop_at: float,
    spec: LaunchSpec,
) -> Profile | None:  # fmt: skip
    """Return ``base`` with every op of the sliced ``workloads`` measured by a single rank.

    ``folder`` takes one file of measurements for each workload. Return None when ``stop_at``
    (time.monotonic) comes before all are finished. Raise RunError for a plan that cannot run.
    """
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    mine = Profile(name=NAME, created=created, machine=base.machine)
    costs_us: list[Mapping[str, float]] = []
    for workload in workloads:
        path = folder / f"ops-{model.name}-{workload.micro_batch_size}x{workload.seq_length}.json"
        if not path.exists():
            left_s = stop_at - time.monotonic()
            messages = _measured(model, workload, mine, left_s, spec) if left_s > 0 else None
            if messages is None or not messages["plan"]["complete"]:
                return None
            write_whole(path, json.dumps(messages) + "\n")
        messages = json.loads(path.read_text())
        mine = add_ops(mine, messages["plan"]["ops"])
        costs_us += [messages["launch"]["cost_us"]] if "launch" in messages else []
    return laid_over(base, with_launch(mine, costs_us))


def _measured(
    model: ModelSpec, workload: Workload, known: Profile, seconds: float, spec: LaunchSpec
) -> dict[str, Mapping[str, Any]]:
    """Return the rank's messages by kind. Raise RunError for a plan that cannot run."""
    size = f"{workload.micro_batch_size} x {workload.seq_length}"
    print_line(f"measuring the ops of {model.name}, {size} tokens ...", sys.stderr)
    payload = {
        "model": asdict(model),
        "workload": asdict(workload),
        "cluster": asdict(ClusterSpec(tp=spec.tp)),
        "known": [[signature.kind, *signature] for signature in measured_ops(known)],
        "seconds": seconds,
    }
    found: list[Mapping[str, Any]] = []
    run_job(JOB, payload, spec, on_message=found.append)
    messages = {message["kind"]: message for message in found}
    failed = dict(messages["plan"]["failed"])
    if failed:
        raise RunError(f"Ops of {model.name} could not be measured: {failed}. Is the GPU free?")
    return messages


def with_launch(mine: Profile, costs_us: Sequence[Mapping[str, float]]) -> Profile:
    """Return ``mine`` with the mean of the launch costs of all workloads, if there are any."""
    if not costs_us:
        return mine
    mean = {kind: statistics.fmean(one[kind] for one in costs_us) for kind in costs_us[0]}
    launch = LaunchSection(mode="async", cost_us=mean, provenance=MEASURED)
    return replace(mine, launch=launch)


def laid_over(base: Profile, mine: Profile) -> Profile:
    """Return ``base`` with rows and launch costs of ``mine`` in place of its own.

    Laws stay; those of an assumed section are assumed, see ``merged_section``.
    """
    changed: dict[str, Any] = {"launch": mine.launch or base.launch}
    for kind, (_, _, key) in SECTIONS.items():
        below, above = getattr(base, kind), getattr(mine, kind)
        if above is None:
            continue
        rows = {key(row): row for section in (below, above) if section for row in section.rows}
        note = f"Laid over {base.name}: {below.provenance.note}" if below else ""
        ordered = [rows[at] for at in sorted(rows)]
        changed[kind] = merged_section(below or above, ordered, replace(MEASURED, note=note))
    return replace(base, name=NAME, created=mine.created, **changed)
