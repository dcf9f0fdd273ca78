"""The runtime's speed on one GPU: what an iteration is made of, and plain torch beside it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.bench.verdict import Check, at_most, told
from benchmarks.fidelity.records import keep_plain, read_plain
from benchmarks.gpu_proof.cases import ProofCase
from domino_tune.base.tables import Table
from domino_tune.measure.gpu.breakdown import KINDS, Spent
from domino_tune.runtime.launch.launch import run_job
from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ClusterSpec

JOB: Final = "domino_tune.measure.gpu.single_gpu_jobs:speed"
RATIO: Final = 1.03
STEPS: Final = 15
PLANS: Final = (
    MEGATRON,
    SlicePlan(row_slices=2, order="intra", wgrad="eager"),
    SlicePlan(row_slices=2, attn_col_slices=2, mlp_col_slices=2, order="intra", wgrad="eager"),
)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One model's. ``rounds_ns``: in each round, what the layers took in the runtime, written
    plainly with the same kernels, and written plainly with torch's own operators."""

    model: str
    plans: tuple[Spent, ...]
    rounds_ns: tuple[tuple[int, int, int], ...]

    @property
    def ratio(self) -> float:
        """Of the medians: the runtime's over plain ones with the same kernels."""
        return self._median_ns(0) / self._median_ns(1)

    @property
    def torch_ratio(self) -> float:
        """The same over torch's own operators."""
        return self._median_ns(0) / self._median_ns(2)

    def _median_ns(self, index: int) -> float:
        return statistics.median(times[index] for times in self.rounds_ns)


def speed_asked(case: ProofCase) -> dict[str, Any]:
    """What is measured of a case: the payload of the rank's job."""
    batch = case.workload.micro_batch_size
    return {
        "model": asdict(case.model),
        "workload": asdict(case.workload),
        "cluster": asdict(ClusterSpec(tp=case.tp)),
        "plans": [asdict(plan) for plan in PLANS if plan.row_slices <= batch],
        "steps": STEPS,
    }


def measure_speed(case: ProofCase) -> Speed:
    """By a lone rank, without communication. Raises RunError where the host was too slow."""
    told: list[dict[str, Any]] = []
    run_job(
        JOB, speed_asked(case), case.spec, on_message=lambda message: told.append(dict(message))
    )
    kinds = [message.pop("kind") for message in told]
    found = list(zip(kinds, told, strict=True))
    rounds = [one for kind, one in found if kind == "round"]
    return Speed(
        model=case.model.name,
        plans=tuple(Spent(**one) for kind, one in found if kind == "spent"),
        rounds_ns=tuple((one["ours_ns"], one["plain_ns"], one["torch_ns"]) for one in rounds),
    )


def keep_speed(path: Path, speed: Speed, asked: Mapping[str, Any]) -> None:
    """Write it, and what was asked for."""
    keep_plain(path, asdict(speed), asked)


def read_speed(path: Path, asked: Mapping[str, Any]) -> Speed:
    """What ``keep_speed`` wrote. Raises InputError where it was asked for otherwise."""
    plain = read_plain(path, asked)
    return Speed(
        model=plain["model"],
        plans=tuple(Spent(**one) for one in plain["plans"]),
        rounds_ns=tuple(map(tuple, plain["rounds_ns"])),
    )


def speed_checks(speeds: Sequence[Speed]) -> list[Check]:
    """Our layers beside plain ones."""
    found = []
    for speed in speeds:
        ratios = [ours / plain for ours, plain, _ in speed.rounds_ns]
        low, _, high = statistics.quantiles(ratios, n=4)
        found += [
            at_most(f"{speed.model}: layers in the runtime / plain, with the same kernels", RATIO,
                    speed.ratio, unit="×", digits=3),
            told("  middle half of the rounds", f"{low:.3f} – {high:.3f}"),
            told("  / plain, with torch's own operators", f"{speed.torch_ratio:.3f} ×"),
        ]  # fmt: skip
    return found


def speed_table(speeds: Sequence[Speed], peak_tflops: float) -> Table:
    """Where an iteration without communication spends its time."""
    return Table(
        title="An iteration without communication",
        columns=(
            "model", "plan", *(f">{kind}" for kind in KINDS), ">outside", ">MFU", ">eager ms",
            ">graph ms",
        ),
        rows=[
            (
                speed.model, plan.label, *(f"{plan.share(kind):.1%}" for kind in KINDS),
                f"{plan.outside:.1%}", f"{plan.mfu(peak_tflops):.1%}", f"{plan.eager_us / 1e3:.2f}",
                "-" if plan.graph_us is None else f"{plan.graph_us / 1e3:.2f}",
            )
            for speed in speeds
            for plan in speed.plans
        ],
        notes=(
            "Shares and MFU are of the faster way to launch. outside: waits for launches and gaps "
            f"between ops. MFU is against {peak_tflops:g} TFLOP/s.",
            *(
                f"{speed.model}, {plan.label}: no graph, {plan.why_no_graph}."
                for speed in speeds
                for plan in speed.plans
                if plan.why_no_graph
            ),
        ),
    )  # fmt: skip
