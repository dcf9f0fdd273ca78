"""Estimate of a plan's time, without an engine: what Bayesian searches expect before they look.

It takes the sums of ``bounds`` at the clock that they find, lets a collective run beside all
families equally, and adds what each order exposes. It leaves out the all-reduces at the edges,
waits between ranks and what compute pays for them, and links that two groups share, so it is mostly
a little low.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simulator.bounds import Bounds
from simulator.case import Case
from simulator.curves import COMM, COUNT, PASSES, WAITED, LayerCurves, Pass, fragments_of
from simulator.issue_order import BLOCKS, COLUMN_PARALLEL, ROW_PARALLEL
from simulator.plan import SlicePlan
from simulator.ranks import Rank
from simulator.specs import WGRADS_APART

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class _Block(NamedTuple):
    """Of a block's pass, in ns run alone: compute by fragment, the collectives that it begins with,
    and its last one."""

    fragment_ns: Counter[str]
    gather_ns: float
    last_ns: float


class Estimates:
    """Estimates for the plans of one case. ``bounds``: of the same."""

    def __init__(self, case: Case, bounds: Bounds | None = None) -> None:
        self.case = case
        self._bounds = bounds or Bounds(case)
        self._clocks = self._bounds.prices.clocks

    def prior_ns(self, plan: SlicePlan) -> float:
        """Return an estimate (ns) of an iteration's time."""
        cluster, work = self.case.cluster, self.case.workload
        rank, clock = self._bounds.busiest, self._clocks.index(self._bounds.clock(plan))
        passes = behind = 0.0
        for kind, layers in rank.counts.items():
            curves = rank.layers.kind(kind, rank.case)
            both_ns, backward_ns = self._layer_ns(rank, curves, plan, clock)
            passes += layers * both_ns
            behind += layers * backward_ns
        edges, micros = rank.edges(plan), work.grad_accumulation
        alone_ns = micros * passes + edges.micro_ns(micros)[clock] + edges.step_ns[clock]
        alone_ns += self._exposed_buckets_ns(rank, plan, behind, clock)
        bubble = (cluster.pp - 1) / (cluster.vpp * micros)
        if work.pp_schedule in WGRADS_APART:
            bubble /= 3
        return float(alone_ns * (1 + bubble))

    def _layer_ns(
        self, rank: Rank, curves: LayerCurves, plan: SlicePlan, clock: int
    ) -> tuple[float, float]:
        """Return the times of both passes of a layer, and of backward alone."""
        launch_ns, spent = 0.0, []
        for which in PASSES:
            one, slow = curves.one(plan, which), rank.slow([plan])[0]
            hiding = one.hiding_ns[:, clock]
            compute_ns, comm_ns = one.rows[:COUNT, clock].sum(), one.rows[COMM, clock]
            usual_ns = compute_ns + comm_ns - _hidden_ns(hiding, comm_ns, slow)
            exposed_ns = self._exposed_ns(curves, plan, which, clock)
            spent.append(max(usual_ns, min(usual_ns + exposed_ns, compute_ns + comm_ns)))
            launch_ns += one.launch_ns
        return max(sum(spent), launch_ns), spent[1]

    def _exposed_ns(self, curves: LayerCurves, plan: SlicePlan, which: Pass, clock: int) -> float:
        """Return the exposed time of the last all-reduces: forward the MLP's in ``intra``, both in
        ``paper``; backward the attention's, or both, where the last slice's wgrads help to hide
        them. And of the gathers that a block begins with: every slice's in ``intra``, the first
        one's in ``paper``, where the others' are hidden behind it."""
        rows, paper = plan.row_slices, plan.order == "paper"
        if rows == 1 or plan.order not in ("intra", "paper"):
            return 0.0
        attn, mlp = blocks = [self._block(curves, plan, which, block, clock) for block in BLOCKS]
        exposed = sum(one.gather_ns for one in blocks) / (rows if paper else 1)
        other = 1 - 1 / rows
        if which == "forward":
            exposed += max(0.0, mlp.last_ns - other * mlp.fragment_ns["residual"])
            if paper:
                hidden = other * (attn.fragment_ns["residual"] + mlp.fragment_ns["norm"])
                exposed += max(0.0, attn.last_ns - hidden)
            return exposed
        for name, block in zip(BLOCKS, blocks, strict=True) if paper else [("attn", attn)]:
            spent = block.fragment_ns
            wgrads = spent[f"{COLUMN_PARALLEL[name]}_wgrad"]
            wgrads += spent[f"{ROW_PARALLEL[name]}_wgrad"] * (plan.wgrad == "deferred")
            share = 1.0 if plan.merge_wgrad else 1 / rows
            exposed += max(0.0, block.last_ns - share * wgrads - other * spent["norm_bwd"])
        return exposed

    def _block(
        self, curves: LayerCurves, plan: SlicePlan, which: Pass, block: str, clock: int
    ) -> _Block:
        prices, spent = curves.prices, Counter[str]()
        gather_ns = last_ns = 0.0
        recipes = (curves.kept or curves).recipes  # what is played again, nothing is exposed by
        fragments = recipes.block(plan, block, fragments_of(curves.case, which))
        for recipe, played in chain.from_iterable(one.recipes for one in fragments):
            for fragment, ways, computes, replayed, each in recipe.parts:
                price, times = prices[ways, replayed], played * each
                if computes:
                    inline = prices.cost.launch.mode == "inline"
                    each_ns = price.least_ns[clock] + price.launch_ns * inline
                    spent[fragment] += times * each_ns
                elif fragment in WAITED:
                    gather_ns += times * price.least_ns[clock]
            if recipe.last:
                last_ns = prices.ns(recipe.last)[clock]
        return _Block(spent, gather_ns, last_ns)

    def _exposed_buckets_ns(
        self, rank: Rank, plan: SlicePlan, backward_ns: float, clock: int
    ) -> float:
        """Return the data-parallel collectives that a pass does not hide, at least the edges'."""
        shapes, work = rank.case.shapes(plan), rank.case.workload
        if not shapes.reduces:
            return 0.0
        passing = [(shapes.dp_reduction, work.overlap_grad_reduce)]
        if shapes.shards_optimizer:
            passing.append((shapes.dp_gather, work.overlap_param_gather))
        exposed, ns = 0.0, rank.prices.ns
        for collective, overlaps in passing:
            held = shapes.held
            whole_ns = ns(collective(held.rest))[clock]
            if held.experts:
                whole_ns += ns(collective(held.experts, experts=True))[clock]
            last_ns = ns(collective(shapes.edge_parameters))[clock]
            exposed += max(whole_ns - backward_ns, last_ns) if overlaps else whole_ns
        return exposed


def _hidden_ns(hiding_ns: Floats, comm_ns: float, slow: Floats) -> float:
    """Return what collectives of ``comm_ns`` save by running beside all families equally.
    ``slow``: as ``curves.saved_ns`` takes it."""
    hiding, slowed = hiding_ns.sum(), (slow[:COUNT] * hiding_ns).sum()
    if not hiding:
        return 0.0
    beside = min(slow[COUNT] * comm_ns, slowed)
    return float((1 / slow[COUNT] - 1 + hiding / slowed) * beside)
