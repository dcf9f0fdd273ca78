"""The space of plans: all combinations of the choices, and plans as points of a search.

Feasibility is decided on plain tuples. A plan is built on first use, since most of the ~100,000
combinations are never used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from simulator.bounds import BoundGroups, by_key, coded
from simulator.errors import InfeasiblePlanError
from simulator.plan import (
    MAX_ROW_SLICES,
    ORDERS,
    SEQUENCE_ROW_SLICES,
    SLICINGS,
    WGRAD_PLACEMENTS,
    Order,
    SlicePlan,
    Slicing,
    WgradPlacement,
)
from simulator.ranks import joins_edges, waits_for_gathers
from simulator.recipes import mode_of
from simulator.specs import ModelSpec, Workload

Target = Literal["deepspeed"]
Cut = tuple[int, int, int, int, int]
UNSLICED: Final[Cut] = (1, 1, 1, 1, 1)
TWO_ROWS: Final[Cut] = (2, 1, 1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class SpaceSpec:
    """The choices of each axis, in the order in which plans are listed.

    Sequences are cut only into the numbers of slices in ``sequence_row_slices``: more never paid
    off. With empty ``dgrad_slices``, each block has as many dgrad pieces as column slices.
    """

    row_slices: tuple[int, ...] = tuple(range(1, MAX_ROW_SLICES + 1))
    col_slices: tuple[int, ...] = (1, 2, 4, 8)
    dgrad_slices: tuple[int, ...] = (1, 2, 4, 8)
    orders: tuple[Order, ...] = ORDERS
    wgrads: tuple[WgradPlacement, ...] = WGRAD_PLACEMENTS
    merge_wgrads: tuple[bool, ...] = (False, True)
    comm_ctas: tuple[int, ...] = (0,)
    sequence_parallels: tuple[bool, ...] = (False,)
    slicings: tuple[Slicing, ...] = SLICINGS[:1]
    sequence_row_slices: tuple[int, ...] = SEQUENCE_ROW_SLICES

    @property
    def cuts(self) -> list[Cut]:
        """Return all combinations of row, column and dgrad slices."""
        if not self.dgrad_slices:
            pairs = product(self.row_slices, self.col_slices, self.col_slices)
            return [(rows, attn, mlp, attn, mlp) for rows, attn, mlp in pairs]
        two = (self.col_slices, self.col_slices, self.dgrad_slices, self.dgrad_slices)
        return list(product(self.row_slices, *two))

    def slicings_for(self, row_slices: int) -> list[Slicing]:
        """Return the ways to cut a batch into ``row_slices``."""
        along = row_slices in self.sequence_row_slices
        return [one for one in self.slicings if along or one[0] == "batch"]

    def variants(self, row_slices: int) -> list[PlanChoices]:
        """Return all combinations of the choices that are not the cut."""
        return [
            PlanChoices(order, wgrad, merge, ctas, sharded, slicing)
            for slicing, sharded, order, wgrad, merge, ctas in product(
                self.slicings_for(row_slices),
                self.sequence_parallels,
                self.orders,
                self.wgrads,
                self.merge_wgrads,
                self.comm_ctas,
            )
        ]


class PlanChoices(NamedTuple):
    """The choices of a plan that are not its cut."""

    order: Order
    wgrad: WgradPlacement
    merge_wgrad: bool
    comm_ctas: int
    sequence_parallel: bool
    slicing: Slicing


class Space(Sequence[SlicePlan]):
    """The feasible plans, as a sequence that builds a plan on first use.

    ``size`` counts all combinations. ``infeasible`` counts those left out, by reason: the slugs of
    InfeasiblePlanError, and ``duplicate`` for a second name of a plan in the space.
    """

    def __init__(
        self, pool: Sequence[tuple[Cut, PlanChoices]] = (), infeasible: Counter[str] | None = None
    ) -> None:
        self._pool = pool
        self._built: dict[int, SlicePlan] = {}
        self.infeasible = infeasible or Counter[str]()

    def bound_groups(self, *, reads_columns: bool) -> BoundGroups:
        """Return the plans grouped by the passes that their bounds add up.

        ``reads_columns``: whether backward depends on forward's pieces.
        """
        # Compare by identity: cuts share these objects, and equal objects may count as different.
        _, variant = np.unique([id(one) for _, one in self._pool], return_inverse=True)
        rows, attn, mlp, attn_dgrad, mlp_dgrad = np.array(
            [cut for cut, _ in self._pool], np.int64
        ).reshape(-1, 5).T  # fmt: skip
        unsliced = (rows == 1).astype(np.int64)
        kinds = coded(variant, unsliced)
        plans = [self[int(first)] for first in kinds.first]
        mode = by_key(plans, mode_of)[kinds.kind]
        ways = by_key(plans, lambda plan: (waits_for_gathers(plan), joins_edges(plan)))[kinds.kind]
        merge = by_key(plans, lambda plan: plan.merge_wgrad)[kinds.kind]
        again = (attn, mlp) if reads_columns else ()
        return BoundGroups(
            self,
            forward=coded(mode, ways, rows, attn, mlp),
            backward=coded(mode, ways, merge, rows, attn_dgrad, mlp_dgrad, *again),
            edges=coded(mode, rows),
        )

    @property
    def size(self) -> int:
        """Return the number of combinations: feasible, infeasible and duplicate."""
        return len(self._pool) + self.infeasible.total()

    def __len__(self) -> int:
        return len(self._pool)

    @overload
    def __getitem__(self, index: int) -> SlicePlan: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SlicePlan, ...]: ...
    def __getitem__(self, index: int | slice) -> SlicePlan | tuple[SlicePlan, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if index not in self._built:
            self._built[index] = _build(*self._pool[index])
        return self._built[index]


def enumerate_plans(
    model: ModelSpec,
    workload: Workload,
    *,
    tp: int = 1,
    spec: SpaceSpec | None = None,
    target: Target | None = None,
) -> Space:
    """Return the space of ``spec`` for this model and workload, or the part that ``target`` can
    run.

    ``tp``: with sequence parallelism, the number of positions in a slice of sequences is a multiple
    of it. Raise InfeasiblePlanError (``target``) if the target cannot run this model or batch at
    all.
    """
    spec = restrict(spec or SpaceSpec(), model, workload, target)
    if not workload.merges_wgrads or model.num_experts:
        spec = replace(spec, merge_wgrads=(False,))
    pool: list[tuple[Cut, PlanChoices]] = []
    infeasible: Counter[str] = Counter()
    splits: dict[tuple[Cut, bool], tuple[list[PlanChoices], Counter[str]]] = {}
    for cut in spec.cuts:
        kind = _kind(cut), cut[0] in spec.sequence_row_slices
        if kind not in splits:
            splits[kind] = _split(kind[0], spec.variants(cut[0]))
        feasible, left_out = splits[kind]
        infeasible.update(left_out)
        runs = [variant for variant in feasible if _has_rows(cut[0], variant, workload, tp)]
        infeasible["rows"] += len(feasible) - len(runs)
        latent = model.kv_lora_rank > 0 and cut[3] > 1
        if latent or any(model.hidden_size % pieces for pieces in cut[1:]):
            # Its twin cannot run either, so there are no duplicates.
            infeasible["hidden"] += len(runs) + left_out["duplicate"]
            infeasible["duplicate"] -= left_out["duplicate"]
        else:
            pool.extend((cut, variant) for variant in runs)
    return Space(pool, +infeasible)


def restrict(
    spec: SpaceSpec, model: ModelSpec, workload: Workload, target: Target | None
) -> SpaceSpec:
    """Return ``spec`` restricted to what ``target`` can run; without a target return ``spec``
    itself.

    DeepSpeed at edaa722 runs two equal row slices of a GPT-style layer, in its two orders, with
    each weight gradient next to its dgrad. It has no sequence parallelism.
    """
    if target is None:
        return spec
    problem = _deepspeed_problem(model, workload)
    if not problem and False not in spec.sequence_parallels:
        problem = "sequence parallelism"
    if problem:
        raise InfeasiblePlanError(
            f"DeepSpeed's Domino cannot run {problem}; leave out --target deepspeed.",
            reason="target",
        )
    return replace(
        spec, row_slices=(2,), col_slices=(1,), dgrad_slices=(1,), orders=("inter", "intra"),
        wgrads=("eager",), merge_wgrads=(False,), sequence_parallels=(False,),
        slicings=SLICINGS[:1],
    )  # fmt: skip


def _deepspeed_problem(model: ModelSpec, workload: Workload) -> str:
    """Return which part of this model or batch DeepSpeed's Domino layer cannot run, or an empty
    text.
    """
    checks = (
        (model.gated_mlp or model.hidden_act != "gelu", f"{model.name}'s MLP (it has plain GeLU)"),
        (model.norm != "layernorm", f"{model.name}'s {model.norm} (it has LayerNorm)"),
        (
            model.num_key_value_heads != model.num_attention_heads,
            f"{model.name}'s grouped-query attention",
        ),
        (bool(model.extras), f"{model.name}'s {', '.join(model.extras)}"),
        (
            workload.micro_batch_size % 2 == 1,
            f"an odd micro_batch_size = {workload.micro_batch_size} (it halves the batch)",
        ),
    )
    return next((text for failed, text in checks if failed), "")


def _kind(cut: Cut) -> Cut:
    """Return a representative cut that has the same variants. Only three kinds exist."""
    if cut in (UNSLICED, TWO_ROWS):
        return cut
    return (cut[0] if cut[0] == 1 else 3, 2, 2, 2, 2)


def _split(cut: Cut, variants: list[PlanChoices]) -> tuple[list[PlanChoices], Counter[str]]:
    """Return the variants that exist for this kind of cut, and count the others by reason."""
    feasible: list[PlanChoices] = []
    left_out: Counter[str] = Counter()
    for variant in variants:
        reason = _variant_reason(cut, variant, variants)
        if reason:
            left_out[reason] += 1
        else:
            feasible.append(variant)
    return feasible, left_out


def _variant_reason(cut: Cut, variant: PlanChoices, variants: list[PlanChoices]) -> str:
    """Return why this variant is left out, or an empty text. A duplicate's twin is in the space."""
    if variant.order in ("inter", "paper") and cut not in (UNSLICED, TWO_ROWS):
        return "order"
    if variant.order == "paper" and variant.slicing[0] == "sequence":
        return "order"
    if (variant.wgrad == "fill") != (variant.order == "greedy"):
        return "wgrad"
    twin = variant
    if cut[0] == 1:  # one slice: merging weight gradients changes nothing
        twin = twin._replace(merge_wgrad=False)
    if cut == UNSLICED and variant.order != "greedy":  # one slice: all fixed orders are the same
        twin = twin._replace(order=_first_fixed_order(variants))
    return "duplicate" if twin != variant and twin in variants else ""


