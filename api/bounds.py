"""Limits of a request's size, computed in closed form before anything is built from it.

Some checks of the simulator search all numbers up to a size, and a schedule has an op for every
piece of every layer: sizes that no machine has would keep a server busy for hours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import Any, Final

from api.problems import bad_body
from domino_tune.base.units import parse_quantity
from domino_tune.requests import TuneRequest
from domino_tune.search import SpaceSpec, slicings_of
from domino_tune.store.formats.hf_config import field_name
from domino_tune.verbs.advice import weights_fit
from domino_tune.verbs.layouts import COL_SLICES, ROW_SLICES, Layout, case_of, layouts_of
from domino_tune.verbs.resolve import usual_sharing
from domino_tune.verbs.simulate import micros_shown, shortened
from domino_tune.verbs.tune import cases_to_tune
from domino_tune.verbs.whatif import parse_changes, parse_sweep
from simulator.case import Case
from simulator.errors import InputError
from simulator.merged import copies
from simulator.plan import MAX_ROW_SLICES, MEGATRON, SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

MOST_OPS: Final = 1_000_000
"""Ops of a schedule that a job plays in full: about 20 s and 1 GiB."""
MOST_OPS_AT_ONCE: Final = 250_000
"""Ops of a schedule that a caller waits for: about 4 s."""
MOST_PLANS: Final = 4_000_000
"""Combinations of a search, of all micro-batch sizes together."""
MOST_LAYOUTS: Final = 1 << 13
"""Layouts of a search: the first bounds of so many take about a minute, in one quantum."""
MOST_RANKS: Final = 1 << 20
MOST_PASSES: Final = 1 << 20
"""Passes of all stages of a pipeline in an iteration: about 10 s."""
MOST_SEQUENCES: Final = 1 << 20
"""Sequences of one replica's step: micro-batch size × accumulation."""
MOST_POINTS: Final = 256
MOST_TOKENS: Final = 20_000
MOST_STRIDE: Final = 16
LONGEST_TOKEN: Final = 64
COUNTS: Final = {
    "tp": 1 << 16,
    "dp": MOST_RANKS,
    "pp": 1 << 10,
    "vpp": 1 << 8,
    "cp": 1 << 10,
    "nodes": MOST_RANKS,
    "gpus": 1 << 16,
    "global_batch_size": MOST_SEQUENCES,
    "seq_length": 1 << 24,
    "micro_batch_size": 1 << 16,
    "grad_accumulation": 1 << 13,
    "recompute_layers": 4096,
    "clock_mhz": 1 << 14,
    "trials": MOST_PLANS,
}
"""Upper limit of each number of a request."""
SIZES: Final = {
    "num_hidden_layers": 4096,
    "hidden_size": 1 << 20,
    "num_attention_heads": 1 << 16,
    "num_key_value_heads": 1 << 16,
    "head_dim": 1 << 16,
    "intermediate_size": 1 << 22,
    "vocab_size": 1 << 24,
    "max_position_embeddings": 1 << 28,
    "sliding_window": 1 << 28,
}
"""Upper limit of each size of a model."""


def check_fields(body: object) -> None:
    """Refuse a body whose numbers together are too large. Raise ProblemError 422."""
    ranks = math.prod(getattr(body, name, None) or 1 for name in ("tp", "dp", "pp", "cp"))
    _at_most(ranks, MOST_RANKS, ("dp",), "the number of ranks")
    for index, text in enumerate(getattr(body, "overrides", None) or ()):
        _check_override(text, ("overrides", index))
    plan = getattr(body, "plan", None)
    if isinstance(plan, Mapping):
        check_plan_object(plan)


def _check_override(text: str, place: tuple[str | int, ...]) -> None:
    name, _, value = text.partition("=")
    try:
        size, key = int(value), field_name(name.strip())
    except (InputError, ValueError):  # applying the override reports what is wrong
        return
    _at_most(size, SIZES.get(key, max(SIZES.values())), place, key)


def check_model(model: ModelSpec, place: tuple[str | int, ...] = ("model",)) -> None:
    """Refuse a model that is larger than any real one. Raise ProblemError 422."""
    for name, most in SIZES.items():
        _at_most(getattr(model, name), most, place, name)


