"""Launch: what the host needs to issue ops, and what it spends on them beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from simulator.dtypes import DTYPE_BYTES
from simulator.lookup import SOURCE_OF, Source
from simulator.ops import Attention, Collective, Fused, Gemm, Pointwise, Signature

if TYPE_CHECKING:
    from simulator.profile import LaunchMode, Profile


# What hosts spend on an op beside its launches ----------------------------------------------------
# Python, by implementation and kind of op.
#
# Layers were run on CPU tensors of a few elements, forward and backward, so that little but Python
# was left, on one machine (``here``):
#
# - megatron-core 0.16.1's with its own linears: 0.44 ms forward, 0.38 ms backward; with experts one
#   after the other 0.53 and 0.15 ms more, and 0.08 ms an expert each way (2 and 16 of them);
# - Megatron-LM's of 2022, checkpointed: 0.17 ms forward, 0.46 ms forward again and backward;
# - Hugging Face's Llama: 0.17 and 0.24 ms; with PyTorch's DTensor, over one rank, 1.35 and 1.96 ms;
# - TransformerEngine 2.11.0, the newest that megatron-core 0.16 asks for, with stubs in the place
#   of its compiled half: its linear, its norm with the linear behind it, attention's core, and 2, 8
#   and 16 experts, with gradients that are accumulated in FP32 and with weights that an earlier
#   micro-batch has cast.
#
# From each module's time 1.5 us were taken off for each op that PyTorch dispatched: on a GPU that
# is part of a launch. What a layer does between its modules is with attention's core.
#
# TransformerEngine, us here, forward and backward:
#
# ====================  ============  ============  ============
# module                2.11.0, BF16  2.11.0, FP8   2.20.2, FP8
# ====================  ============  ============  ============
# linear                29 and 23     64 and 51     49 and 41
# norm with its linear  35 and 33     69 and 63     51 and 51
# 2 experts             38 and 32     80 and 71     72 and 57
# 8 experts             54 and 62     147 and 135   126 and 130
# 16 experts            74 and 101    238 and 224   198 and 227
# ====================  ============  ============  ============
#
# FP8 is the mean of its four recipes, which lie within 10 % of it. 2.5.0, 2.8.0, 2.16.1 and 2.20.2
# take 0.6 to 1.4 times as long as 2.11.0. On a Grace CPU the linear in BF16 took 57 us more than
# PyTorch's (issue 2053), 2.3 times what 2.5.0's takes more here.
#
# A stub returns at once, so that pybind's look at its arguments is in the time, and so are the
# tensors that a cast makes, with their classes: all but the first, which its launch makes.
# Attention's core takes 95 and 18 us where megatron-core's own takes 37 and 37. A norm of
# TransformerEngine that no linear follows takes 33 and 25 us, and entering a recipe's scope, as
# megatron-core does before each layer, 6 to 23 us: neither is a cost of its own here.
#
# What the compiled half does else on the host is assumed to be in the launches, 6 us for each
# kernel (of a cast ``simulator.quantized.CAST_KERNELS``), and ``fp8_transpose`` is assumed.

MEAN_HOST: Final = 1.5
"""Python of a host in the middle, over that of the machine which was timed. Another one took 2.25
times as long. PyTorch's linear takes 13.5 us on the Xeon of a DGX H100, 1.5 times what it would
here, and 33 us on Grace (TransformerEngine's issue 2053)."""
HOST_ERROR: Final = 0.5
"""Of it and of a launch, relative: one standard error reaches both hosts, and older ones whose
launches take 18 us are within three."""
KERNEL_US: Final = MappingProxyType(
    {"gemm": 6.0, "attention": 10.0, "pointwise": 6.0, "collective": 15.0}
)
"""Host time of dispatching and launching a kernel, where a profile knows what our own runtime's ops
cost, with their Python (assumed, as in bundled profiles)."""


REPLAY_US: Final = 1.0
"""Host time of an op that a graph replays: a graph of a part of a layer has some seven, and a
replay takes about 10 us on a host in the middle (assumed)."""


class HostCost(NamedTuple):
    """``python_us``: on the machine that was timed. ``kernels``: how many are launched."""

    python_us: float
    kernels: int = 1

    def plus(self, other: HostCost) -> HostCost:
        """Return the cost of both."""
        return HostCost(self.python_us + other.python_us, self.kernels + other.kernels)

    def times(self, count: int) -> HostCost:
        """Return the cost of ``count`` of them."""
        return HostCost(self.python_us * count, self.kernels * count)


NOTHING: Final = HostCost(0.0, 0)
ONE_LAUNCH: Final = HostCost(0.0)
_MEGATRON: Final[dict[str, HostCost]] = {
    "linear_forward": HostCost(22), "linear_dgrad": HostCost(16), "linear_wgrad": HostCost(10),
    "attention_forward": HostCost(140), "attention_backward": HostCost(70, 3),
    "pointwise": HostCost(12), "pointwise_bwd": HostCost(8), "collective": HostCost(20),
    # Of queries and of keys.
    "rope": HostCost(20, 2), "rope_bwd": HostCost(15, 2),
    "swiglu": HostCost(20), "gelu": HostCost(20),
    # Scores, choice, map of tokens, loss of balance (core/transformer/moe/router.py).
    "moe_router": HostCost(90, 15),
    # Counts, and what moves tokens (core/transformer/moe/token_dispatcher.py).
    "moe_permute": HostCost(45, 8), "moe_unpermute": HostCost(25, 4), "moe_sort": HostCost(25, 3),
    "scatter_add": HostCost(25, 4),
    # Of rows and of their probabilities; counts, and copies of them (assumed like a permutation's).
    "moe_pad": HostCost(25, 2), "moe_counts": HostCost(25, 6),
}  # fmt: skip
_TABLES: Final[Mapping[str, Mapping[str, HostCost]]] = {
    # Norms are within the function of the linear behind them.
    "megatron-te": _MEGATRON | {
        "layernorm": HostCost(6), "rmsnorm": HostCost(6),
        "layernorm_bwd": HostCost(11, 2), "rmsnorm_bwd": HostCost(11, 2),
        "attention_forward": HostCost(198), "attention_backward": HostCost(51, 3),
        "linear_forward": HostCost(29), "linear_dgrad": HostCost(13.5),
        "linear_wgrad": HostCost(9.5),
        "grouped_forward": HostCost(32, 0), "grouped_dgrad": HostCost(16.5, 0),
        "grouped_wgrad": HostCost(5.5, 0),
        "expert_forward": HostCost(2.6), "expert_dgrad": HostCost(1.0),
        "expert_wgrad": HostCost(4.0),
        "quantized_linear_forward": HostCost(35, 0), "quantized_linear_dgrad": HostCost(21, 0),
        "quantized_linear_wgrad": HostCost(7.5, 0),
        "quantized_grouped_forward": HostCost(25, 0), "quantized_grouped_dgrad": HostCost(14, 0),
        "quantized_grouped_wgrad": HostCost(12.5, 0),
        "quantized_expert_forward": HostCost(8.7, 0), "quantized_expert_dgrad": HostCost(4.0, 0),
        "quantized_expert_wgrad": HostCost(2.0, 0),
        "fp8_cast": NOTHING, "fp8_transpose": HostCost(5),
    },
    # Views and copies of queries, keys and values are with the softmax; dropout forks random
    # states.
    "megatron-2022": _MEGATRON | {
        "layernorm": HostCost(16), "softmax": HostCost(60, 6), "softmax_bwd": HostCost(15, 6),
        "dropout": HostCost(30, 3), "copy": HostCost(15, 3),
        "expert_forward": HostCost(60, 8), "expert_dgrad": HostCost(45, 8),
        "expert_wgrad": HostCost(10, 2),
    },
    # Two linears in the place of one, three for queries, keys and values. DTensors are laid out
    # anew at each collective.
    "torch": {
        "linear_forward": HostCost(9, 2), "linear_dgrad": HostCost(8, 2),
        "linear_wgrad": HostCost(8, 2), "attention_forward": HostCost(40),
        "attention_backward": HostCost(30, 3), "pointwise": HostCost(8),
        "pointwise_bwd": HostCost(10), "collective": HostCost(290),
        "expert_forward": HostCost(3), "expert_dgrad": HostCost(2), "expert_wgrad": HostCost(2),
    },
}  # fmt: skip
"""Implementation -> kind of op, or name of a pointwise one -> its cost. ``grouped_…`` are of a
call, ``expert_…`` of each expert in it; ``quantized_…`` come on top in FP8 and below."""


@dataclass(frozen=True)
class Hosts:
    """What an implementation's host does."""

    implementation: str

    def of(self, signature: Signature) -> HostCost:
        """Return the Python and the launches of an op."""
        if isinstance(signature, Fused):
            return self._gemm(signature.gemm)
        if isinstance(signature, Gemm):
            return ONE_LAUNCH if signature.looped else self._gemm(signature)
        if isinstance(signature, Attention):
            return self._table[f"attention_{signature.direction}"]
        if isinstance(signature, Collective):
            # Those of userbuffers and of PyTorch's symmetric memory are issued in the GEMM's call.
            return ONE_LAUNCH if signature.needs_no_room else self._table["collective"]
        return self._pointwise(signature)

    @property
    def _table(self) -> Mapping[str, HostCost]:
        return _TABLES[self.implementation]

    def _pointwise(self, op: Pointwise) -> HostCost:
        usual = "pointwise_bwd" if op.name.endswith("_bwd") else "pointwise"
        found = self._table.get(op.name, self._table[usual])
        return found._replace(kernels=max(op.kernels, found.kernels))

    def _gemm(self, gemm: Gemm) -> HostCost:
        layout, quantized = gemm.layout, gemm.dtype not in (*DTYPE_BYTES, "tf32")
        if gemm.groups == 1:
            return self._part(f"linear_{layout}", quantized=quantized)
        each = self._part(f"expert_{layout}", quantized=quantized)
        return self._part(f"grouped_{layout}", quantized=quantized).plus(each.times(gemm.groups))

    def _part(self, name: str, *, quantized: bool) -> HostCost:
        """Return what a part of a GEMM's module costs."""
        more = self._table.get(f"quantized_{name}", NOTHING) if quantized else NOTHING
        return self._table.get(name, NOTHING).plus(more)


def hosts_of(implementation: str) -> Hosts | None:
    """Return what an implementation's host does; None for our runtime, whose ops are timed whole on
    each machine."""
    known = implementation in _TABLES
    return Hosts(implementation) if known else None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Host lane: ``cost_ns`` of a kernel by kind of op; mode ``none`` costs nothing (CUDA graphs).

    ``hosts``: what an implementation spends beside that; None where ``cost_ns`` holds all of it.
    ``pace``: its Python's time, over that of the host that was timed. ``source`` and ``error``
    (relative) say how well the costs are known.
    """

    mode: LaunchMode
    cost_ns: dict[str, int] = field(default_factory=dict)
    queue_depth: int = 1024
    hosts: Hosts | None = None
    pace: float = MEAN_HOST
    source: Source = "measured"
    error: float = 0.0

    def of(self, signature: Signature, *, replayed: bool = False) -> int:
        """Return the ns that the host needs for an op: its Python, and the launches of all its
        kernels, or its share of a graph's replay."""
        if replayed and self.mode == "async":
            return round(1000 * self.pace * REPLAY_US)
        kernel_ns = self.cost_ns.get(signature.kind, 0)
        if self.hosts is None or self.mode != "async":
            kernels = signature.kernels if isinstance(signature, Pointwise) else 1
            return kernels * kernel_ns
        python_us, kernels = self.hosts.of(signature)
        return round(1000 * self.pace * python_us) + kernels * kernel_ns

    def stops(self, signature: Signature) -> bool:
        """Return whether the host issues nothing more until the op is done."""
        return isinstance(signature, Pointwise) and signature.awaited

    @property
    def key(self) -> tuple[object, ...]:
        """All that the costs depend on, to be hashed."""
        return self.mode, tuple(self.cost_ns.items()), self.queue_depth, self.hosts, self.pace

    def off(self, factor: float, error: float) -> Launch:
        """Return the costs of another host, as well known as before or up to ``error``.

        A slower host spends the same more on every kernel, whatever its kind: its framework's share
        of a launch. ``factor`` is that of the cheapest kind, and of Python.
        """
        more_ns = round((factor - 1) * min(self.cost_ns.values(), default=0))
        costs = {kind: cost_ns + more_ns for kind, cost_ns in self.cost_ns.items()}
        return replace(self, cost_ns=costs, pace=self.pace * factor, error=min(error, self.error))


NO_LAUNCH: Final = Launch(mode="none")
"""CUDA graphs of all."""


def launch_of(
    profile: Profile, hosts: Hosts | None, *, compute_speed: float, host_speed: float
) -> Launch:
    """Return the launch costs of an implementation's host; where the host also computes
    (``inline``), they follow its speed.

    A section that was measured has the ops of our runtime, with their Python: another
    implementation's kernels cost what is assumed elsewhere.
    """
    section = profile.launch
    if section is None or section.mode == "none":
        return NO_LAUNCH
    inline, provenance, cost_us = section.mode == "inline", section.provenance, section.cost_us
    source, error = SOURCE_OF[provenance.kind], provenance.error or 0.0
    if hosts is not None and not inline and provenance.kind == "measured":
        cost_us, source, error = dict(KERNEL_US), "assumed", HOST_ERROR
    speed = host_speed * (compute_speed if inline else 1.0)
    return Launch(
        mode=section.mode,
        cost_ns={kind: round(us * 1000 / speed) for kind, us in cost_us.items()},
        queue_depth=section.queue_depth,
        hosts=None if inline else hosts,
        pace=MEAN_HOST / host_speed,
        source=source,
        error=error,
    )
