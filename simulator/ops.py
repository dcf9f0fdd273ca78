"""Op signatures: the shapes that determine an op's cost, no durations. An Op adds its values.

A signature is hashable and small: it is the key of profiles, look-ups and caches.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from simulator.implementation import NcclAlgo

Layout = Literal["forward", "dgrad", "wgrad"]
Direction = Literal["forward", "backward"]
CollectiveKind = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "send_recv", "all_to_all",
    "multimem_all_reduce", "multimem_reduce_scatter", "multimem_all_gather", "peer_copy",
    "deepep_dispatch", "deepep_combine", "hybridep_dispatch", "hybridep_combine",
]  # fmt: skip
TpCollectives = Literal["nccl", "multimem"]
MULTIMEM: Final[dict[CollectiveKind, CollectiveKind]] = {
    "all_reduce": "multimem_all_reduce", "reduce_scatter": "multimem_reduce_scatter",
    "all_gather": "multimem_all_gather",
}  # fmt: skip
"""NCCL's collective -> the kernel that stores to and loads from all GPUs of a node through NVSwitch
(PTX's multimem instructions, PyTorch's symmetric memory)."""


class Gemm(NamedTuple):
    """C[m, n] = A[m, k] · B[k, n], on one rank.

    Layouts, for a weight W[out, in] as torch stores it: ``forward`` is x·Wᵀ (NT), ``dgrad`` is
    dy·W (NN), ``wgrad`` is dyᵀ·x (TN) with m = out, n = in, k = tokens.
    ``accumulate``: add to C (fp32 main gradient, with wgrad) instead of overwriting it.
    ``strides``: leading dimensions of A, B and C in elements; 0 means packed.
    ``bias``: forward adds a bias; wgrad also computes its gradient (column sums of dy).
    ``groups``: this many products of these sizes in one call, each with matrices of its own (those
    of a rank's experts); m of forward and dgrad, and k of wgrad, are the mean rows of an expert.
    ``looped``: launched in a loop of its library after an earlier chunk of the same product, with
    no Python of its own; it takes the device as long as any.
    """

    m: int
    n: int
    k: int
    layout: Layout = "forward"
    dtype: str = "bf16"
    accumulate: bool = False
    strides: tuple[int, int, int] = (0, 0, 0)
    bias: bool = False
    groups: int = 1
    looped: bool = False

    @property
    def kind(self) -> Literal["gemm"]:
        """Key of profiles' sections and launch costs."""
        return "gemm"

    @property
    def flops(self) -> int:
        """FLOPs; a multiply-add counts as two."""
        return 2 * self.groups * self.m * self.n * self.k


class Attention(NamedTuple):
    """softmax(QKᵀ)V over ``batch`` sequences, ``heads`` query heads on this rank.

    ``seq`` queries of each sequence meet as many keys, or the ``kv_seq`` keys that end with the
    last query's: a causal query then sees all keys before the first query, too.
    ``softcap``: scores go through c·tanh(score / c) before the softmax. ``deterministic``: backward
    adds the queries' gradients in a fixed order. ``v_head_dim``: elements of a value, where they
    are not ``head_dim``.
    """

    batch: int
    heads: int
    kv_heads: int
    seq: int
    head_dim: int
    causal: bool = True
    direction: Direction = "forward"
    dtype: str = "bf16"
    softcap: bool = False
    deterministic: bool = False
    kv_seq: int = 0
    v_head_dim: int = 0

    @property
    def kind(self) -> Literal["attention"]:
        """Key of profiles' sections and launch costs."""
        return "attention"

    @property
    def keys(self) -> int:
        """Keys of each sequence."""
        return self.kv_seq or self.seq

    @property
    def full_share(self) -> float:
        """Share of the FLOPs in blocks of scores that no mask cuts: those before the first query.
        1 if not causal."""
        if not self.causal:
            return 1.0
        before = self.keys - self.seq
        return before / (before + self.seq / 2)

    @property
    def flops(self) -> int:
        """4·b·h·s·keys·d forward, 2.5 times that backward, of causal queries' own block half
        (FlashAttention's rule)."""
        twice = 2 * self.seq * self.keys - (self.seq * self.seq if self.causal else 0)
        each = self.head_dim + (self.v_head_dim or self.head_dim)
        forward = self.batch * self.heads * twice * each
        return forward if self.direction == "forward" else forward * 5 // 2


class Pointwise(NamedTuple):
    """A named memory-bound op, with the bytes that it reads and writes.

    ``pieces``: number of column pieces of one operand. ``kernels``: how many do it one by one; the
    bytes are those of all. ``awaited``: the host issues nothing more until it is done, since it
    reads a number of the result.
    """

    name: str
    bytes_read: int
    bytes_written: int
    dtype: str = "bf16"
    pieces: int = 1
    kernels: int = 1
    awaited: bool = False

    @property
    def kind(self) -> Literal["pointwise"]:
        """Key of profiles' sections and launch costs."""
        return "pointwise"

    @property
    def moved_bytes(self) -> int:
        """Bytes that it reads and writes."""
        return self.bytes_read + self.bytes_written

    @property
    def flops(self) -> int:
        """0: FLOPs of pointwise ops are not counted."""
        return 0


def busbw_factor(op: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth (nccl-tests' PERFORMANCE.md)."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    shared = op in ("all_gather", "reduce_scatter", "all_to_all")
    return (ranks - 1) / ranks if shared else 1.0


class Collective(NamedTuple):
    """A collective over ``nodes`` × ``per_node`` ranks.

    ``size_bytes`` is the full tensor (nccl-tests' "size"), of an all-to-all what one rank has, of
    DeepEP's and Hybrid-EP's dispatch and combine what one rank gets or gives, its own share
    counted, in rows of ``row_bytes``;
    ``ctas`` 0 leaves the choice to NCCL.
    ``algo``: ring lets the GPUs add, not the switch. ``peer_copy``: copy engines bring
    ``size_bytes`` to another rank while they do so for all others.
    ``reserved_sms``: SMs that ops beside it leave free for it, so that it starts when it is ready.
    """

    op: CollectiveKind
    size_bytes: int
    nodes: int
    per_node: int
    ctas: int = 0
    dtype: str = "bf16"
    algo: NcclAlgo = "auto"
    reserved_sms: int = 0
    row_bytes: int = 0

    @property
    def needs_no_room(self) -> bool:
        """Whether it starts although a GEMM holds all other SMs."""
        return self.op == "peer_copy" or self.reserved_sms > 0

    @property
    def kind(self) -> Literal["collective"]:
        """Key of profiles' sections and launch costs."""
        return "collective"

    @property
    def ranks(self) -> int:
        """Number of ranks in the group."""
        return self.nodes * self.per_node

    @property
    def bus_bytes(self) -> float:
        """Bytes that each rank sends: bus bandwidth (busbw) is these by the time."""
        return busbw_factor(self.op, self.ranks) * self.size_bytes

    @property
    def flops(self) -> int:
        """0: FLOPs of collectives are not counted."""
        return 0


class Fused(NamedTuple):
    """A GEMM in one kernel with the collective of its input (all_gather) or output
    (reduce_scatter), tile by tile."""

    gemm: Gemm
    collective: Collective

    @property
    def kind(self) -> Literal["gemm"]:
        """Key of profiles' sections and launch costs."""
        return "gemm"

    @property
    def flops(self) -> int:
        """FLOPs of the GEMM."""
        return self.gemm.flops


Signature = Gemm | Attention | Pointwise | Collective | Fused
