"""The runtime's speed on one GPU: what an iteration is made of, and plain torch beside it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from domino_tune.bench.verdict import Check, at_most, told
from domino_tune.measure.spent import KINDS, Spent
from domino_tune.runtime.launch import run_job
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.files import write_whole
from domino_tune.tables import Table
from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

JOB: Final = "domino_tune.measure.lone_jobs:speed"
RATIO: Final = 1.03
STEPS: Final = 15
PLANS: Final = (
    MEGATRON,
    SlicePlan(row_slices=2, order="intra", wgrad="eager"),
    SlicePlan(row_slices=2, attn_col_slices=2, mlp_col_slices=2, order="intra", wgrad="eager"),
)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One model's. ``ratios``: of each round, time of our layers over that of plain ones;
    ``ratio``: of the two medians."""

    model: str
    plans: tuple[Spent, ...]
    ratio: float
    ratios: tuple[float, ...]


def measure_speed(model: ModelSpec, workload: Workload, spec: LaunchSpec, steps: int) -> Speed:
    """By a lone rank of ``spec``, without communication."""
    payload = {
        "model": asdict(model),
        "workload": asdict(workload),
        "cluster": asdict(ClusterSpec(tp=spec.tp)),
        "plans": [asdict(plan) for plan in PLANS if plan.row_slices <= workload.micro_batch_size],
        "steps": steps,
    }
    told: list[dict[str, Any]] = []
    run_job(JOB, payload, spec, on_message=lambda message: told.append(dict(message)))
    kinds = [message.pop("kind") for message in told]
    found = list(zip(kinds, told, strict=True))
    rounds = [one for kind, one in found if kind == "round"]
    ours, theirs = ([one[name] for one in rounds] for name in ("ours_ns", "theirs_ns"))
    return Speed(
        model=model.name,
        plans=tuple(Spent(**one) for kind, one in found if kind == "spent"),
        ratio=statistics.median(ours) / statistics.median(theirs),
        ratios=tuple(one / other for one, other in zip(ours, theirs, strict=True)),
    )


def keep_speed(path: Path, speed: Speed) -> None:
    """Write it."""
    write_whole(path, json.dumps(asdict(speed), indent=1) + "\n")


def read_speed(path: Path) -> Speed:
    """What ``keep_speed`` wrote."""
    plain = json.loads(path.read_text())
    plans = tuple(Spent(**one) for one in plain.pop("plans"))
    return Speed(**{**plain, "ratios": tuple(plain["ratios"])}, plans=plans)


def speed_checks(speeds: Sequence[Speed]) -> list[Check]:
    """Our layers beside plain ones."""
    found = []
    for speed in speeds:
        low, _, high = statistics.quantiles(speed.ratios, n=4)
        found += [
            at_most(f"{speed.model}: layers in the runtime / plain torch, unsliced", RATIO,
                    speed.ratio, unit="×", digits=3),
            told("  middle half of the rounds", f"{low:.3f} – {high:.3f}"),
        ]  # fmt: skip
    return found


def speed_table(speeds: Sequence[Speed], peak_tflops: float) -> Table:
    """Where an iteration without communication spends its time."""
    return Table(
        title="An iteration without communication",
        columns=(
            "model", "plan", *(f">{kind}" for kind in KINDS), ">gaps", ">MFU", ">eager ms",
            ">graph ms",
        ),
        rows=[
            (
                speed.model, plan.label, *(f"{plan.share(kind):.1%}" for kind in KINDS),
                f"{plan.gaps:.1%}", f"{plan.mfu(peak_tflops):.1%}", f"{plan.eager_us / 1e3:.2f}",
                "-" if plan.graph_us is None else f"{plan.graph_us / 1e3:.2f}",
            )
            for speed in speeds
            for plan in speed.plans
        ],
        notes=(
            "Shares, gaps between kernels and MFU are of the faster way to launch; MFU is against "
            f"{peak_tflops:g} TFLOP/s.",
        ),
    )  # fmt: skip
