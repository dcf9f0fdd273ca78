"""Speed of the runtime on one GPU: parts of an iteration, and the same layers in plain torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.runtime.launch.launch import run_job
from lab.gpu_proof.cases import ProofCase
from lab.gpu_proof.step_breakdown import KINDS, StepBreakdown
from lab.verdict import Check, at_most, reported
from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ClusterSpec

JOB: Final = "lab.gpu_proof.single_gpu_jobs:speed"
RATIO: Final = 1.03
STEPS: Final = 15
PLANS: Final = (
    MEGATRON,
    SlicePlan(row_slices=2, order="intra", wgrad="eager"),
    SlicePlan(row_slices=2, attn_col_slices=2, mlp_col_slices=2, order="intra", wgrad="eager"),
)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of one model. ``rounds_ns``: for each round the time of the layers in the runtime, in
    plain torch code with the same kernels, and in plain torch code with torch's own operators."""

    model: str
    plans: tuple[StepBreakdown, ...]
    rounds_ns: tuple[tuple[int, int, int], ...]

    @property
    def ratio(self) -> float:
        """Return the median in the runtime / the median in plain code with the same kernels."""
        return self._median_ns(0) / self._median_ns(1)

    @property
    def torch_ratio(self) -> float:
        """Return the median in the runtime / the median in plain code with torch's operators."""
        return self._median_ns(0) / self._median_ns(2)

    def _median_ns(self, index: int) -> float:
        return statistics.median(times[index] for times in self.rounds_ns)


def speed_payload(case: ProofCase) -> dict[str, Any]:
    """Return the payload of the job that measures the speed of a case."""
    batch = case.workload.micro_batch_size
    return {
        "model": asdict(case.model),
        "workload": asdict(case.workload),
        "cluster": asdict(ClusterSpec(tp=case.tp)),
        "plans": [asdict(plan) for plan in PLANS if plan.row_slices <= batch],
        "steps": STEPS,
    }


def measure_speed(case: ProofCase) -> Speed:
    """Measure on a single rank without communication. Raise RunError when the host is too slow."""
    messages: list[dict[str, Any]] = []
    run_job(JOB, speed_payload(case), case.spec, on_message=lambda one: messages.append(dict(one)))
    kinds = [message.pop("kind") for message in messages]
    found = list(zip(kinds, messages, strict=True))
    rounds = [one for kind, one in found if kind == "round"]
    return Speed(
        model=case.model.name,
        plans=tuple(StepBreakdown(**one) for kind, one in found if kind == "spent"),
        rounds_ns=tuple((one["ours_ns"], one["plain_ns"], one["torch_ns"]) for one in rounds),
    )


def speed_from(plain: Mapping[str, Any]) -> Speed:
    """Return the speed that ``asdict`` made ``plain`` of, read from JSON."""
    return Speed(
        model=plain["model"],
        plans=tuple(StepBreakdown(**one) for one in plain["plans"]),
        rounds_ns=tuple(map(tuple, plain["rounds_ns"])),
    )


def speed_checks(speeds: Sequence[Speed]) -> list[Check]:
    """Return checks of the layers in the runtime against plain torch code."""
    found = []
    for speed in speeds:
        ratios = [ours / plain for ours, plain, _ in speed.rounds_ns]
        low, _, high = statistics.quantiles(ratios, n=4)
        found += [
            at_most(f"{speed.model}: layers in the runtime / plain, with the same kernels", RATIO,
                    speed.ratio, unit="×", digits=3),
            reported("  middle half of the rounds", f"{low:.3f} – {high:.3f}"),
            reported("  / plain, with torch's own operators", f"{speed.torch_ratio:.3f} ×"),
        ]  # fmt: skip
    return found


def speed_table(speeds: Sequence[Speed], peak_tflops: float) -> Table:
    """Return the parts of an iteration without communication."""
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
            "Shares and MFU are of the faster way to launch. outside: waits for launches, and gaps "
            f"between ops. MFU is relative to {peak_tflops:g} TFLOP/s.",
            *(
                f"{speed.model}, {plan.label}: no graph, {plan.why_no_graph}."
                for speed in speeds
                for plan in speed.plans
                if plan.why_no_graph
            ),
        ),
    )  # fmt: skip
