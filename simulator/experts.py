"""Experts in the place of a layer's MLP: the ops of its fragments.

Fragments keep their names, so that orders are the same for all layers. Forward of slice 0: ``norm``
has the norm, the shared expert, the router (its GEMM, then the choice of experts) and what sends
the tokens on their way, ``fc1`` the products of this rank's experts and what brings their rows
together, ``act`` the activation times the routers' probabilities, ``fc2`` the second products and
the way back, and ``residual`` the sum over a token's experts. Backward mirrors it: a combine's
backward is a dispatch.

How tokens move (``Workload.moe_dispatcher``, Megatron-LM's core/transformer/moe/
token_dispatcher.py):

- ``alltoall``, and any other where one rank has all experts: a rank copies each token once for each
  of its experts, and an all-to-all moves all copies; the rows that arrive are sorted by expert.
- ``deepep``, ``hybridep``: their kernels move one copy of a token to each rank that has an expert
  of it; the rows are copied there. On the way back a rank adds up what its experts give.
- ``allgather``: each rank gets all tokens of the group, and takes those of its experts; on the way
  back sums are scattered.

The shared expert runs before the tokens are sent, and in backward after their gradients came back;
with ``moe_shared_expert_overlap`` while they are on their way.

No token is dropped, so hosts copy the counts of tokens and wait for them, but with ``hybridep``.

Ranks that share an expert (``etp``) then gather the rows of all of them, and scatter sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from simulator.issue_order import Token
from simulator.ops import Collective, CollectiveKind, Pointwise
from simulator.quantized import Quantized
from simulator.schedule import EP, OpTemplate, Ref
from simulator.shapes import Shapes
from simulator.specs import MoeDispatcher

Ops = list[OpTemplate]
KERNELS: Final[Mapping[MoeDispatcher, tuple[CollectiveKind, CollectiveKind]]] = {
    "alltoall": ("all_to_all", "all_to_all"), "allgather": ("all_gather", "reduce_scatter"),
    "deepep": ("deepep_dispatch", "deepep_combine"),
    "hybridep": ("hybridep_dispatch", "hybridep_combine"),
}  # fmt: skip
"""Dispatcher -> the collectives of a dispatch and of a combine."""
ROUTER_BYTES: Final = 4
"""Of a score of the router, in fp32; a choice is an index and a probability."""


def copies(shapes: Shapes) -> float:
    """Return how many ranks get a token on average, its own among them, where each of its
    experts is equally likely."""
    model, ep = shapes.model, shapes.cluster.ep
    elsewhere = 1.0
    for chosen in range(model.num_experts_per_tok):
        others = model.num_experts - shapes.local_experts - chosen
        elsewhere *= max(0, others) / (model.num_experts - chosen)
    return ep * (1 - elsewhere)


class _Way:
    """The tokens of a slice on their way to experts and back: rows and bytes."""

    def __init__(self, t: Quantized, row: int) -> None:
        s = self.s = t.shapes
        self.t, self.row = t, row
        self.dispatcher = s.workload.moe_dispatcher
        self.tokens, self.rows = s.residual_tokens(row), s.routed_rows(row)
        self.own_rows = self.tokens * s.model.num_experts_per_tok
        self.row_bytes = s.model.hidden_size * s.element

    @property
    def _copied_first(self) -> bool:
        """Whether a token is copied for each of its experts before it is sent."""
        cluster = self.s.cluster
        return self.dispatcher == "alltoall" or cluster.ep * cluster.expert_tp == 1

    @property
    def _arrived(self) -> int:
        """Bytes of the rows that this rank gets, before those that share an expert gather."""
        s = self.s
        if self._copied_first:
            moved = self.own_rows * s.workload.moe_imbalance
        elif self.dispatcher == "allgather":
            moved = self.tokens * s.cluster.ep * s.cluster.expert_tp
        else:
            moved = self.tokens * copies(s) * s.workload.moe_imbalance
        return round(moved) * self.row_bytes

    @property
    def _gathered(self) -> int:
        """The same after they have gathered."""
        alone = self.dispatcher == "allgather"
        return self._arrived * (1 if alone else self.s.cluster.expert_tp)

    @property
    def _sorts(self) -> bool:
        """Whether rows that arrive are copied before the experts read them."""
        return not self._copied_first or self.s.local_experts > 1 or self.s.cluster.expert_tp > 1

    def there(self, role: str, source: Ref, write: str) -> Ops:
        """Return what sends the value ``source`` of all tokens to the ranks of their experts."""
        t, ops = self.t, list[OpTemplate]()
        size = self.own_rows * self.row_bytes
        if self._copied_first:
            read = self.tokens * self.row_bytes
            ops.append(
                t.op(f"mlp.{role}_permute", self.row, self.s.pointwise("moe_permute", read, size),
                     (source,), f"{write}.permute", size)
            )  # fmt: skip
        value = ops[-1].writes[0] if ops else source
        ops += self._moved(f"mlp.{role}", "dispatch", value, f"{write}.there", 1)
        return ops

    def arrived(self, role: str, source: Ref, write: str) -> tuple[Ops, Ref]:
        """Return what sorts by expert the rows that ``there`` sent, and the value of them."""
        value, rows = self._there(source, write), self.sorted(source, write)
        if not self._sorts:
            return [], rows
        size = self.rows * self.row_bytes
        read = min(size, self._gathered)
        name = "moe_sort" if self._copied_first else "moe_permute"
        signature = self.s.pointwise(name, read, size)
        return [self.t.op(f"mlp.{role}_sort", self.row, signature, (value,), rows.name, size)], rows

    def sorted(self, source: Ref, write: str) -> Ref:
        """Return the value of the rows that experts read, after ``arrived``."""
        return Ref(0, f"{write}.sorted") if self._sorts else self._there(source, write)

    def back(self, role: str, produced: OpTemplate, piece: int, pieces: int) -> Ops:
        """Return what brings the rows that ``produced`` wrote back to the ranks of their tokens."""
        value, size = produced.writes[0], self.rows * self.row_bytes // pieces
        moved = self._gathered // pieces
        ops: Ops = []
        if self._sorts:
            written = min(size, moved)
            name = "moe_sort" if self._copied_first else "moe_unpermute"
            ops.append(
                self.t.op(f"mlp.{role}_unsort", self.row, self.s.pointwise(name, size, written),
                          (value,), f"{value.name}.unsorted", written, piece=piece)
            )  # fmt: skip
            value = ops[-1].writes[0]
        return ops + self._moved(f"mlp.{role}", "combine", value, produced.writes[0].name, pieces,
                                 piece)  # fmt: skip

    def returned(self, name: str) -> Ref:
        """Return the value that ``back`` made of the rows of ``name``."""
        if self.s.exchanges_experts:
            return Ref(0, f"{name}.combine")
        return Ref(0, f"{name}.unsorted" if self._sorts else name)

    def summed(self, role: str, parts: tuple[Ref, ...], write: str) -> tuple[Ops, tuple[Ref, ...]]:
        """Return the sum of each token's copies, and the values of it: where ranks have summed,
        the parts themselves."""
        if not self._copied_first:
            return [], parts
        read, size = self.own_rows * self.row_bytes, self.tokens * self.row_bytes
        signature = self.s.pointwise("moe_unpermute", read, size, len(parts))
        made = self.t.op(f"mlp.{role}_unpermute", self.row, signature, parts, write, size)
        return [made], made.writes

    def _there(self, source: Ref, write: str) -> Ref:
        if not self.s.exchanges_experts:
            return Ref(0, f"{write}.permute") if self._copied_first else source
        shared = self.s.cluster.expert_tp > 1 and self.dispatcher != "allgather"
        return Ref(0, f"{write}.there.ag" if shared else f"{write}.there")

    def _moved(
        self, role: str, way: str, value: Ref, write: str, pieces: int, piece: int = -1
    ) -> Ops:
        """Return the collectives of a dispatch or a combine, of a part of the columns."""
        s, size = self.s, self._arrived // pieces
        if not s.exchanges_experts:
            return []
        kept = size if way == "dispatch" else self.own_rows * self.row_bytes // pieces
        if way == "combine" and not self._copied_first:
            kept = self.tokens * self.row_bytes // pieces
        name = write if way == "dispatch" else f"{write}.combine"
        kernel = KERNELS[self.dispatcher][way == "combine"]
        gathers = self.dispatcher == "allgather"
        algo = s.workload.implementation.nccl_algo if gathers else "auto"
        moving = Collective(kernel, size, *self._group, 0, s.workload.dtype, algo)
        move = self.t.op(role, self.row, moving, (value,), name, kept, lane=EP, piece=piece)
        sharing = s.cluster.expert_tp
        if sharing == 1 or gathers:
            return [move]
        op: CollectiveKind = "all_gather" if way == "dispatch" else "reduce_scatter"
        share = Collective(op, size * sharing, *s.cluster.expert_tp_group, 0, s.workload.dtype)
        if way == "dispatch":
            gather = self.t.op(f"{role}.ag", self.row, share, move.writes, f"{name}.ag",
                               size * sharing, lane=EP)  # fmt: skip
            return [move, gather]
        scatter = self.t.op(f"{role}.rs", self.row, share, (value,), f"{write}.rs", size, lane=EP,
                            piece=piece)  # fmt: skip
        return [scatter, move._replace(reads=scatter.writes)]

    @property
    def _group(self) -> tuple[int, int]:
        if self.dispatcher != "allgather":
            return self.s.cluster.ep_group
        return self.s.cluster.expert_world_group


# Forward ------------------------------------------------------------------------------------------


def _norm(t: Quantized, row: int, _: int) -> Ops:
    s, size, base = t.shapes, t.shapes.residual_bytes(row), f"s{row}.mlp"
    norm = t.op(
        "mlp.norm", row, s.pointwise(s.model.norm, size, size), (Ref(0, f"s{row}.y"),),
        f"{base}.norm", size, weights=("w.mlp.norm",),
    )  # fmt: skip
    tokens, experts = s.residual_tokens(row), s.model.num_experts
    scores = tokens * experts * ROUTER_BYTES
    chosen = 2 * tokens * s.model.num_experts_per_tok * ROUTER_BYTES
    router = t.op(
        "mlp.router", row, s.gemm(tokens, experts, s.model.hidden_size, "forward"), norm.writes,
        f"{base}.router", scores, weights=("w.mlp.router",),
    )  # fmt: skip
    choice = t.op(
        "mlp.topk", row, _counted(s, s.pointwise("moe_router", scores, scores + chosen)),
        router.writes, f"{base}.topk", scores + chosen,
    )  # fmt: skip
    sent = _Way(t, row).there("dispatch", norm.writes[0], f"{base}.in")
    if sent:
        sent[0] = sent[0]._replace(reads=(*sent[0].reads, *choice.writes))
    shared = _shared(t, row, norm.writes[0])
    if s.workload.moe_shared_expert_overlap:
        return [norm, router, choice, *sent, *shared]
    return [norm, *shared, router, choice, *sent]


def _counted(s: Shapes, choice: Pointwise) -> Pointwise:
    """Return the choice of experts, whose counts a host copies and waits for."""
    return choice._replace(awaited=s.workload.moe_dispatcher != "hybridep")


def _fc1(t: Quantized, row: int, _: int) -> Ops:
    s, base, way = t.shapes, f"s{row}.mlp", _Way(t, row)
    ops, value = way.arrived("dispatch", Ref(0, f"{base}.norm"), f"{base}.in")
    casts = t.cast(row, value, way.rows * way.row_bytes, base=f"{base}.rows")
    width = s.expert_width("fc1")
    signature = s.grouped(way.rows, width, s.model.hidden_size, "forward")
    read = t.rows_of(value, f"{base}.rows")
    size = way.rows * width * s.element
    made = t.op("mlp.fc1", row, signature, (read,), f"{base}.fc1", size, weights=("w.mlp.fc1",))
    return [*ops, *casts, made]


def _act(t: Quantized, row: int, _: int) -> Ops:
    s, rows = t.shapes, t.shapes.routed_rows(row)
    read, size = (rows * s.expert_width(name) * s.element for name in ("fc1", "act"))
    signature = s.pointwise(s.activation, read, size)
    made = t.op("mlp.act", row, signature, (Ref(0, f"s{row}.mlp.fc1"),), f"s{row}.mlp.act", size)
    return [made, *t.cast(row, made.writes[0], size)]


def _fc2(t: Quantized, row: int, piece: int) -> Ops:
    s, way, pieces = t.shapes, _Way(t, row), t.shapes.plan.mlp_col_slices
    width = s.model.hidden_size // pieces
    signature = s.grouped(way.rows, width, s.expert_width("act"), "forward")
    made = t.op(
        "mlp.fc2", row, signature, (t.rows_of(Ref(0, f"s{row}.mlp.act")),),
        f"s{row}.mlp.fc2.{piece}", way.rows * width * s.element, weights=("w.mlp.fc2",),
        piece=piece,
    )  # fmt: skip
    return [made, *way.back("combine", made, piece, pieces)]


def _residual(t: Quantized, row: int, _: int) -> Ops:
    s, size, way = t.shapes, t.shapes.residual_bytes(row), _Way(t, row)
    parts = tuple(way.returned(f"s{row}.mlp.fc2.{j}") for j in range(t.shapes.plan.mlp_col_slices))
    ops, branch = way.summed("combine", parts, f"s{row}.mlp.out")
    if s.model.shared_expert_intermediate_size:
        branch = (*branch, _shared_out(t, row))
    reads = (*branch, Ref(0, f"s{row}.y"))
    signature = s.pointwise("add", len(reads) * size, size, len(branch))
    return [*ops, t.op("mlp.residual", row, signature, reads, f"s{row}.x", size, layer=1)]


# Backward -----------------------------------------------------------------------------------------


def _residual_bwd(t: Quantized, row: int, _: int) -> Ops:
    return _Way(t, row).there("combine_bwd", Ref(1, f"d.s{row}.x"), f"d.s{row}.mlp.in")


def _fc2_dgrad(t: Quantized, row: int, _: int) -> Ops:
    s, base, way = t.shapes, f"d.s{row}.mlp", _Way(t, row)
    ops, value = way.arrived("combine_bwd", Ref(1, f"d.s{row}.x"), f"{base}.in")
    casts = t.cast(row, value, way.rows * way.row_bytes, base=f"{base}.rows")
    width = s.expert_width("act")
    signature = s.grouped(way.rows, width, s.model.hidden_size, "dgrad")
    made = t.op(
        "mlp.fc2_dgrad", row, signature, (t.rows_of(value, f"{base}.rows"),), f"{base}.act",
        way.rows * width * s.element, weights=("w.mlp.fc2",),
    )  # fmt: skip
    return [*ops, *casts, made]


def _act_bwd(t: Quantized, row: int, _: int) -> Ops:
    s, rows = t.shapes, t.shapes.routed_rows(row)
    size, more = (rows * s.expert_width(name) * s.element for name in ("fc1", "act"))
    signature = s.pointwise(f"{s.activation}_bwd", size + more, size)
    reads = (Ref(0, f"d.s{row}.mlp.act"), Ref(0, f"s{row}.mlp.fc1"))
    made = t.op("mlp.act_bwd", row, signature, reads, f"d.s{row}.mlp.fc1", size)
    return [made, *t.cast(row, made.writes[0], size)]


def _fc1_dgrad(t: Quantized, row: int, piece: int) -> Ops:
    s, way, pieces = t.shapes, _Way(t, row), t.shapes.plan.mlp_dgrad_slices
    width = s.model.hidden_size // pieces
    signature = s.grouped(way.rows, width, s.expert_width("fc1"), "dgrad")
    made = t.op(
        "mlp.fc1_dgrad", row, signature, (t.rows_of(Ref(0, f"d.s{row}.mlp.fc1")),),
        f"d.s{row}.mlp.rows.{piece}", way.rows * width * s.element, weights=("w.mlp.fc1",),
        piece=piece,
    )  # fmt: skip
    return [made, *way.back("dispatch_bwd", made, piece, pieces)]


def _norm_bwd(t: Quantized, row: int, _: int) -> Ops:
    s, size, way, base = t.shapes, t.shapes.residual_bytes(row), _Way(t, row), f"d.s{row}.mlp"
    shared, branches = _shared_bwd(t, row)
    parts = tuple(way.returned(f"{base}.rows.{j}") for j in range(s.plan.mlp_dgrad_slices))
    summed, routed = way.summed("dispatch_bwd", parts, f"{base}.permute")
    choice = _router_bwd(t, row, routed)
    branches = (*branches, *routed, *choice[1].writes)
    total = t.op(
        "mlp.norm_grad", row, s.pointwise("add", len(branches) * size, size, len(branches)),
        branches, f"{base}.norm", size,
    )  # fmt: skip
    reads = (*total.writes, Ref(0, f"s{row}.y"), Ref(1, f"d.s{row}.x"))
    signature = s.pointwise(f"{s.model.norm}_bwd", 3 * size, size)
    norm = t.op("mlp.norm_bwd", row, signature, reads, f"d.s{row}.y", size, weights=("w.mlp.norm",))
    if s.workload.moe_shared_expert_overlap:
        return [*shared, *summed, *choice, total, norm]
    return [*summed, *choice, *shared, total, norm]


def _router_bwd(t: Quantized, row: int, after: tuple[Ref, ...]) -> Ops:
    """Return the gradients of the choice, of the router's input and of its weight."""
    s, base = t.shapes, f"s{row}.mlp"
    tokens, experts, hidden = s.residual_tokens(row), s.model.num_experts, s.model.hidden_size
    scores = tokens * experts * ROUTER_BYTES
    reads = (*after, Ref(0, f"{base}.topk"))
    choice = t.op("mlp.topk_bwd", row, s.pointwise("moe_router", 2 * scores, scores), reads,
                  f"d.{base}.router", scores)  # fmt: skip
    dgrad = t.op(
        "mlp.router_dgrad", row, s.gemm(tokens, hidden, experts, "dgrad"), choice.writes,
        f"d.{base}.routed", s.residual_bytes(row), weights=("w.mlp.router",),
    )  # fmt: skip
    made = s.gemm(experts, hidden, tokens, "wgrad")
    reads = (*choice.writes, Ref(0, f"{base}.norm"))
    wgrad = t.accumulated("mlp.router_wgrad", row, made, reads, f"grad.mlp.router.s{row}", ())
    return [choice, dgrad, *wgrad]


