"""What people call things: short labels for ops, plans and times."""

from __future__ import annotations

from typing import Final

from simulator.ops import Collective, Gemm, Pointwise, Signature
from simulator.plan import SlicePlan
from simulator.schedule import Op

FRAGMENTS: Final = {
    "attn.norm": "norm", "attn.a": "qkv", "attn.rope": "rope", "attn.core": "attention",
    "attn.b": "proj", "attn.out": "add", "mlp.norm": "norm", "mlp.a": "fc1", "mlp.core": "act",
    "mlp.b": "fc2", "mlp.out": "add", "head.a": "LM head", "head.norm": "norm",
    "embed": "embedding", "embed.post": "embedding post", "loss.max": "loss max",
    "loss.sum": "loss sum", "loss.grad": "loss grad", "step.adam": "Adam",
    "step.grad_norm": "gradient norm", "step.dp": "last bucket", "dp": "bucket",
}  # fmt: skip
STRATEGY_NAMES: Final = {
    "megatron": "Megatron-LM", "no_comm": "No communication", "domino": "Domino",
}  # fmt: skip
ORDER_WORDS: Final = {
    "greedy": "greedy order",
    "inter": "DeepSpeed's order (inter)",
    "intra": "order inside the layer (intra)",
    "paper": "the paper's order",
}
WGRAD_WORDS: Final = {
    "fill": "weight gradients fill the waits",
    "eager": "weight gradients at once",
    "deferred": "weight gradients behind dgrad",
}


CHANGE_WORDS: Final = {"gpu_flops": "GPU FLOP/s", "tp": "tensor-parallel ranks"}


def change_label(key: str) -> str:
    """What a ``whatif`` key changes, in words: ``link_bandwidth`` -> ``link bandwidth``."""
    return CHANGE_WORDS.get(key, key.replace("_", " "))


def role_label(role: str) -> str:
    """``mlp.a_dgrad`` -> ``fc1 dgrad``; ``mlp.b.ar`` -> ``all-reduce fc2``."""
    if role.endswith(".ar"):
        return f"all-reduce {role_label(role.removesuffix('.ar'))}"
    for suffix, word in (("_dgrad", " dgrad"), ("_wgrad", " wgrad"), ("'", "′")):
        if role.endswith(suffix):
            return role_label(role.removesuffix(suffix)) + word
    return FRAGMENTS.get(role, role)


def op_kind(op: Op) -> str:
    """How the page draws an op: ``gemm``, ``wgrad``, ``attention``, ``pointwise`` or ``comm``."""
    if isinstance(op.signature, Gemm) and op.signature.layout == "wgrad":
        return "wgrad"
    return "comm" if isinstance(op.signature, Collective) else op.signature.kind


def is_backward(role: str) -> bool:
    """Whether an op of a layer belongs to the backward pass."""
    return "'" in role or "_dgrad" in role or "_wgrad" in role


def shape_text(signature: Signature) -> str:
    """The shape that decides an op's time, for reading."""
    if isinstance(signature, Gemm):
        return f"m {signature.m:,} · n {signature.n:,} · k {signature.k:,} · {signature.layout}"
    if isinstance(signature, Collective):
        where = f"{signature.ranks} ranks"
        if signature.nodes > 1:
            where += f" on {signature.nodes} nodes"
        return f"{size_text(signature.size_bytes)} over {where}"
    if isinstance(signature, Pointwise):
        return f"{size_text(signature.bytes_read + signature.bytes_written)} moved"
    return (
        f"{signature.batch} × {signature.seq:,} tokens · {signature.heads} heads of "
        f"{signature.head_dim}"
    )


def size_text(size_bytes: float) -> str:
    """``80.0 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"


def ms_text(value_ms: float) -> str:
    """Milliseconds with four digits where they say something: ``369.7``, ``4.18``, ``0.738``."""
    digits = 1 if value_ms >= 100 else 2 if value_ms >= 1 else 3
    return f"{value_ms:,.{digits}f}" if value_ms else "0"


def percent_text(fraction: float) -> str:
    """``99.5 %``; whole numbers from 0 to 1 stay whole."""
    text = f"{100 * fraction:.1f}".removesuffix(".0")
    return f"{text} %"


def plan_text(plan: SlicePlan) -> str:
    """A plan in words, for a line under its name."""
    if plan.strategy == "megatron":
        return "one slice, nothing hides forward communication"
    if plan.strategy == "no_comm":
        return "the same compute with communication for free"
    parts = [slices_text(plan), ORDER_WORDS[plan.order], WGRAD_WORDS[plan.wgrad]]
    if plan.merge_wgrad:
        parts.append("weight gradients merged over slices")
    if plan.comm_ctas:
        parts.append(f"{plan.comm_ctas} CTAs for communication")
    return ", ".join(parts)


def slices_text(plan: SlicePlan) -> str:
    """``2 row slices``, with column and dgrad pieces where there are any."""
    rows = f"{plan.row_slices} row slice{'s' * (plan.row_slices > 1)}"
    attn, mlp = plan.attn_col_slices, plan.mlp_col_slices
    if (attn, mlp) != (1, 1):
        count = f"{attn}" if attn == mlp else f"{attn}/{mlp}"
        rows += f" × {count} column slices"
    dgrad = (plan.attn_dgrad_slices, plan.mlp_dgrad_slices)
    if dgrad != (attn, mlp):
        rows += f", dgrad in {dgrad[0]}/{dgrad[1]}"
    return rows