def _first_fixed_order(variants: list[PlanChoices]) -> Order:
    orders = [variant.order for variant in variants]
    return "intra" if "intra" in orders else next(order for order in orders if order != "greedy")


def _has_rows(rows: int, variant: PlanChoices, workload: Workload, tp: int) -> bool:
    """Return whether every row slice has sequences or positions. This is
    ``simulator.plan.row_problem`` without a plan.
    """
    dim, _ = variant.slicing
    if dim == "batch":
        return rows <= workload.micro_batch_size
    return rows * (tp if variant.sequence_parallel else 1) <= workload.seq_length


def _build(cut: Cut, variant: PlanChoices) -> SlicePlan:
    rows, attn, mlp, attn_dgrad, mlp_dgrad = cut
    return SlicePlan(
        row_slices=rows,
        attn_col_slices=attn,
        mlp_col_slices=mlp,
        attn_dgrad_slices=attn_dgrad,
        mlp_dgrad_slices=mlp_dgrad,
        order=variant.order,
        wgrad=variant.wgrad,
        merge_wgrad=variant.merge_wgrad,
        comm_ctas=variant.comm_ctas,
        sequence_parallel=variant.sequence_parallel,
        slice_dim=variant.slicing[0],
        slice_balance=variant.slicing[1],
    )