# The shared expert --------------------------------------------------------------------------------


def _shared(t: Quantized, row: int, norm: Ref) -> Ops:
    """Return a dense MLP of all tokens; none where a model has no shared expert."""
    s, base = t.shapes, f"s{row}.mlp.shared"
    if not s.model.shared_expert_intermediate_size:
        return []
    tokens, hidden = s.tokens(row), s.model.hidden_size
    wide, narrow = s.shared_width("fc1"), s.shared_width("act")
    ops = t.cast(row, norm, s.residual_bytes(row), gathered=t.gathers, base=f"{base}.in")
    source = t.rows_of(norm, f"{base}.in")
    ops += t.gathered(row, "mlp.shared.ag", source, f"{base}.in.ag", t.gathered_bytes(row))
    fc1 = t.op(
        "mlp.shared_fc1", row, s.linear(tokens, wide, hidden, "forward"),
        (t.gathered_ref(source, f"{base}.in.ag"),), f"{base}.fc1", tokens * wide * s.element,
        weights=("w.mlp.shared_fc1",),
    )  # fmt: skip
    size = tokens * narrow * s.element
    signature = s.pointwise(s.activation, tokens * wide * s.element, size)
    act = t.op("mlp.shared_act", row, signature, fc1.writes, f"{base}.act", size)
    ops += [fc1, act, *t.cast(row, act.writes[0], size)]
    fc2 = t.op(
        "mlp.shared_fc2", row, s.linear(tokens, hidden, narrow, "forward"),
        (t.rows_of(act.writes[0]),), f"{base}.out", s.hidden_bytes(row),
        weights=("w.mlp.shared_fc2",),
    )  # fmt: skip
    return [*ops, *t.summed(fc2, s.hidden_bytes(row))]


