"""What moves experts' tokens between ranks and sorts them by expert: a dispatch and a combine.

How tokens move (``Workload.moe_dispatcher``, Megatron-LM's core/transformer/moe/
token_dispatcher.py):

- ``alltoall``, and any other where one rank has all experts: a rank copies each token once for each
  of its experts, and an all-to-all moves all copies; the rows that arrive are sorted by expert.
  Their probabilities move in an all-to-all of their own, and so do their gradients. Before that,
  ranks gather how many tokens each expert gets.
- ``deepep``, ``hybridep``: their kernels move one copy of a token to each rank that has an expert
  of it, with its probabilities; the rows are copied there. On the way back a rank adds up what its
  experts give.
- ``allgather``: each rank gets all tokens of the group, and takes those of its experts; on the way
  back sums are scattered.

No token is dropped, so hosts copy the counts of tokens and wait for them, with ``hybridep``, too
(core/transformer/moe/fused_a2a.py: it blocks unless it is told how many rows will come).

Where products are quantized, an expert's rows are padded to a multiple of 16 or 32. The kernels of
``deepep`` and ``hybridep`` do so as they copy; with ``alltoall`` rows are copied once more each way
(core/transformer/moe/experts.py: ``quantization_padding``).

Ranks that share an expert (``etp``) then gather the rows of all of them, and scatter sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

from simulator.lookup.experts import DEFAULT_SMS
from simulator.ops import Collective, CollectiveKind, Pointwise
from simulator.quantized import Quantized
from simulator.schedule import EP, TP, OpTemplate
from simulator.shapes import Shapes
from simulator.specs import MoeDispatcher
from simulator.values import Ref

Ops = list[OpTemplate]
KERNELS: Final[Mapping[MoeDispatcher, tuple[CollectiveKind, CollectiveKind]]] = {
    "alltoall": ("all_to_all", "all_to_all"), "allgather": ("all_gather", "reduce_scatter"),
    "deepep": ("deepep_dispatch", "deepep_combine"),
    "hybridep": ("hybridep_dispatch", "hybridep_combine"),
}  # fmt: skip
"""Dispatcher -> the collectives of a dispatch and of a combine."""
NUMBER_BYTES: Final = 4
"""Of a probability in fp32."""
COUNT_BYTES: Final = 8
"""Of how many tokens an expert gets."""


def copies(shapes: Shapes) -> float:
    """Return how many ranks get a token on average, its own among them, where each of its
    experts is equally likely."""
    model, ep = shapes.model, shapes.cluster.ep
    elsewhere = 1.0
    for chosen in range(model.num_experts_per_tok):
        others = model.num_experts - shapes.local_experts - chosen
        elsewhere *= max(0, others) / (model.num_experts - chosen)
    return ep * (1 - elsewhere)


class TokenWay:
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

    def sent_bytes(self, scopes: Collection[str]) -> int:
        """Return the bytes that a part replayed by CUDA graphs hands to the exchange."""
        copied = self._copied_first and "moe_preprocess" in scopes
        return (self.own_rows if copied else self.tokens) * self.row_bytes

    @property
    def _gathered(self) -> int:
        """The same after they have gathered."""
        alone = self.dispatcher == "allgather"
        return self._arrived * (1 if alone else self.s.cluster.expert_tp)

    @property
    def _pads(self) -> bool:
        """Whether rows are copied once more, so that each expert has a multiple of 16 or 32."""
        return self.t.quantizes and self._copied_first

    @property
    def _sorts(self) -> bool:
        """Whether rows that arrive are copied before the experts read them."""
        return not self._copied_first or self.s.local_experts > 1 or self.s.cluster.expert_tp > 1

    def counted(self, choice: OpTemplate, signature: Pointwise) -> Ops:
        """Return a choice of experts of that signature, and what tells hosts how many tokens each
        gets."""
        s = self.s
        if not self._copied_first:
            return [choice._replace(signature=signature._replace(awaited=True))]
        ops, size = [choice], COUNT_BYTES * s.model.num_experts
        if s.exchanges_experts:
            ranks = s.cluster.expert_world_group
            counts = Collective("all_gather", size * math.prod(ranks), *ranks)
            ops.append(
                self.t.op("mlp.counts", self.row, counts, choice.writes,
                          Ref("mlp.counts", self.row), counts.size_bytes, lane=TP)
            )  # fmt: skip
        copy = s.pointwise("moe_counts", size, size)._replace(awaited=True)
        return [*ops, self.t.op("mlp.counts_copy", self.row, copy, ops[-1].writes,
                                Ref("mlp.told", self.row), size)]  # fmt: skip

    def there(self, role: str, source: Ref, write: Ref) -> Ops:
        """Return what sends the value ``source`` of all tokens to the ranks of their experts."""
        t, ops = self.t, list[OpTemplate]()
        size = self.own_rows * self.row_bytes
        if self._copied_first:
            read = self.tokens * self.row_bytes
            ops.append(
                t.op(f"mlp.{role}_permute", self.row, self.s.pointwise("moe_permute", read, size),
                     (source,), write.form("permute"), size)
            )  # fmt: skip
        value = ops[-1].writes[0] if ops else source
        if role == "dispatch":
            ops += self._probabilities(role, value, write)
        return ops + self._moved(f"mlp.{role}", "dispatch", value, write.form("there"), 1)

    def _probabilities(self, role: str, value: Ref, write: Ref) -> Ops:
        """Return the all-to-all of the rows' probabilities, or of their gradients; it is done
        before that of the rows, so that none waits for it alone."""
        s = self.s
        if not (self._copied_first and s.exchanges_experts):
            return []
        size = round(self.own_rows * s.workload.moe_imbalance) * NUMBER_BYTES
        moving = Collective("all_to_all", size, *self._group)
        return [self.t.op(f"mlp.{role}_probs", self.row, moving, (value,), write.form("probs"),
                          self.own_rows * NUMBER_BYTES, lane=EP)]  # fmt: skip

    def arrived(self, role: str, source: Ref, write: Ref) -> tuple[Ops, Ref]:
        """Return what sorts by expert the rows that ``there`` sent, and the value of them."""
        t, s, ops, value = self.t, self.s, list[OpTemplate](), self._there(source, write)
        size = self.rows * self.row_bytes
        if self._sorts:
            read = min(size, self._gathered)
            name = "moe_sort" if self._copied_first else "moe_permute"
            ops.append(t.op(f"mlp.{role}_sort", self.row, s.pointwise(name, read, size), (value,),
                            write.form("sorted"), size))  # fmt: skip
            value = ops[-1].writes[0]
        if self._pads:
            ops.append(t.op(f"mlp.{role}_pad", self.row, s.pointwise("moe_pad", size, size),
                            (value,), write.form("padded"), size))  # fmt: skip
        return ops, self.sorted(source, write)

    def sorted(self, source: Ref, write: Ref) -> Ref:
        """Return the value of the rows that experts read, after ``arrived``."""
        if self._pads:
            return write.form("padded")
        return write.form("sorted") if self._sorts else self._there(source, write)

    def back(self, role: str, produced: OpTemplate, piece: int, pieces: int) -> Ops:
        """Return what brings the rows that ``produced`` wrote back to the ranks of their tokens."""
        value, size = produced.writes[0], self.rows * self.row_bytes // pieces
        moved = self._gathered // pieces
        ops: Ops = []
        if self._pads:
            signature = self.s.pointwise("moe_pad", size, size)
            ops.append(self.t.op(f"mlp.{role}_unpad", self.row, signature, (value,),
                                 value.form("unpadded"), size, piece=piece))  # fmt: skip
            value = ops[-1].writes[0]
        if self._sorts:
            written = min(size, moved)
            ops.append(
                self.t.op(f"mlp.{role}_unsort", self.row, self._unsorted(size, written),
                          (value,), produced.writes[0].form("unsorted"), written, piece=piece)
            )  # fmt: skip
            value = ops[-1].writes[0]
        if role == "dispatch_bwd" and piece == pieces - 1:
            ops += self._probabilities(role, value, produced.writes[0])
        return ops + self._moved(f"mlp.{role}", "combine", value, produced.writes[0], pieces,
                                 piece)  # fmt: skip

    def _unsorted(self, read: int, written: int) -> Pointwise:
        if self._copied_first:
            return self.s.pointwise("moe_sort", read, written)
        if self.dispatcher == "hybridep":  # a kernel of its own, whatever Megatron-LM's is
            return Pointwise("moe_unpermute", read, written, self.s.workload.dtype)
        return self.s.pointwise("moe_unpermute", read, written)

    def returned(self, rows: Ref) -> Ref:
        """Return the value that ``back`` made of ``rows``."""
        if self.s.exchanges_experts:
            return rows.form("combine")
        if self._sorts:
            return rows.form("unsorted")
        return rows.form("unpadded") if self._pads else rows

    def summed(self, role: str, parts: tuple[Ref, ...], write: Ref) -> tuple[Ops, tuple[Ref, ...]]:
        """Return the sum of each token's copies, and the values of it: where ranks have summed,
        the parts themselves."""
        if not self._copied_first:
            return [], parts
        read, size = self.own_rows * self.row_bytes, self.tokens * self.row_bytes
        signature = self.s.pointwise("moe_unpermute", read, size, len(parts))
        made = self.t.op(f"mlp.{role}_unpermute", self.row, signature, parts, write, size)
        return [made], made.writes

    def _there(self, source: Ref, write: Ref) -> Ref:
        if not self.s.exchanges_experts:
            return write.form("permute") if self._copied_first else source
        shared = self.s.cluster.expert_tp > 1 and self.dispatcher != "allgather"
        return write.form("there", "ag") if shared else write.form("there")

    def _moved(
        self, role: str, way: str, value: Ref, write: Ref, pieces: int, piece: int = -1
    ) -> Ops:
        """Return the collectives of a dispatch or a combine, of a part of the columns."""
        s, size = self.s, self._arrived // pieces
        if not s.exchanges_experts:
            return []
        kept = size if way == "dispatch" else self.own_rows * self.row_bytes // pieces
        if way == "combine" and not self._copied_first:
            kept = self.tokens * self.row_bytes // pieces
        made = write if way == "dispatch" else write.form("combine")
        kernel = KERNELS[self.dispatcher][way == "combine"]
        gathers = self.dispatcher == "allgather"
        algo = s.workload.implementation.nccl_algo if gathers else "auto"
        moving = Collective(kernel, size, *self._group, 0, s.workload.dtype, algo)
        if kernel in DEFAULT_SMS:
            sms = s.workload.moe_dispatcher_sms or DEFAULT_SMS[kernel]
            moving = moving._replace(ctas=sms, row_bytes=self.row_bytes // pieces)
        move = self.t.op(role, self.row, moving, (value,), made, kept, lane=EP, piece=piece)
        sharing = s.cluster.expert_tp
        if sharing == 1 or gathers:
            return [move]
        op: CollectiveKind = "all_gather" if way == "dispatch" else "reduce_scatter"
        share = Collective(op, size * sharing, *s.cluster.expert_tp_group, 0, s.workload.dtype)
        if way == "dispatch":
            gather = self.t.op(f"{role}.ag", self.row, share, move.writes, made.form("ag"),
                               size * sharing, lane=EP)  # fmt: skip
            return [move, gather]
        scatter = self.t.op(f"{role}.rs", self.row, share, (value,), write.form("rs"), size,
                            lane=EP, piece=piece)  # fmt: skip
        return [scatter, move._replace(reads=scatter.writes)]

    @property
    def _group(self) -> tuple[int, int]:
        if self.dispatcher != "allgather":
            return self.s.cluster.ep_group
        return self.s.cluster.expert_world_group
