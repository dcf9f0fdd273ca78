"""Implementation: which kernels a framework launches for the same mathematics."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, get_args

from simulator.errors import InputError, unknown_name

NcclAlgo = Literal["auto", "ring"]
NCCL_ALGOS: Final[tuple[NcclAlgo, ...]] = get_args(NcclAlgo)
LaunchOrder = Literal["ordered", "comm_first", "free"]
LAUNCH_ORDERS: Final[tuple[LaunchOrder, ...]] = get_args(LaunchOrder)
"""Who gets the SMs where a collective becomes ready just when the next compute op does.
``ordered``: the device starts kernels in the order of their launch (one hardware queue,
CUDA_DEVICE_MAX_CONNECTIONS=1), so a compute op waits until all collectives launched before it have
begun. ``comm_first``: the collective, and nobody waits (its stream has priority, and CUDA as many
queues as usual). ``free``: the compute op, whose stream has no event to wait for."""
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "nccl_algo": NCCL_ALGOS, "launch_order": LAUNCH_ORDERS,
}  # fmt: skip
"""Keys that are words -> the words; the other keys are true or false."""
BOOLEANS: Final = {"true": True, "false": False}


class Kernels(NamedTuple):
    """An op in several kernels: their number, and the bytes that they read and write together, as
    multiples of the fused kernel's. ``law``: the op of the profile whose kernel they are like."""

    number: int = 1
    read: float = 1.0
    written: float = 1.0
    law: str = ""


FUSED: Final = Kernels()
UNFUSED: Final = {
    # PyTorch's own LayerNorm is one kernel. RMSNorm as Hugging Face writes it: to fp32, square,
    # mean, times rsqrt, to bf16, times weight.
    "norm_fusion": {
        "rmsnorm": Kernels(6, 10, 8, "copy"),
        "rmsnorm_bwd": Kernels(10, 40 / 6, 12, "copy"),
    },
    # x·cos + (−x₂, x₁)·sin, for queries and for keys: 2 mul, neg, cat, add.
    "rope_fusion": dict.fromkeys(("rope", "rope_bwd"), Kernels(10, 5.5, 4.5, "copy")),
    # silu, mul; backward: 2 mul, silu's, and the two halves put together.
    "swiglu_fusion": {
        "swiglu": Kernels(2, 1.5, 2, "copy"),
        "swiglu_bwd": Kernels(4, 16 / 6, 10 / 4, "copy"),
    },
    # add of the bias, dropout, add of the residual.
    "bias_dropout_fusion": {"bias_dropout_add": Kernels(3, 2, 7 / 3, "copy")},
    # zeros, and atomic adds of every copy's row to its token's (core/transformer/moe/moe_utils.py),
    # whose number decides, not the bytes written. index_select takes as long as a fused permutation
    # (docs/gpu.md).
    "moe_permute_fusion": {"moe_unpermute": Kernels(2, 1, 0, "scatter_add")},
}
"""Key -> op -> what it is where the key is false: kernels of PyTorch in bf16."""
OTHERS: Final = {
    **dict.fromkeys(
        ("bias_dropout_add", "bias_dropout_add_bwd", "embedding_post"), Kernels(law="copy")
    ),
    **dict.fromkeys(
        ("cross_entropy_max", "cross_entropy_sum", "cross_entropy_grad"),
        Kernels(law="fused_cross_entropy"),
    ),
}
"""Ops of which other frameworks have other kernels than our runtime, which draws masks by position
and whose cross-entropy is PyTorch's."""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """What a framework runs beside the GEMMs; names are Megatron-LM's where it has one.

    ``flash_attention``: one kernel instead of GEMMs that keep the scores in memory. ``…_fusion``:
    one kernel instead of PyTorch's several (Hybrid-EP's permutation is always one);
    ``gradient_accumulation_fusion``: the wgrad adds to the main gradient by itself.
    ``dense_embedding_grad``: a table's gradient is made whole in the dtype of activations, then
    added to the main gradient. ``zero_grads``: the step begins by clearing main gradients, so every
    wgrad adds. ``check_for_nan_in_grad``, ``scale_grads``: each is a pass over all gradients before
    data-parallel ranks sum them. ``clip_grad``: a pass that scales the gradients by their norm.
    ``copy_parameters``: own kernels copy the optimizer's fp32 parameters to the model's.
    ``log_params_norm``, ``log_num_zeros_in_grad``: each is a pass before the step.
    ``dummy_wgrads``: a wgrad that adds to the main gradient also makes autograd an unused tensor of
    its shape. ``nccl_algo``: ``ring`` keeps NVSwitch from summing. ``tp_backward_overlap``: without
    Domino, backward's gathers and sums run beside the column-parallel dgrad and wgrad.
    ``launch_order``: who gets the SMs first, see ``LAUNCH_ORDERS``. ``tf32``: tensor cores multiply
    fp32, in TF32; without, CUDA cores do.
    """

    name: str = "domino-tune"
    flash_attention: bool = True
    deterministic_attention: bool = False
    cross_entropy_loss_fusion: bool = True
    norm_fusion: bool = True
    rope_fusion: bool = True
    swiglu_fusion: bool = True
    bias_dropout_fusion: bool = True
    moe_permute_fusion: bool = True
    gradient_accumulation_fusion: bool = True
    dense_embedding_grad: bool = False
    zero_grads: bool = False
    check_for_nan_in_grad: bool = False
    scale_grads: bool = False
    clip_grad: bool = False
    copy_parameters: bool = False
    log_params_norm: bool = False
    log_num_zeros_in_grad: bool = False
    dummy_wgrads: bool = False
    nccl_algo: NcclAlgo = "auto"
    tp_backward_overlap: bool = True
    launch_order: LaunchOrder = "ordered"
    tf32: bool = False

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise unknown_name("--implementation", self.name, NAMES)
        for key, known in CHOICES.items():
            if getattr(self, key) not in known:
                raise unknown_name(key, getattr(self, key), known)

    def starts(self, *, cuda_graph: bool) -> LaunchOrder:
        """Return who gets the SMs first. A graph of a whole step keeps no order of launches, so the
        priority of the collectives' streams decides there."""
        return "comm_first" if cuda_graph and self.launch_order == "ordered" else self.launch_order

    def kernels(self, op: str) -> Kernels:
        """Return the kernels that make up the pointwise op named ``op``."""
        return self._kernels.get(op, FUSED)

    @cached_property
    def _kernels(self) -> dict[str, Kernels]:
        """Ops that are other than the fused kernel of our runtime."""
        made = {} if self.name == "domino-tune" else dict(OTHERS)
        for key, ops in UNFUSED.items():
            if not getattr(self, key):
                made |= ops
        return made

    @property
    def has_fp32_attention(self) -> bool:
        """Whether its attention in one kernel is PyTorch's, which takes more than 16 bits."""
        return self.name in ("torch", "domino-tune")

    @property
    def keeps_gathered(self) -> bool:
        """Whether autograd keeps the gathered input of a column-parallel GEMM for its wgrad:
        DTensor gathers before the GEMM (torch/distributed/tensor/parallel/style.py)."""
        return self.name == "torch"

    @property
    def label(self) -> str:
        """The name, and the keys that differ from it: ``megatron-te, nccl_algo=ring``."""
        usual = IMPLEMENTATIONS[self.name]
        changed = [
            f"{key}={str(getattr(self, key)).lower()}"
            for key in KEYS
            if getattr(self, key) != getattr(usual, key)
        ]
        return ", ".join([self.name, *changed])


