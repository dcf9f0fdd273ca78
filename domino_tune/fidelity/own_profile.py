"""The ops of a proof's plans, measured on the GPU that will run them, before any plan runs.

Everything else (collectives, contention, launch costs) stays that of the profile it is laid over.
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
from simulator.profile import Profile, Provenance
from simulator.specs import ClusterSpec, ModelSpec, Workload

NAME: Final = "this-gpu"
JOB: Final = "domino_tune.measure.lone_jobs:ops"
MEASURED: Final = Provenance(
    kind="measured", source="scripts/gpu-proof: ops in place on the GPU that ran the plans"
)


def own_profile(
    base: Profile, asked: Iterable[tuple[ModelSpec, Workload]], path: Path, stop_at: float,
    spec: LaunchSpec,
) -> Profile | None:  # fmt: skip
    """``base`` with every op of the slicings of ``asked`` measured by a lone rank of ``spec``.

    ``path`` keeps what has been, case by case; None where ``stop_at`` (time.monotonic) came first.
    Raises RunError where a plan could not be played.
    """
    mine = _begun(base, path)
    for model, workload in asked:
        left_s = stop_at - time.monotonic()
        if left_s <= 0:
            return None
        size = f"{workload.micro_batch_size} x {workload.seq_length}"
        print_line(f"measuring the ops of {model.name}, {size} tokens ...", sys.stderr)
        message = _measured(model, workload, mine, left_s, spec)
        if message["failed"]:
            raise RunError(
                f"Ops of {model.name} could not be measured: {dict(message['failed'])}. Is the GPU "
                "free?"
            )
        mine = add_ops(mine, message["ops"])
        save_profile(mine, path)
        if not message["complete"]:
            return None
    return laid_over(base, mine)


def _begun(base: Profile, path: Path) -> Profile:
    if path.exists():
        return load_profile(path)
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Profile(name=NAME, created=created, machine=base.machine)


def _measured(
    model: ModelSpec, workload: Workload, known: Profile, seconds: float, spec: LaunchSpec
) -> Mapping[str, Any]:
    payload = {
        "model": asdict(model),
        "workload": asdict(workload),
        "cluster": asdict(ClusterSpec(tp=spec.tp)),
        "known": [[signature.kind, *signature] for signature in measured_ops(known)],
        "seconds": seconds,
    }
    found: list[Mapping[str, Any]] = []
    run_job(JOB, payload, spec, on_message=found.append)
    return found[-1]


def laid_over(base: Profile, mine: Profile) -> Profile:
    """``base``, in which the rows of ``mine`` stand for those of the same op. Laws stay."""
    changed = {}
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