def _shared_out(t: Quantized, row: int) -> Ref:
    return t.summed_ref(0, f"s{row}.mlp.shared.out")


def _shared_bwd(t: Quantized, row: int) -> tuple[Ops, tuple[Ref, ...]]:
    """Return the backward ops of the shared expert, and the gradient of its input."""
    s, base, grad = t.shapes, f"s{row}.mlp.shared", Ref(1, f"d.s{row}.x")
    if not s.model.shared_expert_intermediate_size:
        return [], ()
    tokens, hidden = s.tokens(row), s.model.hidden_size
    wide, narrow = s.shared_width("fc1"), s.shared_width("act")
    given = f"d.{base}.out"
    ops = t.cast(row, grad, s.residual_bytes(row), gathered=t.gathers, base=given)
    source = t.rows_of(grad, given)
    whole = t.gathered_bytes(row, copies=2)
    ops += t.gathered(row, "mlp.shared.ag_bwd", source, f"{given}.ag", whole)
    dy = t.gathered_ref(source, f"{given}.ag")
    ops.append(
        t.op("mlp.shared_fc2_dgrad", row, s.linear(tokens, narrow, hidden, "dgrad"), (dy,),
             f"d.{base}.act", tokens * narrow * s.element, weights=("w.mlp.shared_fc2",))
    )  # fmt: skip
    d_act = ops[-1].writes[0]
    across = dy if t.gathers else t.across_of(grad, given)
    ops += t.accumulated(
        "mlp.shared_fc2_wgrad", row, s.linear(hidden, narrow, tokens, "wgrad"),
        (across, t.across_of(Ref(0, f"{base}.act"))), f"grad.mlp.shared_fc2.s{row}", (),
    )  # fmt: skip
    size = tokens * wide * s.element
    signature = s.pointwise(f"{s.activation}_bwd", size + tokens * narrow * s.element, size)
    reads = (d_act, Ref(0, f"{base}.fc1"))
    ops.append(t.op("mlp.shared_act_bwd", row, signature, reads, f"d.{base}.fc1", size))
    ops += t.cast(row, ops[-1].writes[0], size)
    kept = Ref(0, f"{base}.in.ag_bwd")
    again = t.gathered(
        row, "mlp.shared.in_ag_bwd", t.rows_of(Ref(0, f"s{row}.mlp.norm"), f"{base}.in"),
        kept.name, t.gathered_bytes(row),
    )  # fmt: skip
    dgrad = t.op(
        "mlp.shared_fc1_dgrad", row, s.linear(tokens, hidden, wide, "dgrad"),
        (t.rows_of(Ref(0, f"d.{base}.fc1")),), f"d.{base}.norm", s.hidden_bytes(row),
        weights=("w.mlp.shared_fc1",),
    )  # fmt: skip
    ops += [*again, *t.summed(dgrad, s.hidden_bytes(row))]
    x = kept if t.gathers else t.across_of(Ref(0, f"s{row}.mlp.norm"), f"{base}.in")
    ops += t.accumulated(
        "mlp.shared_fc1_wgrad", row, s.linear(wide, hidden, tokens, "wgrad"),
        (t.across_of(Ref(0, f"d.{base}.fc1")), x), f"grad.mlp.shared_fc1.s{row}", (),
    )  # fmt: skip
    return ops, (t.summed_ref(0, f"d.{base}.norm"),)