def check_plan_object(plain: Mapping[str, Any]) -> None:
    """Refuse a plan file, as parsed JSON, that is too large to be read. Raise ProblemError 422.

    ``plan_from_json`` reports everything else that is wrong with it.
    """
    for part, limits in {"model": SIZES, "workload": COUNTS, "cluster": _CLUSTER}.items():
        if not isinstance(found := plain.get(part), Mapping):
            continue
        for name, most in limits.items():
            _at_most(found.get(name), most, ("plan", part, name))
    order = plain.get("order")
    if not isinstance(order, Mapping):
        return
    for name in ("forward", "backward"):
        if isinstance(line := order.get(name), Mapping):
            _check_line(line, ("plan", "order", name))


_CLUSTER: Final = {
    **{name: COUNTS[name] for name in ("tp", "dp", "pp", "vpp", "cp")}, "ranks_per_node": 1 << 30,
}  # fmt: skip


def _check_line(line: Mapping[str, Any], place: tuple[str, ...]) -> None:
    _at_most(line.get("stride"), MOST_STRIDE, (*place, "stride"))
    tokens = line.get("tokens")
    if not isinstance(tokens, list):
        return
    _at_most(len(tokens), MOST_TOKENS, (*place, "tokens"), "its length")
    for index, token in enumerate(tokens):
        if isinstance(token, str) and len(token) > LONGEST_TOKEN:
            raise bad_body("No token of an order is so long.", place=(*place, "tokens", index))


def check_setup(
    case: Case,
    plan: SlicePlan | None = None,
    *,
    changes: Sequence[str] = (),
    sweep: str | None = None,
    tune_also: Sequence[str] = (),
    most_ops: int = MOST_OPS,
) -> None:
    """Refuse a request that would take too long. Raise ProblemError 422, or InputError.

    ``plan`` is the plan to play; None means a search, over ``tune_also`` too. ``changes`` and
    ``sweep`` are those of a what-if.
    """
    check_model(case.model)
    cluster, workload = case.cluster, case.workload
    _at_most(cluster.world_size, MOST_RANKS, ("dp",), "the number of ranks")
    passes = cluster.pp * cluster.vpp * workload.grad_accumulation
    _at_most(passes, MOST_PASSES, ("grad_accumulation",), "pp × vpp × grad_accumulation")
    for name in ("seq_length", "micro_batch_size", "grad_accumulation"):
        _at_most(getattr(workload, name), COUNTS[name], (name,))
    sequences = workload.micro_batch_size * workload.grad_accumulation
    _at_most(sequences, MOST_SEQUENCES, ("grad_accumulation",), "the batch of a replica")
    largest = _check_changes(case, changes, sweep)
    # A schedule has more ops with all-reduces than without; the number of ranks does not matter.
    ranks = cluster.replicas
    reducing = ClusterSpec(
        tp=min(largest["tp"], 2), dp=cluster.dp, cp=cluster.cp, ranks_per_node=2 * ranks
    )
    for one in cases_to_tune(case, tune_also):
        accumulation = one.workload.grad_accumulation
        _at_most(accumulation, COUNTS["grad_accumulation"], ("tune_also",), "grad_accumulation")
        size = max(one.workload.micro_batch_size, largest["micro_batch_size"])
        micros = shortened(one).workload.grad_accumulation
        played = plan or _most_sliced(size)
        ops = schedule_ops(case.model, reducing, played, micros, case.workload)
        _at_most(ops, most_ops, ("model",), "the number of ops to play")
    if plan is None:
        _at_most(search_size(case, tune_also), MOST_PLANS, ("tune_also",), "the number of plans")


def check_layouts(case: Case, request: TuneRequest) -> None:
    """Refuse a search of layouts that would take too long. Raise ProblemError 422.

    ``case`` is what the layouts of ``request`` divide.
    """
    check_model(case.model)
    found = list(islice(layouts_of(case, request), MOST_LAYOUTS + 1))
    if len(found) > MOST_LAYOUTS:
        raise bad_body(
            f"There are more than {MOST_LAYOUTS:,} layouts, which is the most here; fix some of "
            "tp, cp, pp, vpp, micro_batch_size and recompute, or ask for fewer gpus.",
            place=("gpus",),
        )
    batch = request.global_batch_size or 0
    passes = max((one.pp * one.vpp * one.micros(batch) for one in found), default=0)
    if passes > MOST_PASSES:
        raise bad_body(
            f"pp × vpp × micro-batches may be at most {MOST_PASSES:,} here, and a layout has "
            f"{passes:,}; give a smaller global_batch_size, a smaller pp, or a larger dp or "
            "micro_batch_size.",
            place=("global_batch_size",),
        )
    _check_ops_of_layouts(case, request, found)


