"""Run plans on real ranks and gather their measurements, for `validate` and measured tuning.

Nothing here imports torch: only ranks do (``domino_tune.runtime.validate_job``).
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, cast

from domino_tune.base.errors import RankKilledError, RunError
from domino_tune.runtime.lanes import PaceRow
from domino_tune.runtime.launch.launch import LaunchSpec, Message, run_job
from domino_tune.store.plans import order_to_json
from simulator.build import build_schedule
from simulator.issue_order import LayerOrder
from simulator.plan import SlicePlan
from simulator.schedule import Timeline
from simulator.specs import ClusterSpec, ModelSpec, Workload

JOB: Final = "domino_tune.runtime.validate_job:validate"
LOSS_TOLERANCE: Final = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
"""Largest relative difference of losses, by dtype: slicing changes the order of sums."""
OUT_OF_MEMORY: Final = "out of memory"
KILLED: Final = "a rank was killed (out of memory?)"
BROKE: Final = "its ranks died or hung twice"
FAILURES: Final = {OUT_OF_MEMORY: "memory", KILLED: "memory", BROKE: "run"}
"""Why a plan could not be run -> the reason it is counted under."""
_NO_MEMORY: Final = re.compile(r"PlanOutOfMemory: plan (\d+)")

Layers = tuple[tuple[tuple[float, float], ...], ...]
Planned = tuple[SlicePlan, LayerOrder]
OnStep = Callable[[int, int], None]
"""Called after every timed step with the plan's index and the step's makespan, ns."""


def ignore(plan: int, makespan_ns: int) -> None:
    """Do nothing after a step."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements of one plan. ``makespans_ns`` are the slowest rank's, one per round.

    ``layers``: norm and sum of the gradients of the edges and of each layer, by rank, before all
    rounds.
    ``losses`` and ``grad_norms`` are rank 0's of the same rounds. ``timeline`` is the slowest
    rank's of the step with the median makespan of the first 100 rounds. ``typical_ns`` is the
    median duration of each op over these rounds, on the rank that computes longest.
    ``peak_bytes`` is the largest of all ranks. These three are None where the run ended early.
    ``failed`` is the reason why the plan was not run, else empty.

    ``captured``: steps were replayed as CUDA graphs. Where graphs were requested but not possible,
    ``why_not_captured`` is the reason. On a GPU ``timeline`` and ``typical_ns`` come from further
    steps without a graph, whose ops were timed one by one.
    """

    label: str
    makespans_ns: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    timeline: Timeline | None = None
    typical_ns: tuple[float, ...] | None = None
    peak_bytes: int | None = None
    layers: Layers = ()
    failed: str = ""
    captured: bool = False
    why_not_captured: str = ""


@dataclass
class Runs:
    """Runs plans of one model, workload and cluster in turn. Measurements stay here, so that an
    interrupted run can report its progress.

    ``lenient``: a plan other than the first may fail without ending the run. It fails at once where
    a rank was killed, as the kernel does when memory runs out, else the second time its ranks die.
    ``paces`` are those of the plans' collectives, where a single rank emulates them.
    """

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    plans: Sequence[Planned]
    rounds: int
    lenient: bool = False
    paces: Sequence[PaceRow] | None = None
    steps: dict[int, list[Message]] = field(default_factory=dict)
    ends: dict[int, Message] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    playing: int | None = None
    """The plan whose step the ranks are playing, as far as rank 0 reported."""
    _deaths: Counter[int] = field(default_factory=Counter)

    def run(self, spec: LaunchSpec, on_step: OnStep = ignore) -> list[Measured]:
        """Play ``rounds`` rounds in one launch, and return ``measured``. Where a plan runs out of
        memory, launch again without it. Raise what run_job raises."""
        order = self.workload.implementation.starts(cuda_graph=self.cluster.cuda_graph)
        in_order = replace(spec, kernels_in_order=order == "ordered")
        while len(self.failed) < len(self.plans):
            self.steps, self.ends, self.playing = {}, {}, None
            try:
                run_job(JOB, self._payload(), in_order, on_message=lambda m: self._take(m, on_step))
                break
            except RunError as error:
                if not self._can_restart(error):
                    raise
        return self.measured()

    def _can_restart(self, error: RunError) -> bool:
        """Record which plan caused the error; return whether to start again."""
        no_memory = _NO_MEMORY.search(str(error))
        if no_memory is not None:
            self.failed[int(no_memory[1])] = OUT_OF_MEMORY
            return True
        plan = self.playing
        # All others are compared with plan 0; None: no plan is to blame.
        if not self.lenient or not plan:
            return False
        self._deaths[plan] += 1
        if isinstance(error, RankKilledError):
            self.failed[plan] = KILLED
        elif self._deaths[plan] > 1:
            self.failed[plan] = BROKE
        return True

    def measured(self) -> list[Measured]:
        """Return one entry per plan, in their order, with the measurements so far."""
        return [self._measured(index) for index in range(len(self.plans))]

    def _payload(self) -> dict[str, Any]:
        return {
            "model": asdict(self.model),
            "workload": asdict(self.workload),
            "cluster": asdict(self.cluster),
            "plans": [
                {"index": index, "plan": asdict(plan), "order": order_to_json(order)}
                for index, (plan, order) in enumerate(self.plans)
                if index not in self.failed
            ],
            "rounds": self.rounds,
            "paces": self.paces,
        }

    def _take(self, message: Message, on_step: OnStep) -> None:
        plan = cast("int", message["plan"])
        if message["kind"] == "begin":
            self.playing = plan
        elif message["kind"] == "step":
            self.steps.setdefault(plan, []).append(message)
            self.playing = self._next(plan)
            on_step(plan, cast("int", message["makespan_ns"]))
        else:
            self.ends[plan], self.playing = message, None

    def _next(self, plan: int) -> int:
        """Return the plan after ``plan``: ranks do not report it, as that would disturb steps."""
        playing = [index for index in range(len(self.plans)) if index not in self.failed]
        round = len(self.steps[plan]) - 1
        return playing[next_in_round(range(len(playing)), round, playing.index(plan))]

    def _measured(self, index: int) -> Measured:
        plan, order = self.plans[index]
        steps: list[Any] = self.steps.get(index, [])
        end: Any = self.ends.get(index)
        if index in self.failed:
            return Measured(label=plan.label, failed=self.failed[index])
        timeline = None
        if end is not None:
            schedule = build_schedule(self.model, self.workload, self.cluster, plan, order)
            timeline = Timeline(
                schedule=schedule, start_ns=tuple(end["start_ns"]), end_ns=tuple(end["end_ns"])
            )
        return Measured(
            label=plan.label,
            makespans_ns=tuple(step["makespan_ns"] for step in steps),
            losses=tuple(step["loss"] for step in steps),
            grad_norms=tuple(step["grad_norm"] for step in steps),
            timeline=timeline,
            typical_ns=tuple(end["typical_ns"]) if end else None,
            peak_bytes=end["peak_bytes"] if end else None,
            layers=tuple(tuple(map(tuple, rank)) for rank in end.get("layers", ())) if end else (),
            captured=end.get("captured", False) if end else False,
            why_not_captured=end.get("why_not_captured", "") if end else "",
        )


def graph_notes(measured: Sequence[Measured]) -> list[str]:
    """Return notes on how steps were launched, where the prediction has free launches: launched op
    by op, or as CUDA graphs, whose ops cannot be timed."""
    reasons = [one for one in measured if one.why_not_captured]
    if not reasons and not any(one.captured for one in measured):
        return ["Launches are predicted as free, under CUDA graphs; here each op is launched."]
    found = [
        f"{one.label} could not be captured as a CUDA graph ({one.why_not_captured}): each of its "
        "ops is launched, which is predicted as free."
        for one in reasons
    ]
    if any(one.captured for one in measured):
        found.append(
            "Iterations are measured as whole CUDA graphs; times of ops, communication and "
            "timelines are of further steps without a graph."
        )
    return found


def loss_problems(plans: Sequence[Measured], dtype: str) -> list[str]:
    """Return what is wrong with the losses. Weights are constant, so in one round all plans but the
    bound must have the same loss and gradient norm."""
    tolerance = LOSS_TOLERANCE[dtype]
    found = []
    ran = [one for one in plans if one.losses]
    for one in ran:
        if not all(map(math.isfinite, (*one.losses, *one.grad_norms))):
            found.append(f"{one.label} gave a loss or gradient norm that is not finite.")
            continue
        for what, mine, firsts in (
            ("loss", one.losses, ran[0].losses),
            ("gradient norm", one.grad_norms, ran[0].grad_norms),
        ):
            worst = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(mine, firsts, strict=False))
            if worst > tolerance:
                found.append(
                    f"The {what} of {one.label} differs from {ran[0].label}'s in the same round by "
                    f"up to {worst:.1%}: they do not compute the same."
                )
        found += _layer_problems(one, ran[0], tolerance)
    return found


def _layer_problems(of: Measured, first: Measured, tolerance: float) -> list[str]:
    """Return what is wrong with gradients, layer by layer: a fault in one of many layers hardly
    shows in the loss, or in the norm of them all."""
    found = []
    for rank, (mine, theirs) in enumerate(zip(of.layers, first.layers, strict=False)):
        off = [
            math.hypot(norm - other, total - whole) / max(other, 1e-30)
            for (norm, total), (other, whole) in zip(mine, theirs, strict=True)
        ]
        off = [math.inf if math.isnan(one) else one for one in off]
        worst = max(range(len(off)), key=off.__getitem__)
        if off[worst] > tolerance:
            where = f"layer {worst - 1}" if worst else "the embeddings and the head"
            found.append(
                f"The gradients of {where} in {of.label} differ from {first.label}'s by "
                f"{off[worst]:.1%} on rank {rank}: they do not compute the same."
            )
    return found


# The order of plans in a round --------------------------------------------------------------------
# It changes from round to round.
#
# In a fixed order each plan would always follow the same one, in the memory and caches that it
# leaves. The cost or gain of that would count as the plan's own.


def round_order(plans: Sequence[int], round: int) -> list[int]:
    """Return ``plans`` in the order of round ``round``: random, the same on every rank."""
    return random.Random(round).sample(plans, len(plans))


def next_in_round(plans: Sequence[int], round: int, plan: int) -> int:
    """Return the plan after ``plan`` in round ``round``; after the last, the next round's first."""
    order = round_order(plans, round)
    place = order.index(plan) + 1
    return order[place] if place < len(order) else round_order(plans, round + 1)[0]
