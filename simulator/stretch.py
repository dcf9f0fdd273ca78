"""Sums of one pass of a layer, the times that follow, and plans whose passes share a bound.

``closed_form`` has the formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.issue_order import AGAIN, BLOCKS, COLUMN_PARALLEL, ROW_PARALLEL
from simulator.plan import SlicePlan

NO_EDGES: Final[Mapping[str, int]] = MappingProxyType({})


class Work(NamedTuple):
    """Times of a part of a layer or of an edge, all row slices, in ns run alone.

    ``family_ns``, ``fragment_ns``: compute by kind of op, and by fragment; ``comm_ns``: its
    collectives; ``gather_ns``: those that a block begins with; ``last_ns``: the last of all;
    ``launch_ns``: the host's cost of issuing all ops; ``drawn_j``: their energy above idle, where
    the costs are those at a clock.
    """

    family_ns: Counter[str]
    fragment_ns: Counter[str]
    comm_ns: int
    gather_ns: int
    last_ns: int
    launch_ns: int
    drawn_j: float


class Stretch(NamedTuple):
    """One pass of one layer. ``hiding_ns``: compute by family that can hide an all-reduce;
    ``waited_ns``: of a plan whose windows are known, by how much it takes longer than its compute
    at least."""

    blocks: tuple[Work, ...]
    hiding_ns: dict[str, float]
    compute_ns: int
    comm_ns: int
    waited_ns: float = 0.0


class PassBound(NamedTuple):
    """The least time of one pass of all layers, ns; the host's cost of launching it, ns; and the
    least energy that it draws above idle, J, 0 where no clock is set."""

    least_ns: float
    launch_ns: int
    drawn_j: float

    @property
    def alone_ns(self) -> float:
        """The least time of the pass if its host begins with it."""
        return max(self.least_ns, self.launch_ns)


def stretch_of(
    plan: SlicePlan, blocks: tuple[Work, ...], pieces: tuple[int, ...], *, experts: bool = False
) -> Stretch:
    """Return the pass of a layer; ``pieces``: of each block's column slices, or dgrads. With
    ``experts`` any compute may hide a collective: routers and a shared expert need none."""
    families = blocks[0].family_ns + blocks[1].family_ns
    hiding: dict[str, float] = dict(families)
    recomputes = any(may_hide(name) for work in blocks for name in work.fragment_ns)
    if plan.row_slices == 1 and not recomputes and not experts:
        gemm_ns = 0.0
        for block, work, count in zip(BLOCKS, blocks, pieces, strict=True):
            spent, first, last = work.fragment_ns, COLUMN_PARALLEL[block], ROW_PARALLEL[block]
            gemm_ns += spent[f"{last}_wgrad"] + spent[f"{first}_wgrad"]
            dgrad = f"{first}_dgrad" in spent
            cut = spent[f"{first}_dgrad"] if dgrad else spent[last]
            beside = count if dgrad and plan.sequence_parallel else count - 1
            gemm_ns += cut * beside / count
        hiding = {"gemm": gemm_ns}
    return Stretch(blocks, hiding, families.total(), sum(work.comm_ns for work in blocks))


def may_hide(fragment: str) -> bool:
    """Return whether a fragment is computed again beside collectives of backward, of which it needs
    nothing; an attention core that is alone comes when none is in flight."""
    return fragment.endswith(AGAIN) and fragment != f"core_attn{AGAIN}"


def least_ns(
    stretch: Stretch, slow: dict[str, float], slow_comm: float, *,
    waits: bool = False, layers: int = 1, edges_ns: Mapping[str, int] = NO_EDGES,
) -> float:  # fmt: skip
    """Return the minimum of ``closed_form`` for ``layers`` equal passes; ``waits``: for the
    gathers, alone. ``edges_ns``: compute by family, not counted here, that may hide collectives
    too."""
    total = float(layers * (stretch.compute_ns + stretch.comm_ns))
    gathers_ns = sum(work.gather_ns for work in stretch.blocks) if waits else 0
    hiding = [
        (slow[family], layers * stretch.hiding_ns.get(family, 0) + edges_ns.get(family, 0))
        for family in {**stretch.hiding_ns, **edges_ns}
    ]
    return total - saved_ns(hiding, layers * (stretch.comm_ns - gathers_ns), slow_comm)


def saved_ns(hiding: Iterable[tuple[float, float]], comm_ns: float, slow_comm: float) -> float:
    """Return the most that compute and collectives of ``comm_ns`` save by running at the same time.
    ``hiding``: slowdowns and ns alone of the compute."""
    saved, room = 0.0, slow_comm * comm_ns
    for slow, alone_ns in sorted(hiding):
        beside = min(room, slow * alone_ns)
        saved += max(0.0, 1 / slow + 1 / slow_comm - 1) * beside
        room -= beside
    return saved


def pass_ns(stretch: Stretch, exposed_ns: float, slow: dict[str, float], slow_comm: float) -> float:
    """Return ``_usual_ns`` and what the order exposes, at most what compute would hide."""
    usual_ns = _usual_ns(stretch, slow, slow_comm)
    return max(usual_ns, min(usual_ns + exposed_ns, stretch.compute_ns + stretch.comm_ns))


def _usual_ns(stretch: Stretch, slow: dict[str, float], slow_comm: float) -> float:
    """Return the time of ``least_ns`` if an all-reduce runs beside all families equally."""
    hiding = sum(stretch.hiding_ns.values())
    slowed = sum(slow[family] * spent for family, spent in stretch.hiding_ns.items())
    if not hiding:
        return float(stretch.compute_ns + stretch.comm_ns)
    beside = min(slow_comm * stretch.comm_ns, slowed)
    gain = 1 / slow_comm - 1 + hiding / slowed
    return stretch.compute_ns + stretch.comm_ns - gain * beside


def forward_exposed_ns(plan: SlicePlan, stretch: Stretch) -> float:
    """Return the exposed time of last all-reduces: the MLP's in ``intra``, both in ``paper``."""
    if plan.row_slices == 1 or plan.order not in ("intra", "paper"):
        return 0.0
    attn, mlp = stretch.blocks
    other = 1 - 1 / plan.row_slices
    exposed = max(0.0, mlp.last_ns - other * mlp.fragment_ns["residual"])
    exposed += _exposed_gathers_ns(plan, stretch)
    if plan.order == "paper":
        hidden = other * (attn.fragment_ns["residual"] + mlp.fragment_ns["norm"])
        exposed += max(0.0, attn.last_ns - hidden)
    return exposed


