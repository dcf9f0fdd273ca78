"""How a framework hides the collective of each tensor-parallel GEMM, without slicing the batch.

A *gather* GEMM needs all tokens of an input that is sharded over the ranks; a *sum* GEMM's outputs
are added over the ranks, and each rank keeps its share. Names are TransformerEngine's
(``initialize_ub`` in transformer_engine/pytorch/module/base.py).

- ``ring_exchange``: the input arrives in tp chunks by copy engines; the GEMM runs chunk by chunk,
  or two by two (TransformerEngine's ``aggregate``, ``CommOverlapP2PBase::split_overlap_ag`` in
  transformer_engine/common/comm_gemm_overlap/comm_gemm_overlap.cpp).
- ``pipeline``: the GEMM runs in ``num_splits`` chunks of rows; the sum of each runs beside the next
  one on ``num_sm`` SMs, which are kept free for it, in FP8 where that is told (``fp8_buf``).
- ``bulk``: the whole collective runs beside a GEMM that does not need it, on ``num_sm`` SMs.
- ``push``: the GEMM runs in tp chunks; copy engines bring each to its rank, where a kernel adds up
  the chunks (PyTorch: torch/distributed/_symmetric_memory).
- ``fused``: one kernel waits for, or sends, tiles (Flux, arXiv 2406.06858).
- ``none``: NCCL, before or after the GEMM.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args

from simulator.errors import InputError, unknown_name

Method = Literal["ring_exchange", "pipeline", "bulk", "push", "fused", "none"]
GATHERS: Final = ("qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad")
SUMS: Final = ("proj_fprop", "fc2_fprop", "qkv_dgrad", "fc1_dgrad")
GEMMS: Final = (*GATHERS, *SUMS)
MOST_SPLITS: Final = 32
MOST_SMS: Final = 64


class Overlap(NamedTuple):
    """The method of one GEMM. ``num_splits``: chunks of ``pipeline``; ``num_sm``: SMs that
    ``pipeline`` and ``bulk`` keep free for the collective; ``together``: chunks that a GEMM of
    ``ring_exchange`` takes at a time, 1 or 2; ``fp8``: ``pipeline`` sums products in FP8
    (TransformerEngine's ``fp8_buf``)."""

    method: Method
    num_splits: int = 0
    num_sm: int = 0
    together: int = 1
    fp8: bool = False

    @property
    def text(self) -> str:
        """The method, and its numbers where it has some: ``pipeline:4:16``."""
        numbers: dict[str, tuple[int | str, ...]] = {
            "pipeline": (self.num_splits, self.num_sm, *(["fp8"] if self.fp8 else [])),
            "bulk": (self.num_sm,),
            "ring_exchange": (self.together,) if self.together > 1 else (),
        }
        return ":".join([self.method, *map(str, numbers.get(self.method, ()))])


NONE: Final = Overlap("none")
RING: Final = Overlap("ring_exchange")
_FORWARD: Final = ("proj_fprop", "fc2_fprop")
_BACKWARD: Final = ("qkv_dgrad", "fc1_dgrad")


def _strategy(gather: Overlap, forward: Overlap, backward: Overlap) -> dict[str, Overlap]:
    return {
        **dict.fromkeys(GATHERS, gather),
        **dict.fromkeys(_FORWARD, forward),
        **dict.fromkeys(_BACKWARD, backward),
    }


RIVALS: Final = {
    "userbuffers": _strategy(RING, Overlap("pipeline", 4, 16), Overlap("bulk", 0, 16)),
    "async-tp": _strategy(RING, Overlap("push"), Overlap("push")),
    "fused": _strategy(Overlap("fused"), Overlap("fused"), Overlap("fused")),
}
"""Strategy -> the method of each GEMM, as the framework has it unless told otherwise."""
CHOICES: Final = {
    "userbuffers": (
        *(("gather", one) for one in (RING, NONE)),
        *(("forward", Overlap("pipeline", splits, sms)) for splits in (2, 4, 8) for sms in (8, 16)),
        ("forward", NONE),
        *(("backward", Overlap("bulk", 0, sms)) for sms in (8, 16)),
        ("backward", NONE),
    ),
    "async-tp": (
        *(("gather", one) for one in (RING, NONE)),
        *(("forward", one) for one in (Overlap("push"), NONE)),
        *(("backward", one) for one in (Overlap("push"), NONE)),
    ),
    "fused": (
        *(("gather", one) for one in (Overlap("fused"), NONE)),
        *(("forward", one) for one in (Overlap("fused"), NONE)),
        *(("backward", one) for one in (Overlap("fused"), NONE)),
    ),
}
"""Strategy -> what each kind of GEMM can be told, for tuning."""
EP_OVERLAP: Final = "ep-overlap"
"""The strategy that runs a micro-batch forward beside another that goes back, so that one computes
while the other's tokens are on their way to experts (``simulator.overlapped``)."""
RIVAL_NAMES: Final = {
    "userbuffers": "userbuffers", "async-tp": "async-TP", "fused": "tile fusion",
    EP_OVERLAP: "EP overlap",
}  # fmt: skip
"""Strategy -> its name in a sentence."""
RUNS_IN: Final = {
    "megatron": "Megatron-LM, Megatron-Bridge, torchtitan, DeepSpeed, domino_tune's runtime",
    "domino": "domino_tune's runtime",
    "userbuffers": "Megatron-LM and Megatron-Bridge with TransformerEngine (--tp-comm-overlap)",
    "async-tp": "torchtitan and PyTorch's DTensor, compiled (enable_async_tensor_parallel)",
    "fused": "no training framework by itself: kernels like Flux's in your own model",
    EP_OVERLAP: "Megatron-LM and Megatron-Bridge (--overlap-moe-expert-parallel-comm)",
}
"""Strategy -> where it can be run. Domino with sequence parallelism runs nowhere else."""


def gemms_of(kind: str) -> tuple[str, ...]:
    """Return the GEMMs of a kind: ``gather``, or the sums of ``forward`` or ``backward``."""
    return {"gather": GATHERS, "forward": _FORWARD, "backward": _BACKWARD}[kind]


def overlap_of(strategy: str, told: tuple[str, ...], gemm: str) -> Overlap:
    """Return how a strategy hides the collective of a GEMM, by the plan's own choice where it has
    one; NONE for a strategy that is no rival."""
    return _overlaps(strategy, told)[gemm] if strategy in RIVALS else NONE


@lru_cache(maxsize=256)
def told_of(texts: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return a plan's choices for the GEMMs of each block of a layer; most plans have none."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        block = "attn" if text.startswith(("qkv", "proj")) else "mlp"
        found[block] = (*found.get(block, ()), text)
    return found


class Buffers(NamedTuple):
    """What a strategy registers for its collectives beside the values of the schedule: buffers of a
    micro-batch's tokens × hidden (``whole``), and of a rank's share of them (``shares``)."""

    whole: int = 0
    shares: int = 0


def buffers_of(strategy: str, told: tuple[str, ...]) -> Buffers:
    """Return the buffers of a strategy; none for a strategy that is no rival.

    TransformerEngine has one for each GEMM, and with ``bulk`` a second one, since dgrad's input and
    output move beside different GEMMs: ten with its usual methods (``add_ub`` for each name of
    ``initialize_ub``). PyTorch has one workspace for all GEMMs of a group, of two chunks, and the
    outputs that ``push`` brings together. Flux has an input and an output buffer.
    """
    if strategy not in RIVALS:
        return Buffers()
    methods = [overlap.method for overlap in _overlaps(strategy, told).values()]
    hiding = [method for method in methods if method != "none"]
    if strategy == "userbuffers":
        return Buffers(whole=len(hiding) + hiding.count("bulk"))
    if strategy == "async-tp":
        return Buffers(whole=int("push" in hiding), shares=2 * bool(hiding))
    gathers = any(overlap_of(strategy, told, gemm) != NONE for gemm in GATHERS)
    sums = any(overlap_of(strategy, told, gemm) != NONE for gemm in SUMS)
    return Buffers(whole=gathers + sums)


def check_overlaps(strategy: str, texts: tuple[str, ...]) -> None:
    """Raise InputError unless each text is GEMM=METHOD with numbers that the strategy can have."""
    if texts and strategy not in RIVALS:
        raise InputError(
            f"tp_comm_overlap is of strategies {', '.join(RIVALS)}, got strategy {strategy!r}; "
            "leave it out, or choose one of these."
        )
    if strategy in RIVALS:
        _overlaps(strategy, texts)


@lru_cache(maxsize=256)
def _overlaps(strategy: str, texts: tuple[str, ...]) -> dict[str, Overlap]:
    made = dict(RIVALS[strategy])
    known = {one.method for one in (*made.values(), NONE)}
    for text in texts:
        gemm, _, told = text.partition("=")
        if gemm not in GEMMS:
            raise unknown_name("GEMM of tp_comm_overlap", gemm, GEMMS)
        overlap = _parsed(told, made[gemm])
        fits = overlap.method not in (("pipeline", "push", "bulk") if gemm in GATHERS else
                                      ("ring_exchange",))  # fmt: skip
        if overlap.method not in known or not fits:
            raise InputError(
                f"Strategy {strategy!r} cannot run {gemm} by {overlap.method!r}; it has "
                f"{made[gemm].method} and none there."
            )
        made[gemm] = overlap
    return made


def _parsed(text: str, usual: Overlap) -> Overlap:
    """Return the overlap of a text like ``pipeline:8:16``; numbers left out are the usual ones."""
    method, *numbers = text.split(":")
    if method not in get_args(Method):
        raise unknown_name("method of tp_comm_overlap", method, get_args(Method))
    fp8 = method == "pipeline" and numbers[-1:] == ["fp8"]
    numbers = numbers[:-1] if fp8 else numbers
    wanted = {"pipeline": 2, "bulk": 1, "ring_exchange": 1}.get(method, 0)
    if len(numbers) > wanted or not all(n.isascii() and n.isdigit() for n in numbers):
        raise InputError(
            f"{text!r} must be {method} with at most {wanted} numbers behind colons; pipeline has "
            "chunks and SMs, and fp8 where it sums in FP8, bulk has SMs, ring_exchange has 1 or 2 "
            "chunks at a time."
        )
    given = [int(n) for n in numbers]
    if method == "pipeline":
        splits, sms = [*given, *(usual.num_splits or 4, usual.num_sm or 16)[len(given) :]]
        if not (1 <= splits <= MOST_SPLITS and 1 <= sms <= MOST_SMS):
            raise InputError(f"pipeline has 1 … {MOST_SPLITS} chunks, 1 … {MOST_SMS} SMs: {text!r}")
        return Overlap("pipeline", splits, sms, fp8=fp8)
    if method == "bulk":
        sms = (given or [usual.num_sm or 16])[0]
        if not 1 <= sms <= MOST_SMS:
            raise InputError(f"bulk has 1 … {MOST_SMS} SMs, got {text!r}.")
        return Overlap("bulk", 0, sms)
    if method == "ring_exchange":
        together = (given or [usual.together])[0]
        if together not in (1, 2):
            raise InputError(f"ring_exchange takes 1 or 2 chunks at a time, got {text!r}.")
        return Overlap("ring_exchange", together=together)
    return Overlap(method)  # type: ignore[arg-type]  # checked above