MAKERS: Final[Mapping[str, Callable[[Quantized, int, int], Ops]]] = {
    "norm": _norm, "fc1": _fc1, "act": _act, "fc2": _fc2, "residual": _residual,
    "residual_bwd": _residual_bwd, "fc2_dgrad": _fc2_dgrad, "act_bwd": _act_bwd,
    "fc1_dgrad": _fc1_dgrad, "norm_bwd": _norm_bwd,
}  # fmt: skip
"""Fragment -> what makes its templates of a slice and a piece; wgrads apart."""


def expert_wgrad(t: Quantized, token: Token, name: str, chained: tuple[Ref, ...]) -> Ops:
    """Return the products that make the gradients of this rank's experts, ``name``, from those of
    a slice's rows."""
    s, row, linear = t.shapes, token.slice, token.fragment.removesuffix("_wgrad")
    way, base, hidden = _Way(t, row), f"s{row}.mlp", s.model.hidden_size
    if linear == "fc1":
        value = way.sorted(Ref(0, f"{base}.norm"), f"{base}.in")
        reads = t.across_of(Ref(0, f"d.{base}.fc1")), t.across_of(value, f"{base}.rows")
        out, width = s.expert_width("fc1"), hidden
    else:
        value = way.sorted(Ref(1, f"d.s{row}.x"), f"d.{base}.in")
        reads = t.across_of(value, f"d.{base}.rows"), t.across_of(Ref(0, f"{base}.act"))
        out, width = hidden, s.expert_width("act")
    signature = s.grouped(way.rows, out, width, "wgrad")
    return t.accumulated(f"mlp.{token.fragment}", row, signature, reads, name, chained)