# Pool ---------------------------------------------------------------------------------------------
# The plans that a Bayesian search chooses from, as points.
#
# Counts are exponents of two, names are one-hot, and each axis is scaled to 0 … 1.

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Observations = Mapping[int, tuple[float, float]]
"""Log ns and its standard error, by index in a pool."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Plans to choose from, and the expectation for each before it is evaluated.

    ``points``: [n, d] features. ``log_prior``: [n] log of the expected ns. ``sensitivity``: [n, k]
    change of log ns under each of k errors that the expectation may have.
    """

    plans: tuple[SlicePlan, ...]
    points: Floats
    log_prior: Floats
    sensitivity: Floats

    @property
    def times_ns(self) -> Floats:
        """Return the [n] expected ns."""
        return np.asarray(np.exp(self.log_prior))


def encode(plans: Sequence[SlicePlan]) -> Floats:
    """Return one row per plan, with columns only for what differs between plans.

    scikit-optimize refuses a dimension with only one value.
    """
    from skopt.space import Categorical, Real, Space  # takes 1.3 s to import

    columns = [column for column in zip(*map(_raw, plans), strict=True) if len(set(column)) > 1]
    if not columns:
        return np.zeros((len(plans), 1))
    dimensions: list[Any] = [
        Categorical(sorted(set(column)), transform="onehot")
        if isinstance(column[0], str)
        else Real(min(column), max(column), transform="normalize")
        for column in columns
    ]
    points = Space(dimensions).transform(list(zip(*columns, strict=True)))
    return np.asarray(points, dtype=np.float64)


def _raw(plan: SlicePlan) -> tuple[float | str, ...]:
    """Return the features, with powers of two as exponents; 0 CTAs (NCCL's choice) is placed below
    1.
    """
    counts = [math.log2(count) for count in plan.slices]
    ctas = math.log2(plan.comm_ctas) if plan.comm_ctas else -1.0
    flags = (float(plan.merge_wgrad), float(plan.sequence_parallel))
    return (*counts, ctas, *flags, plan.order, plan.wgrad, f"{plan.slice_dim} {plan.slice_balance}")