KEYS: Final = tuple(item.name for item in fields(Implementation) if item.name != "name")
NAMES: Final = ("megatron-te", "megatron-2022", "torch", "domino-tune")
DOMINO_TUNE: Final = Implementation()
"""What the runtime of this project launches."""
_MEGATRON: Final = Implementation(
    name="megatron-te", dense_embedding_grad=True, zero_grads=True, check_for_nan_in_grad=True,
    scale_grads=True, clip_grad=True, copy_parameters=True, dummy_wgrads=True, tf32=True,
)  # fmt: skip
IMPLEMENTATIONS: Final = {
    "megatron-te": _MEGATRON,
    "megatron-2022": replace(
        _MEGATRON, name="megatron-2022", flash_attention=False, cross_entropy_loss_fusion=False,
        moe_permute_fusion=False, check_for_nan_in_grad=False, dummy_wgrads=False,
        tp_backward_overlap=False,
    ),
    "torch": Implementation(
        name="torch", cross_entropy_loss_fusion=False, norm_fusion=False, rope_fusion=False,
        swiglu_fusion=False, bias_dropout_fusion=False, moe_permute_fusion=False,
        gradient_accumulation_fusion=False, dense_embedding_grad=True, clip_grad=True,
        copy_parameters=True, tp_backward_overlap=False,
    ),
    "domino-tune": DOMINO_TUNE,
}  # fmt: skip
"""Megatron-LM of 2025 with TransformerEngine's layers (megatron/core/distributed/
param_and_grad_buffer.py and optimizer/distrib_optimizer.py; transformer_engine/pytorch/module/
base.py: get_dummy_wgrad); Megatron-LM of 2022 (arXiv 2205.05198); a Hugging Face model under
PyTorch's DTensor; and the runtime of this project.

TransformerEngine gives cuBLAS CUBLAS_COMPUTE_32F_FAST_TF32 for fp32 (common/gemm/cublaslt_gemm.cu).
Head and attention core are torch's, which multiplies in TF32, too, in NVIDIA's containers
(TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1) and before PyTorch 1.12 (torch.backends.cuda.matmul.allow_tf32
was on). Since then it is off, and neither DTensor nor our runtime turns it on."""


def changed(implementation: Implementation, changes: tuple[str, ...]) -> Implementation:
    """Return ``implementation`` with keys set as in ``changes``, each ``KEY=VALUE``.

    Raise InputError for an unknown key or value.
    """
    values: dict[str, Any] = {}
    for change in changes:
        key, _, value = change.partition("=")
        if key not in KEYS:
            raise unknown_name("--implementation-set", key, KEYS)
        values[key] = _value(key, value)
    return replace(implementation, **values)


def _value(key: str, text: str) -> bool | str:
    if key in CHOICES:
        return text.lower()
    if text.lower() not in BOOLEANS:
        raise InputError(f"--implementation-set {key} must be true or false, got {text!r}.")
    return BOOLEANS[text.lower()]
