"""Closed forms over a case: a proven lower bound of a plan's iteration time, and an estimate.

Neither builds a schedule. A plan's ops fall into parts that depend on one or two of its fields
(the B pieces of a block on row and column slices only), so sums are kept part by part.

Lower bound. Let a lane's work be W = sum of its ops' durations alone. While the compute lane runs
family f beside a TP collective, both slow down by at least s_f and r_f; x_f is the time this lasts.
Compute lane and TP lane are FIFO, so T ≥ C + M − Σ x_f (1/s_f + 1/r_f − 1), with x_f ≤ C_f s_f and
Σ x_f / r_f ≤ M. The largest such saving is a fractional knapsack: best family first. The host's
launches are a second bound.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.contention import SCALE
from simulator.cost import CostModel
from simulator.edges import Edges
from simulator.fragments import Fragments
from simulator.lines import ALL_SLICES, BLOCKS, Token, run
from simulator.ops import Signature
from simulator.plan import SlicePlan
from simulator.predict import Case
from simulator.schedule import COMPUTE, TP, OpTemplate, Ref

_FIXED = {
    "forward": ("norm", "a", "core", "out"),
    "backward": ("out'", "b_dgrad", "core'", "norm'"),
}


class Work(NamedTuple):
    """Sums over ops: compute ns by contention family, TP communication ns, launches in ns."""

    compute_ns: Counter[str]
    comm_ns: Counter[str]
    launch_ns: int


@dataclass(kw_only=True)
class Bounds:
    """Bounds and estimates of every plan of ``case``; sums are kept, so a plan costs little."""

    case: Case
    _parts: dict[tuple[object, ...], Work] = field(default_factory=dict)

    def lower_ns(self, plan: SlicePlan) -> int:
        """Never above the simulated iteration time of ``plan``, whatever its order."""
        work = self._iteration(plan)
        compute, comm = sum(work.compute_ns.values()), sum(work.comm_ns.values())
        return max(int(compute + comm - self._saving_ns(work)), work.launch_ns)

    def estimate_ns(self, plan: SlicePlan) -> float:
        """Closed-form guess: the lower bound, plus the communication that the cut cannot hide."""
        return self.lower_ns(plan) + self._unhidden_ns(plan)

    # Lower bound --------------------------------------------------------------------------------

    def _saving_ns(self, work: Work) -> float:
        """Largest time that overlap can save."""
        comm: float = sum(work.comm_ns.values())
        collectives = tuple(work.comm_ns)
        offers = []
        for family, compute in work.compute_ns.items():
            slow, stretch = self._least_slowdown(family, collectives)
            offers.append((stretch / slow + 1 - stretch, compute * slow / stretch))
        saving = 0.0
        for gain, most in sorted(offers, reverse=True):
            taken = min(most, comm)
            if gain <= 0 or taken <= 0:
                break
            saving += gain * taken
            comm -= taken
        return saving

    def _least_slowdown(self, family: str, collectives: tuple[str, ...]) -> tuple[float, float]:
        pairs = [self.case.cost.contention.slowdowns((family, c)) for c in collectives] or [
            (SCALE,) * 2
        ]
        return min(p[0] for p in pairs) / SCALE, min(p[1] for p in pairs) / SCALE

    # Estimate -----------------------------------------------------------------------------------

    def _unhidden_ns(self, plan: SlicePlan) -> float:
        """Exposed all-reduces of one row slice; of more, what the order leaves at a block's end."""
        layers = self.case.model.num_hidden_layers * self.case.workload.grad_accumulation
        exposed = 0.0
        for block in BLOCKS:
            forward = self._comm_of(plan, block, "b") / plan.row_slices
            backward = self._comm_of(plan, block, "a_dgrad") / plan.row_slices
            columns = getattr(plan, f"{block}_col_slices")
            pieces = getattr(plan, f"{block}_dgrad_slices")
            if plan.strategy == "megatron" or plan.row_slices == 1:
                wgrad = self._part(plan, "wgrad", True).compute_ns.total() / (2 * len(BLOCKS))
                exposed += forward / columns + max(0.0, backward / pieces - wgrad)
            elif plan.order == "paper" or (plan.order == "intra" and block == "mlp"):
                exposed += forward / columns + backward / pieces / 2
        return exposed * layers

    def _comm_of(self, plan: SlicePlan, block: str, fragment: str) -> int:
        return self._part(plan, f"{block}.{fragment}", True).comm_ns.total()

    # Sums ---------------------------------------------------------------------------------------

    def _iteration(self, plan: SlicePlan) -> Work:
        micros = self.case.workload.grad_accumulation
        layers = self.case.model.num_hidden_layers
        names = ["fixed", "wgrad", *(f"{b}.{f}" for b in BLOCKS for f in ("b", "a_dgrad"))]
        total = self._part(plan, "step", True)
        for first, times in ((True, 1), (False, micros - 1)):
            if times:
                total = _add(total, self._part(plan, "edges", first), times)
                for name in names:
                    total = _add(total, self._part(plan, name, first), times * layers)
        return total

    def _part(self, plan: SlicePlan, name: str, first: bool) -> Work:
        key = self._key(plan, name, first)
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = self._sum(plan, name, first)
        return found

    def _key(self, plan: SlicePlan, name: str, first: bool) -> tuple[object, ...]:
        common = (plan.strategy, plan.row_slices, plan.comm_ctas, name)
        if name == "wgrad":
            return (*common, first, plan.merge_wgrad)
        if "." in name:
            block, fragment = name.split(".")
            kind = "col" if fragment == "b" else "dgrad"
            return (*common, getattr(plan, f"{block}_{kind}_slices"))
        return (*common, first and name == "edges")

    def _sum(self, plan: SlicePlan, name: str, first: bool) -> Work:
        fragments = Fragments(shapes=self.case.shapes(plan), accumulate_first=not first)
        if name in ("edges", "step"):
            return self._work(_edge_ops(Edges(fragments=fragments), name))
        if name == "wgrad":
            return self._least_wgrads(fragments)
        tokens = _part_tokens(plan, name)
        return self._work([op for token in tokens for op in fragments.templates(token)])

    def _least_wgrads(self, fragments: Fragments) -> Work:
        """Orders differ in which slice's gradient overwrites while the others accumulate: for each
        weight the cheaper of the first (a largest slice) and the last one (a smallest)."""
        plan = fragments.shapes.plan
        total = Work(Counter(), Counter(), 0)
        for block in BLOCKS:
            for fragment in ("b_wgrad", "a_wgrad"):
                tokens = _wgrad_tokens(plan, block, fragment)
                options = []
                for first in (tokens[0], tokens[-1]):
                    fragments.chains = {t: None if t == first else first for t in tokens}
                    ops = [op for token in tokens for op in fragments.templates(token)]
                    options.append(self._work(ops))
                total = _add(total, min(options, key=lambda work: work.compute_ns.total()), 1)
        return total

    def _work(self, ops: list[OpTemplate]) -> Work:
        compute: Counter[str] = Counter()
        comm: Counter[str] = Counter()
        launches = 0
        cost = self.case.cost
        for signature, lane in ((op.signature, op.lane) for op in ops):
            duration, family, launch = _numbers(cost, signature)
            if lane == COMPUTE:
                compute[family] += duration
            elif lane == TP:
                comm[family] += duration
            launches += launch
        return Work(compute, comm, launches if cost.launch.mode == "async" else 0)