def _check_ops_of_layouts(case: Case, request: TuneRequest, layouts: Iterable[Layout]) -> None:
    """Refuse layouts that take long to play in full; those that do not fit are not played."""
    counted: dict[tuple[Any, ...], int] = {}
    for one in layouts:
        micros = min(one.micros(request.global_batch_size or 0), micros_shown(one.pp, one.vpp))
        key = one.tp > 1, one.cp, one.pp, one.vpp, one.recompute, micros
        if key not in counted:
            counted[key] = layout_ops(case, request, one, micros)
        if counted[key] > MOST_OPS and _may_run(case, request, one):
            raise bad_body(
                f"The number of ops to play may be at most {MOST_OPS:,} here, and a layout has "
                f"{counted[key]:,}; give a larger pp, a smaller cp, or a model with fewer layers.",
                place=("model",),
            )


def layout_ops(case: Case, request: TuneRequest, layout: Layout, micros: int) -> int:
    """Return the ops of ``micros`` micro-batches on the rank with the most layers; no plan that a
    search of layouts tries has more."""
    layers = math.ceil(case.model.num_hidden_layers / (layout.pp * layout.vpp)) * layout.vpp
    model = replace(case.model, num_hidden_layers=layers)
    shared = case.workload.data_parallel
    if request.data_parallel is None:
        shared = usual_sharing(case.cluster)["data_parallel"]
    workload = replace(case.workload, recompute=layout.recompute, data_parallel=shared)
    cluster = ClusterSpec(tp=min(layout.tp, 2), dp=2, cp=layout.cp, ranks_per_node=4 * layout.cp)
    plan = _MOST_SLICED_LAYOUT if layout.tp > 1 else MEGATRON
    return schedule_ops(model, cluster, plan, micros, workload)


def _may_run(case: Case, request: TuneRequest, layout: Layout) -> bool:
    """Return whether the layout divides the model, and its weights fit."""
    try:
        return weights_fit(case_of(case, request, layout))
    except InputError:
        return False


_MOST_SLICED_LAYOUT: Final = SlicePlan(
    row_slices=max(ROW_SLICES), attn_col_slices=max(COL_SLICES), mlp_col_slices=max(COL_SLICES),
    slice_dim="sequence", merge_wgrad=True, sequence_parallel=True,
)  # fmt: skip
"""A plan with no fewer ops than any that a search of layouts tries."""


def _check_changes(case: Case, changes: Sequence[str], sweep: str | None) -> dict[str, int]:
    """Return the largest value of each count in a what-if, the unchanged case included."""
    key, values = parse_sweep(sweep)
    _at_most(len(values), MOST_POINTS, ("sweep",), "the number of values")
    asked = [("change", name, text) for name, text in parse_changes(changes).items()]
    asked += [("sweep", key, text) for text in values]
    old = {
        "tp": case.cluster.tp, "nodes": case.cluster.nodes,
        "seq_length": case.workload.seq_length,
        "micro_batch_size": case.workload.micro_batch_size,
    }  # fmt: skip
    largest = dict(old)
    for place, name, text in asked:
        if name not in old:
            continue
        quantity = parse_quantity(name, text, ("number", "factor"))
        value = quantity.value * (old[name] if quantity.dimension == "factor" else 1)
        _at_most(value, COUNTS[name], (place,), name)
        if name == "tp":
            _at_most(value * case.cluster.dp, MOST_RANKS, (place,), "tp × dp")
        largest[name] = max(largest[name], int(value))
    return largest


def _most_sliced(micro_batch_size: int) -> SlicePlan:
    """Return a plan with no fewer ops than any of a search."""
    columns, most = max(SpaceSpec().col_slices), max(SpaceSpec().sequence_row_slices)
    return SlicePlan(
        row_slices=max(min(MAX_ROW_SLICES, micro_batch_size), most), attn_col_slices=columns,
        mlp_col_slices=columns, slice_dim="sequence",
    )  # fmt: skip


