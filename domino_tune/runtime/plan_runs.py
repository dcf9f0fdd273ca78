"""Run plans on real ranks and gather what they took: what `validate` and measured tuning share.

Nothing here imports torch: ranks do (``domino_tune.runtime.validate_job``).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast

from domino_tune.base.errors import RankKilledError, RunError
from domino_tune.runtime.lanes.paces import PaceRow
from domino_tune.runtime.launch.launch import LaunchSpec, Message, run_job
from domino_tune.runtime.rounds import next_turn
from domino_tune.store.plans import order_to_json
from simulator.build import build_schedule
from simulator.issue_order import LayerOrder
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.timeline import Timeline

JOB: Final = "domino_tune.runtime.validate_job:validate"
LOSS_TOLERANCE: Final = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
"""Relative; slicing changes the order of sums."""
OUT_OF_MEMORY: Final = "out of memory"
KILLED: Final = "a rank was killed (out of memory?)"
BROKE: Final = "its ranks died or hung twice"
FAILURES: Final = {OUT_OF_MEMORY: "memory", KILLED: "memory", BROKE: "run"}
"""Why a plan could not be run -> the reason it is counted under."""
_NO_MEMORY: Final = re.compile(r"PlanOutOfMemory: plan (\d+)")

Planned = tuple[SlicePlan, LayerOrder]
OnStep = Callable[[int, int], None]
"""Called after every timed step with the plan's index and the step's makespan in ns."""


def ignore(plan: int, makespan_ns: int) -> None:
    """A step that nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one plan took. ``makespans_ns``: the slowest rank's of each round, as they came.

    ``losses`` and ``grad_norms`` are rank 0's, of the same rounds. ``timeline`` is the slowest
    rank's of the step whose makespan is the median of the first 100 rounds; ``typical_ns`` the
    usual duration of each of its ops: median over these rounds, on the rank that computes longest.
    ``peak_bytes`` is the largest rank's. The last three are None where the run ended early.
    ``failed`` says why the plan was not run, else it is empty.

    ``captured``: steps were replayed as CUDA graphs; where they were to be and were not,
    ``why_not_captured`` says why. On a GPU ``timeline`` and ``typical_ns`` are of further steps,
    whose ops were timed one by one, without a graph.
    """

    label: str
    makespans_ns: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    timeline: Timeline | None = None
    typical_ns: tuple[float, ...] | None = None
    peak_bytes: int | None = None
    failed: str = ""
    captured: bool = False
    why_not_captured: str = ""


@dataclass(kw_only=True)
class Runs:
    """Plans of one model, workload and cluster that take turns; keeps what has been measured, so
    that an interrupted run can say how far it came.

    ``lenient``: a plan other than the first that brings its ranks down fails alone, at once where
    one was killed, as the kernel does when memory runs out, else the second time. ``paces``: those
    of the plans' collectives, where a lone rank emulates them.
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
    """The plan whose step the ranks are at, as far as they said."""
    _deaths: Counter[int] = field(default_factory=Counter)

    def run(self, spec: LaunchSpec, on_step: OnStep = ignore) -> None:
        """Play ``rounds`` rounds in one launch; where a plan runs out of memory, in one more
        without it. Raises what run_job raises."""
        while len(self.failed) < len(self.plans):
            self.steps, self.ends, self.playing = {}, {}, None
            try:
                run_job(JOB, self._payload(), spec, on_message=lambda m: self._take(m, on_step))
                return
            except RunError as error:
                if not self._bears(error):
                    raise

    def _bears(self, error: RunError) -> bool:
        """Note which plan is to blame; whether to start again."""
        short = _NO_MEMORY.search(str(error))
        if short is not None:
            self.failed[int(short[1])] = OUT_OF_MEMORY
            return True
        plan = self.playing
        if (
            not self.lenient or not plan
        ):  # nobody's fault, or the first's, which all are set against
            return False
        self._deaths[plan] += 1
        if isinstance(error, RankKilledError):
            self.failed[plan] = KILLED
        elif self._deaths[plan] > 1:
            self.failed[plan] = BROKE
        return True

    def measured(self) -> list[Measured]:
        """One entry a plan, in their order, of what is known by now."""
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
        """Whose turn comes behind ``plan``'s: ranks do not say, not to disturb their steps."""
        playing = [index for index in range(len(self.plans)) if index not in self.failed]
        round = len(self.steps[plan]) - 1
        return playing[next_turn(range(len(playing)), round, playing.index(plan))]

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
            captured=end.get("captured", False) if end else False,
            why_not_captured=end.get("why_not_captured", "") if end else "",
        )


def run_plans(
    model: ModelSpec,
    workload: Workload,
    cluster: ClusterSpec,
    plans: Sequence[Planned],
    rounds: int,
    spec: LaunchSpec,
    on_step: OnStep = ignore,
    *,
    lenient: bool = False,
    paces: Sequence[PaceRow] | None = None,
) -> list[Measured]:
    """Run ``plans`` in turn, ``rounds`` times each, on real ranks; one entry a plan.

    A plan that runs out of memory has ``failed`` set and the others are run without it; so has,
    when ``lenient``, a plan other than the first that kills its ranks. Raises RunError when a rank
    dies or hangs otherwise, InputError for a world that cannot be started.
    """
    runs = Runs(
        model=model, workload=workload, cluster=cluster, plans=plans, rounds=rounds,
        lenient=lenient, paces=paces,
    )  # fmt: skip
    runs.run(spec, on_step)
    return runs.measured()


def graph_notes(measured: Sequence[Measured]) -> list[str]:
    """How steps were launched, where launches are predicted as free: what was no CUDA graph was
    launched op by op, and what was has no ops that can be timed."""
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
    """What is wrong with the losses. Weights stand still, so in one round all plans but the bound
    must give one loss and one gradient norm: one that does not computes something else."""
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
    return found