def _numbers(cost: CostModel, signature: Signature) -> tuple[int, str, int]:
    launch = cost.launch.cost_ns.get(signature.kind, 0)
    inline = launch if cost.launch.mode == "inline" else 0
    return cost.duration_ns(signature) + inline, cost.family(signature), launch


def _edge_ops(edges: Edges, name: str) -> list[OpTemplate]:
    if name == "step":
        no_reads: tuple[Ref, ...] = ()
        return edges.step(edges.shapes.edge_parameters, no_reads)
    return [*edges.embedding(), *edges.head(), *edges.embedding_grad()]


def _part_tokens(plan: SlicePlan, name: str) -> list[Token]:
    rows = range(plan.row_slices)
    if name == "fixed":
        fragments = (*_FIXED["forward"], *_FIXED["backward"])
        return [t for b in BLOCKS for row in rows for t in run(plan, b, fragments, row)]
    block, fragment = name.split(".")
    return [t for row in rows for t in run(plan, block, (fragment,), row)]


def _wgrad_tokens(plan: SlicePlan, block: str, fragment: str) -> list[Token]:
    slices = (ALL_SLICES,) if plan.merge_wgrad else range(plan.row_slices)
    return [Token(block, fragment, row) for row in slices]


def _add(total: Work, part: Work, times: int) -> Work:
    compute, comm = Counter(total.compute_ns), Counter(total.comm_ns)
    for family, ns in part.compute_ns.items():
        compute[family] += ns * times
    for family, ns in part.comm_ns.items():
        comm[family] += ns * times
    return Work(compute, comm, total.launch_ns + part.launch_ns * times)