def schedule_ops(
    model: ModelSpec, cluster: ClusterSpec, plan: SlicePlan, micros: int,
    workload: Workload,
) -> int:  # fmt: skip
    """Return the ops of ``micros`` micro-batches; at most one data-parallel bucket and one gather
    per layer too many."""
    reduces = plan.strategy != "no_comm"
    talks = reduces and cluster.tp > 1
    each = 2 if talks else 1  # a GEMM, and its all-reduce or reduce-scatter
    gathers = talks and plan.sequence_parallel  # a block's two norms' and its gradient's
    rope = model.position_embedding == "rope"
    pieces = sum(plan.slices[1:])
    # Forward: 4 ops a block. Backward, a block: row-parallel dgrad, core_attn_bwd or act_bwd,
    # norm_bwd, and with dropout residual_bwd. Norms of q and k, or behind blocks, are extra.
    row = 8 + 2 * (3 + (model.hidden_dropout > 0)) + 2 * rope + each * pieces + 6 * gathers
    row += 2 * model.qk_norm + 4 * model.post_norm
    how = workload.implementation
    scores = 0 if how.flash_attention else 2 + (model.attention_dropout > 0)
    row += 2 * scores + 3 * (scores > 0) + plan.slices_sequences
    # Recomputed: the ops of forward, the attention core alone, single ops, or none.
    whole = 8 + rope + model.qk_norm + 2 * model.post_norm + each * sum(plan.slices[1:3])
    whole += scores + 2 * gathers
    single = 6 + rope + model.qk_norm + model.post_norm + 2 * gathers
    recomputed = {"none": 0, "selective": scores or 1, "per-op": single, "full": whole}
    row += recomputed[workload.recompute]
    if cluster.cp > 1:
        forward, backward = _context_ops(cluster.cp, workload.cp_comm, exchanges=reduces)
        row += forward * (1 + (workload.recompute == "full")) + backward
    adds = 1 if how.gradient_accumulation_fusion else 2
    wgrads = 4 * adds * (1 if plan.merge_wgrad else plan.row_slices)
    if plan.merge_wgrad and plan.row_slices > 1:
        wgrads += copies(model, gathered=cluster.tp > 1 and plan.sequence_parallel)
    layer = plan.row_slices * row + wgrads
    capped = model.final_logit_softcapping > 0
    edges = plan.row_slices * (4 * each + 6 + adds + 3 * gathers + 2 * capped)
    edges += how.dense_embedding_grad
    # A sum of partial gradients is copied together before, and back.
    sums = talks * (3 * (gathers or model.qk_norm) + (cluster.tp > model.num_key_value_heads))
    collectives = {"replicas": 1, "distributed-optimizer": 2, "fsdp": 3 * micros}
    kinds = collectives[workload.data_parallel]
    passes = how.check_for_nan_in_grad + how.scale_grads
    rounds = micros if workload.data_parallel == "fsdp" else 1
    buckets = (kinds + passes * rounds) * (model.num_hidden_layers + 1)
    if cluster.replicas == 1 or not reduces:
        buckets = passes
    sharded = reduces and cluster.replicas > 1 and workload.data_parallel != "replicas"
    norm = 1 + (talks or sharded)  # and its all-reduce, among ranks that hold different gradients
    step = (
        how.zero_grads + how.clip_grad + how.copy_parameters + how.log_params_norm
        + how.log_num_zeros_in_grad
    )  # fmt: skip
    return micros * (model.num_hidden_layers * layer + edges) + buckets + norm + sums + step + 1


def _context_ops(cp: int, how: str, *, exchanges: bool) -> tuple[int, int]:
    """Return how many ops more the attention core has, forward and backward, where ranks share
    sequences."""
    moves = int(exchanges)
    return {
        "p2p": ((cp - 1) * (2 + moves), (cp - 1) * (2 + 2 * moves)),
        "all_gather": (2 + moves, 3 + 2 * moves),
        "a2a": (8 + 4 * moves, 8 + 4 * moves),
    }[how]


def search_size(case: Case, tune_also: Sequence[str]) -> int:
    """Return the combinations of a search of ``case``, over all micro-batch sizes that it tunes."""
    axes = {item.name: getattr(SpaceSpec(), item.name) for item in fields(SpaceSpec)}
    axes["comm_ctas"] = case.comm_ctas_choices
    axes["sequence_parallels"] = case.modes
    along = len(axes["sequence_row_slices"])
    for name in ("row_slices", "slicings", "sequence_row_slices"):
        del axes[name]
    # The columns and the dgrad pieces of two blocks each.
    each = math.prod(map(len, axes.values())) * len(axes["col_slices"]) * len(axes["dgrad_slices"])
    slicings = [len(slicings_of(one)) for one in cases_to_tune(case, tune_also)]
    return each * sum(MAX_ROW_SLICES + along * (count - 1) for count in slicings)


def _at_most(value: Any, most: int, place: tuple[str | int, ...], what: str = "") -> None:
    """Raise ProblemError 422 at ``place`` where ``value`` is a number above ``most``."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value > most:
        label = what or str(place[-1])
        raise bad_body(f"{label} may be at most {most:,} here; ask for less.", place=place)
