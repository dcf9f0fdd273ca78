"""The ops of a proof's plans and what launching them costs, measured on the GPU and the host that
will run them, before any plan runs.

Everything else (collectives, contention) stays that of the profile it is laid over.
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
from domino_tune.measure.op_rows import SECTIONS, add_ops, measured_ops
from domino_tune.runtime.launch.launch import run_job
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.files import write_whole
from simulator.profile import LaunchSection, Profile, Provenance
from simulator.specs import ClusterSpec, ModelSpec, Workload

NAME: Final = "this-gpu"
JOB: Final = "domino_tune.measure.gpu.single_gpu_jobs:ops"
MEASURED: Final = Provenance(
    kind="measured", source="scripts/gpu-proof: ops in place on the GPU that ran the plans"
)


def own_profile(
    base: Profile, model: ModelSpec, workloads: Iterable[Workload], folder: Path, stop_at: float,
    spec: LaunchSpec,
) -> Profile | None:  # fmt: skip
    """``base`` with every op of the slicings of ``workloads`` measured by a lone rank of ``spec``.

    ``folder`` keeps what is finished, a file a batch; None where ``stop_at`` (time.monotonic) came
    before all were. Raises RunError where a plan could not be played.
    """
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    mine = Profile(name=NAME, created=created, machine=base.machine)
    costs_us: list[Mapping[str, float]] = []
    for workload in workloads:
        path = folder / f"ops-{model.name}-{workload.micro_batch_size}x{workload.seq_length}.json"
        if not path.exists():
            left_s = stop_at - time.monotonic()
            told = _measured(model, workload, mine, left_s, spec) if left_s > 0 else None
            if told is None or not told["plan"]["complete"]:
                return None
            write_whole(path, json.dumps(told) + "\n")
        told = json.loads(path.read_text())
        mine = add_ops(mine, told["plan"]["ops"])
        costs_us += [told["launch"]["cost_us"]] if "launch" in told else []
    return laid_over(base, with_launch(mine, costs_us))


def _measured(
    model: ModelSpec, workload: Workload, known: Profile, seconds: float, spec: LaunchSpec
) -> dict[str, Mapping[str, Any]]:
    """What the rank reports, by kind. Raises RunError where a plan could not be played."""
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
    told = {message["kind"]: message for message in found}
    failed = dict(told["plan"]["failed"])
    if failed:
        raise RunError(f"Ops of {model.name} could not be measured: {failed}. Is the GPU free?")
    return told


def with_launch(mine: Profile, costs_us: Sequence[Mapping[str, float]]) -> Profile:
    """``mine`` with the mean of all batches' launch costs, where there are any."""
    if not costs_us:
        return mine
    mean = {kind: statistics.fmean(one[kind] for one in costs_us) for kind in costs_us[0]}
    launch = LaunchSection(mode="async", cost_us=mean, provenance=MEASURED)
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
