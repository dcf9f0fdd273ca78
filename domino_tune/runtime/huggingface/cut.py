"""A plan for one shape of batch: the ops of the stack's forward and backward, and what joins them.

The schedule of a whole step has an embedding before the layers and a head after them. Here these
are the user's, so only the ops of layers are played, and the sums of gradients that ranks hold in
parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from domino_tune.runtime.ops.joins import Side, sides_of
from domino_tune.runtime.player import Passage, passage, recomputed
from simulator.build import build_schedule
from simulator.errors import InfeasiblePlanError
from simulator.issue_order import LayerOrder
from simulator.plan import MEGATRON, SlicePlan, check_plan_fits
from simulator.schedule import Op, is_weight
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The ops of a stack, and the names of its inputs and outputs, slice by slice.

    ``evaluate`` is forward without keeping what backward needs; ``sums``: ops that add up partial
    gradients, after backward.
    """

    shapes: Shapes
    forward: Passage
    evaluate: Passage
    backward: Passage
    sums: Passage
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    output_grads: tuple[str, ...]
    input_grads: tuple[str, ...]
    recomputed: frozenset[str]
    sides: Mapping[str, Side]

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of all forward ops."""
        return frozenset(op.name for op in self.forward.ops)

    @cached_property
    def products(self) -> Counter[str]:
        """Return how many GEMMs of backward add to the gradient of each matrix."""
        roles = ((op.layer, op.role) for op in self.backward.ops if op.role.endswith("_wgrad"))
        return Counter(f"l{layer}.w.{role.removesuffix('_wgrad')}" for layer, role in roles)


def cut_of(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, plan: SlicePlan,
    order: LayerOrder | None,
) -> Cut:  # fmt: skip
    """Return the plan's ops for micro-batches of ``workload``; those of the unsliced plan where the
    batch cannot be sliced so, as the last of an epoch or one to evaluate."""
    one = replace(cluster, dp=1, ranks_per_node=max(cluster.ranks_per_node, cluster.tp))
    try:
        check_plan_fits(plan, model, workload, one)
    except InfeasiblePlanError:
        shards = plan.sequence_parallel and workload.seq_length % cluster.tp == 0
        plan, order = replace(MEGATRON, sequence_parallel=shards), None
    shapes = Shapes(model=model, workload=workload, cluster=one, plan=plan)
    ops = tuple(build_schedule(model, workload, one, plan, order).ops())
    turn = next(i for i, op in enumerate(ops) if op.role == "loss.sum")
    forward, backward = (
        tuple(op for op in part if op.role.startswith(("attn.", "mlp.")))
        for part in (ops[:turn], ops[turn:])
    )
    slices = range(plan.row_slices)
    last = model.num_hidden_layers - 1
    outputs = _names(slices, forward, "mlp.residual", last, "writes")
    input_grads = _names(slices, backward, "attn.norm_bwd", 0, "writes")
    read_back = frozenset(name for op in backward for name in op.reads if not is_weight(name))
    return Cut(
        shapes=shapes,
        forward=passage(forward, read_back | frozenset(outputs)),
        evaluate=passage(forward, frozenset(outputs)),
        backward=passage(backward, frozenset(input_grads)),
        sums=passage([op for op in ops if op.role.startswith("step.tp.")]),
        inputs=_names(slices, forward, "attn.norm", 0, "reads"),
        outputs=outputs,
        output_grads=_names(slices, ops, "head.norm_bwd", last + 1, "writes"),
        input_grads=input_grads,
        recomputed=recomputed(ops),
        sides=sides_of(ops, plan.row_slices),
    )


def _names(
    slices: Iterable[int], ops: tuple[Op, ...], role: str, layer: int, which: str
) -> tuple[str, ...]:
    """Return the first value that the op of ``role`` reads or writes, for each slice."""
    found = {op.slice: getattr(op, which)[0] for op in ops if op.role == role and op.layer == layer}
    return tuple(found[row] for row in slices)