def _exposed_gathers_ns(plan: SlicePlan, stretch: Stretch) -> float:
    """Return the gathers that a block begins with: every slice's in ``intra``, the first one's in
    ``paper``, where the others' are hidden behind it."""
    gathers = sum(work.gather_ns for work in stretch.blocks)
    return gathers / (plan.row_slices if plan.order == "paper" else 1)


def backward_exposed_ns(plan: SlicePlan, stretch: Stretch) -> float:
    """Return the same for backward, where the last slice's wgrads help to hide its all-reduce."""
    if plan.order not in ("intra", "paper"):
        return 0.0
    waiting = list(zip(BLOCKS, stretch.blocks, strict=True))
    if plan.order == "intra":
        del waiting[1:]
    if plan.row_slices == 1:
        return 0.0
    other, exposed = 1 - 1 / plan.row_slices, _exposed_gathers_ns(plan, stretch)
    for block, work in waiting:
        behind = work.fragment_ns[f"{COLUMN_PARALLEL[block]}_wgrad"]
        behind += work.fragment_ns[f"{ROW_PARALLEL[block]}_wgrad"] * (plan.wgrad == "deferred")
        share = 1.0 if plan.merge_wgrad else 1 / plan.row_slices
        exposed += max(0.0, work.last_ns - share * behind - other * work.fragment_ns["norm_bwd"])
    return exposed


# Bound groups -------------------------------------------------------------------------------------
# Groups of plans whose passes have the same bound, so that a space's bounds are sums of few.
#
# A space of tens of thousands of plans has some thousand forward passes and as many backward ones.

Ints = npt.NDArray[np.int64]


class Group(NamedTuple):
    """Rows grouped by kind. ``first``: the index of a row of each kind; ``kind``: the kind of each
    row."""

    first: Ints
    kind: Ints


class BoundGroups(NamedTuple):
    """Groups of ``plans`` that share a bound: of the forward pass, of the backward pass, and of the
    ops outside the layers."""

    plans: Sequence[SlicePlan]
    forward: Group
    backward: Group
    edges: Group


def coded(*columns: Ints) -> Group:
    """Return the groups of rows that are equal in all ``columns``, whose numbers are ≥ 0."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes = codes * (int(column.max(initial=0)) + 1) + column
    _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
    return Group(first, kind)


def numbered(values: Sequence[Hashable]) -> Ints:
    """Return a number for each value, equal for equal ones."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def by_key(plans: Sequence[SlicePlan], key: Callable[[SlicePlan], Hashable]) -> Ints:
    """Return a number for each plan, equal where ``key`` is."""
    return numbered([key(plan) for plan in plans])
