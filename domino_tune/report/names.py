"""Labels of ops, plans and numbers."""

from __future__ import annotations

from typing import Final

from simulator.dtypes import MS_PER_NS
from simulator.ops import Collective, Fused, Gemm, Pointwise, Signature
from simulator.overlap import RIVAL_NAMES
from simulator.schedule import Op

LABELS: Final = {
    "head.logits": "LM head", "embed": "embedding", "embed.post": "embedding post",
    "loss.max": "loss max", "loss.sum": "loss sum", "loss.grad": "loss grad",
    "step.adam": "Adam", "step.grad_norm": "gradient norm", "step.dp": "last bucket",
    "dp": "bucket",
}  # fmt: skip
"""Roles whose label is not their last word."""
BACKWARD_SUFFIXES: Final = ("_dgrad", "_wgrad", "_bwd")
STRATEGY_NAMES: Final = {
    "megatron": "Megatron-LM", "no_comm": "No communication", "domino": "Domino",
    **RIVAL_NAMES,
}  # fmt: skip
LANE_WORDS: Final = {
    "compute": "compute", "tp": "tensor parallel", "dp": "data parallel",
    "cp": "context parallel", "ep": "expert parallel",
}  # fmt: skip
"""Lane of a schedule (LANES) -> its label beside the picture."""
CHANGE_WORDS: Final = {"gpu_flops": "GPU FLOP/s", "tp": "tensor-parallel ranks"}


def change_label(key: str) -> str:
    """Return a key of ``whatif`` in words: ``link bandwidth`` of ``link_bandwidth``."""
    return CHANGE_WORDS.get(key, key.replace("_", " "))


COLLECTIVES: Final = {
    ".ar": "all-reduce", ".ag": "all-gather", ".ag_bwd": "all-gather", ".rs": "reduce-scatter",
}  # fmt: skip
"""Suffix of a collective's role -> the word for it."""


def role_label(role: str) -> str:
    """Return a label: ``fc1 dgrad`` of ``mlp.fc1_dgrad``, ``all-reduce fc2`` of ``mlp.fc2.ar``."""
    for suffix, word in COLLECTIVES.items():
        if role.endswith(suffix):
            return f"{word} {role_label(role.removesuffix(suffix))}"
    for suffix in BACKWARD_SUFFIXES:
        if role.endswith(suffix):
            return f"{role_label(role.removesuffix(suffix))} {suffix[1:]}"
    return LABELS.get(role, role.removeprefix("attn.").removeprefix("mlp.").removeprefix("head."))


def op_kind(op: Op) -> str:
    """Return the kind of an op: ``gemm``, ``wgrad``, ``attention``, ``pointwise`` or ``comm``."""
    if isinstance(op.signature, Gemm) and op.signature.layout == "wgrad":
        return "wgrad"
    return "comm" if isinstance(op.signature, Collective) else op.signature.kind


def is_backward(role: str) -> bool:
    """Return whether an op of a layer belongs to the backward pass."""
    return any(suffix in role for suffix in BACKWARD_SUFFIXES)


def shape_text(signature: Signature) -> str:
    """Return the shape that decides an op's time, as text."""
    if isinstance(signature, Gemm):
        return f"m {signature.m:,} · n {signature.n:,} · k {signature.k:,} · {signature.layout}"
    if isinstance(signature, Collective):
        where = f"{signature.ranks} ranks"
        if signature.nodes > 1:
            where += f" on {signature.nodes} nodes"
        return f"{size_text(signature.size_bytes)} over {where}"
    if isinstance(signature, Pointwise):
        return f"{size_text(signature.bytes_read + signature.bytes_written)} moved"
    if isinstance(signature, Fused):
        op = signature.collective.op.replace("_", "-")
        return f"{shape_text(signature.gemm)}, in one kernel with its {op}"
    keys = f" to {signature.keys:,} keys" if signature.kv_seq else ""
    return (
        f"{signature.batch} × {signature.seq:,} tokens{keys} · {signature.heads} heads of "
        f"{signature.head_dim}"
    )


def size_text(size_bytes: float) -> str:
    """Return bytes as text: ``80.0 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"


def ms_text(value_ms: float) -> str:
    """Return milliseconds with three or four digits, or all before the point: ``19,107``,
    ``369.7``, ``4.18``, ``0.738``."""
    digits = sum(value_ms < limit for limit in (10_000, 100, 1))
    return f"{value_ms:,.{digits}f}" if value_ms else "0"


def ns_as_ms(value_ns: float) -> str:
    """Return nanoseconds as text in milliseconds: ``369.7``."""
    return ms_text(value_ns * MS_PER_NS)


def gib_text(value_gib: float) -> str:
    """Return GiB to a tenth, with separators: ``41.2``, ``178,534.7``."""
    return f"{value_gib:,.1f}"


def percent_text(fraction: float) -> str:
    """Return a fraction in per cent: ``99.5 %``, ``50 %``."""
    text = f"{100 * fraction:.1f}".removesuffix(".0")
    return f"{text} %"


def times_text(ratio: float | None) -> str:
    """Return a ratio as text: ``1.014×``; a dash for none."""
    return "–" if ratio is None else f"{ratio:.3f}×"
