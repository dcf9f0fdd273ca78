"""What TransformerEngine's own Python costs a host, with stubs in the place of its compiled half.

Run it where TransformerEngine's wheel lies (``tests.long.frameworks.environment``); it prints JSON.
A stub returns at once what the compiled half would return. What that does on the host beside a
launch stays in the time: objects of quantized tensors are constructed by TransformerEngine's own
classes, and of a cast's tensors only the first is taken to be part of its launch. The rest of a
stub's time is taken off, and so are 1.5 us of each op that PyTorch dispatches and that is a kernel
on a GPU.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import importlib
import inspect
import json
import os
import re
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final
from unittest.mock import MagicMock

import torch
from packaging.version import Version
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

SIZE, CHAIN, ROUNDS, WARM = 128, 8, 100, 8
"""Matrices are square, so that a product's shape is known; 8 modules follow one another."""
DISPATCH_US: Final = 1.5
EXPERTS: Final = (2, 8, 16)
RECIPES: Final = {
    "none": None, "delayed": "DelayedScaling", "tensorwise": "Float8CurrentScaling",
    "blockwise": "Float8BlockScaling", "mxfp8": "MXFP8BlockScaling",
}  # fmt: skip
FREE: Final = {f"aten::{name}" for name in ("empty", "empty_like", "new_empty", "detach")}
ON_BLACKWELL: Final = ("mxfp8",)


class Stubs(types.ModuleType):
    """``transformer_engine_torch``: what is called counts its calls and its time."""

    def __init__(self) -> None:
        super().__init__("transformer_engine_torch")
        self.calls: Counter[str] = Counter()
        self.spent = 0.0
        for name, members in _ENUMS.items():
            setattr(self, name, _numbered(name, members))
        for name, function in _FUNCTIONS.items():
            setattr(self, name, self._timed(name, function))
        self.quantize = self._casting("quantize", lambda *told, **_: self._quantized(*told))
        self.split_quantize = self._casting("split_quantize", self._split)
        self.rmsnorm_fwd, self.layernorm_fwd = self._norm("rmsnorm"), self._norm("layernorm")
        self.get_cublasLt_version = lambda: 130000
        self.get_cudnn_version = lambda: 91200
        self.get_num_cublas_streams = lambda: 4
        self.__all__ = [name for name in vars(self) if not name.startswith("_")]

    def __getattr__(self, name: str) -> Any:
        """Return something that nothing here calls, for annotations and other parts' imports."""
        if name.startswith("__"):
            raise AttributeError(name)
        made = MagicMock() if name.startswith("NVTE") else type(name, (), {})
        setattr(self, name, made)
        return made

    def know_backends(self, engine: Path) -> None:
        """Take the names of attention's backends from the Python that compares them."""
        source = (engine / "pytorch" / "cpp_extensions" / "fused_attn.py").read_text()
        named = sorted(set(re.findall(r"NVTE_Fused_Attn_Backend\.(NVTE_\w+)", source)))
        self.NVTE_Fused_Attn_Backend = _numbered("Backend", named)
        chosen = self.NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen
        utils = engine / "pytorch" / "attention" / "dot_product_attention" / "utils.py"
        told = (chosen, "") if "reject_message" in utils.read_text() else chosen
        self.get_fused_attn_backend = lambda *_, **__: told

    def reset(self) -> None:
        """Forget calls and time."""
        self.calls.clear()
        self.spent = 0.0

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def stub(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            out = function(*args, **kwargs)
            self.calls[name] += 1
            self.spent += time.perf_counter() - begun
            return out

        return stub

    def _norm(self, name: str) -> Callable[..., Any]:
        """A norm's forward; it may cast what it returns."""

        def stub(x: Tensor, *args: Any, **_: Any) -> tuple[Any, ...]:
            begun = time.perf_counter()
            self.calls[name] += 1
            out, quantizer = args[-5:-3]
            if out is None and quantizer is None:
                out = torch.empty_like(x)
            scales = torch.empty(SIZE)
            self.spent += time.perf_counter() - begun
            return out if quantizer is None else self._quantized(x, quantizer), None, scales

        return stub

    def _casting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Of a cast, objects and tensors that it makes are timed apart (``_quantized``)."""

        def stub(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            return function(*args, **kwargs)

        return stub

    def _split(self, x: Any, splits: list[int], quantizers: list[Any], **_: Any) -> list[Any]:
        return [self._quantized(x, one) for one in quantizers]

    def _quantized(self, x: Any, quantizer: Any, output: Any = None, noop: Any = None) -> Any:
        begun = time.perf_counter()
        if quantizer is None:
            raise TypeError("nothing to quantize with")
        self.calls["cast"] += 1
        make = _MAKERS[type(quantizer).__name__]
        first = torch.empty(SIZE, SIZE, dtype=torch.uint8)
        self.spent += time.perf_counter() - begun
        return make(first, quantizer) if output is None else output


def _numbered(name: str, members: list[str]) -> Any:
    numbers: Any = enum.IntEnum
    return numbers(name, members, start=0)


def _product(*args: Any, **_: Any) -> tuple[Any, ...]:
    out = args[4]
    made = torch.empty(SIZE, SIZE, dtype=torch.bfloat16) if out is None else out
    return made, None, None, None


def _norm_backward(grad: Tensor, x: Tensor, *_: Any, **__: Any) -> tuple[Any, ...]:
    return torch.empty_like(x), torch.empty(SIZE, dtype=x.dtype), None


def _rmsnorm_backward(grad: Tensor, x: Tensor, *_: Any, **__: Any) -> tuple[Any, ...]:
    return torch.empty_like(x), torch.empty(SIZE, dtype=x.dtype)


def _heads() -> Tensor:
    return torch.empty(SIZE, 1, 2, SIZE // 2, dtype=torch.bfloat16)


_ENUMS: Final = {
    "DType": [
        "kByte", "kInt32", "kFloat32", "kFloat16", "kBFloat16", "kFloat8E4M3", "kFloat8E5M2",
        "kFloat4E2M1",
    ],
    "Float8BlockScaleTensorFormat": ["GEMM_READY", "COMPACT"],
    "FP8FwdTensors": [
        f"GEMM{i}_{what}" for i in (1, 2, 3) for what in ("INPUT", "WEIGHT", "OUTPUT")
    ],
    "FP8BwdTensors": [f"GRAD_{what}{i}" for i in (1, 2, 3) for what in ("OUTPUT", "INPUT")],
    "CommOverlapType": ["RS", "AG"],
}  # fmt: skip
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "generic_gemm": _product,
    "te_general_grouped_gemm": lambda *told: told[7],
    "rmsnorm_bwd": _rmsnorm_backward,
    "layernorm_bwd": _norm_backward,
    "fused_attn_fwd": lambda *_, **__: [_heads(), *torch.empty(2, SIZE)],
    "fused_attn_bwd": lambda *_, **__: [_heads() for _ in range(3)],
    "fp8_transpose": lambda data, *_, **__: torch.empty_like(data),
    "fused_amax_and_scale_update_after_reduction": lambda *_: None,
}
STUBS: Final = Stubs()
_MAKERS: Final[dict[str, Callable[[Tensor, Any], Any]]] = {}


def engine(*, blackwell: bool) -> Any:
    """Return TransformerEngine over the stubs, on a GPU of sorts."""
    os.environ |= {"NVTE_PROJECT_BUILDING": "1", "NVTE_FRAMEWORK": "", "NVTE_TORCH_COMPILE": "0"}
    os.environ.pop("NVTE_RELEASE_BUILD", None)
    _pretend(blackwell=blackwell)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common = importlib.import_module("transformer_engine.common")
        common.load_framework_extension = lambda framework: None  # type: ignore[attr-defined]
        for name in [name for name in sys.modules if name.startswith("transformer_engine.pytorch")]:
            del sys.modules[name]
        sys.modules["transformer_engine_torch"] = STUBS
        STUBS.know_backends(Path(common.__path__[0]).parent)
        sys.modules["transformer_engine.pytorch.onnx_extensions"] = MagicMock()
        te = importlib.import_module("transformer_engine.pytorch")
    _fill_makers()
    _on_the_cpu()
    return te


def _pretend(*, blackwell: bool) -> None:
    """Let CPU tensors pass for a GPU's, and PyTorch for one that has a GPU."""
    major = 10 if blackwell else 9
    properties = types.SimpleNamespace(
        major=major, minor=0, multi_processor_count=132, name="stub", total_memory=80 << 30
    )
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    here = torch.device("cpu")
    cuda.current_device = lambda: here
    cuda.get_device_properties = lambda device=None: properties
    cuda.get_device_capability = lambda device=None: (major, 0)
    cuda.is_current_stream_capturing = lambda: False
    cuda.current_stream = lambda device=None: None
    cuda.synchronize = lambda device=None: None
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *_: None
    cuda.device = lambda device: contextlib.nullcontext()
    torch.version.cuda = "13.0"
    tensors: Any = Tensor
    tensors.is_cuda = True
    tensors.cuda = lambda self, *_, **__: self


def _on_the_cpu() -> None:
    """Let what TransformerEngine keeps on the GPU lie on the CPU."""
    named = "fp8" if Version(version("transformer_engine")) < Version("2.9") else "quantization"
    quantization: Any = importlib.import_module(f"transformer_engine.pytorch.{named}")
    made = quantization.RecipeState.create
    quantization.RecipeState.create = staticmethod(
        lambda recipe, **told: made(recipe, **{**told, "device": torch.device("cpu")})
    )
    base: Any = importlib.import_module("transformer_engine.pytorch.module.base")
    base._cublas_workspace = torch.empty(1)  # of version 2.8 and before
    base._multi_stream_cublas_workspace = [torch.empty(1)] * 4
    kept: Any = base._dummy_wgrads
    for dtype in (torch.bfloat16, torch.float32):
        kept[(SIZE, SIZE, dtype)] = torch.empty(SIZE, SIZE, dtype=dtype)


def _fill_makers() -> None:
    """Find by quantizer how the compiled half constructs its tensors (csrc/quantizer.cpp)."""
    for stem, name, make, quantizers in (
        ("float8", "Float8Tensor", _float8, ("Float8Quantizer", "Float8CurrentScalingQuantizer")),
        ("mxfp8", "MXFP8Tensor", _blocks, ("MXFP8Quantizer",)),
        ("float8_blockwise", "Float8BlockwiseQTensor", _blocks, ("Float8BlockQuantizer",)),
    ):
        module = importlib.import_module(f"transformer_engine.pytorch.tensor.{stem}_tensor")
        whole = getattr(module, name)
        # Within a module tensors are of this lighter class.
        storage = whole.__bases__[0]
        known = inspect.signature(storage.__new__).parameters
        _MAKERS.update(dict.fromkeys(quantizers, partial(make, whole, storage, known)))


def _float8(whole: Any, storage: Any, known: Any, first: Tensor, quantizer: Any) -> Any:
    # Blackwell multiplies each layout and needs no transposed copy.
    transposed = quantizer.columnwise_usage and torch.cuda.get_device_capability() < (10, 0)
    told: dict[str, Any] = {
        "data": first,
        "fp8_scale_inv": torch.empty(1),
        "fp8_dtype": quantizer.dtype,
        "data_transpose": torch.empty(SIZE, SIZE, dtype=torch.uint8) if transposed else None,
        "quantizer": quantizer,
    }
    return _constructed(whole, storage, known, told, internal=quantizer.internal)


def _blocks(whole: Any, storage: Any, known: Any, first: Tensor, quantizer: Any) -> Any:
    both = quantizer.rowwise_usage and quantizer.columnwise_usage
    second = torch.empty(SIZE, SIZE, dtype=torch.uint8) if both else first
    told: dict[str, Any] = {
        "rowwise_data": first if quantizer.rowwise_usage else None,
        "rowwise_scale_inv": torch.empty(4, 4) if quantizer.rowwise_usage else None,
        "columnwise_data": second if quantizer.columnwise_usage else None,
        "columnwise_scale_inv": torch.empty(4, 4) if quantizer.columnwise_usage else None,
        "fp8_dtype": quantizer.dtype,
        "quantizer": quantizer,
    }
    if "is_2D_scaled" in known:
        told["is_2D_scaled"] = False
    if "data_format" in known:
        told["data_format"] = STUBS.Float8BlockScaleTensorFormat.GEMM_READY
    if "with_gemm_swizzled_scales" in known:
        told["with_gemm_swizzled_scales"] = False
    return _constructed(whole, storage, known, told, internal=quantizer.internal)


def _constructed(whole: Any, storage: Any, known: Any, told: Any, *, internal: bool) -> Any:
    if internal:
        if "fake_dtype" in known:
            told["fake_dtype"] = torch.bfloat16
        return storage(**told)
    return whole(shape=(SIZE, SIZE), dtype=torch.bfloat16, **told)


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the ops that are kernels on a GPU: no views, and none that only allocates, as stubs
    do."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Return how many there were."""
        return self.names.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op; count it."""
        if not func.is_view and func._schema.name not in FREE:
            self.names[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


class Measured(dict[str, Any]):
    """Microseconds and calls of a module, forward and backward."""


def measured(
    make: Callable[[], nn.Module], recipe: Any, te: Any, call: Callable[..., Any], *, wgrad: bool
) -> Measured:
    """Return the host's time of one module in a chain of them, medians of ``ROUNDS``; without
    ``wgrad`` its weights need no gradient. The first micro-batch has cast weights."""
    gc.collect()
    chain = [make() for _ in range(CHAIN)]
    for module in chain:
        _prepare(module, wgrad=wgrad)
    scope = partial(_scope, te, recipe)
    for first in (True, *[False] * (WARM - 1)):
        _pass(chain, scope, partial(call, first=first))
    rounds = [_pass(chain, scope, partial(call, first=False)) for _ in range(ROUNDS)]
    last = rounds[-1]
    with Dispatched() as counter:
        marks: list[Any] = [counter]
        _pass(chain, scope, partial(call, first=False), marks)
    ahead, behind = marks[1], marks[2] - marks[1]
    return Measured(
        forward_us=_median(rounds, "forward") - DISPATCH_US * ahead / CHAIN,
        backward_us=_median(rounds, "backward") - DISPATCH_US * behind / CHAIN,
        forward_calls=last["forward_calls"], backward_calls=last["backward_calls"],
        dispatched=(ahead / CHAIN, behind / CHAIN),
    )  # fmt: skip


def _median(rounds: list[dict[str, Any]], direction: str) -> float:
    return float(median(one[direction] for one in rounds)) / CHAIN * 1e6


def _prepare(module: nn.Module, *, wgrad: bool) -> None:
    """Give weights what Megatron-LM's gradient buffers give them; its hook clears ``grad``."""
    for weight in module.parameters():
        held: Any = weight
        held.requires_grad_(wgrad or weight.dim() < 2)
        held.main_grad = torch.zeros(weight.shape)
        held.grad_added_to_main_grad = False
        if held.requires_grad:
            held.register_post_accumulate_grad_hook(_added)


def _added(parameter: Any) -> None:
    """As Megatron-LM's hook does (core/distributed/distributed_data_parallel.py)."""
    if parameter.grad is not None and not parameter.grad_added_to_main_grad:
        parameter.main_grad.add_(parameter.grad.data)
    parameter.grad = None


def _scope(te: Any, recipe: Any) -> Any:
    if recipe is None:
        return contextlib.nullcontext()
    named = "autocast" if hasattr(te, "autocast") else "fp8_autocast"
    word = "recipe" if named == "autocast" else "fp8_recipe"
    return getattr(te, named)(enabled=True, **{word: recipe})


def _pass(
    chain: list[nn.Module], scope: Any, call: Any, marks: list[Any] | None = None
) -> dict[str, Any]:
    x = torch.empty(SIZE, SIZE, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.empty(SIZE, SIZE, dtype=torch.bfloat16)
    found: dict[str, Any] = {}
    gc.collect(1)
    with scope(), _clock(found, "forward"):
        out = x
        for module in chain:
            out = call(module, out)
    if marks is not None:
        marks.append(marks[0].count)
    with _clock(found, "backward"):
        out.backward(grad)  # type: ignore[no-untyped-call]
    if marks is not None:
        marks.append(marks[0].count)
    return found


@contextlib.contextmanager
def _clock(found: dict[str, Any], direction: str) -> Iterator[None]:
    """Time what is within, less the stubs' time."""
    STUBS.reset()
    begun = time.thread_time()
    yield
    found[direction] = time.thread_time() - begun - STUBS.spent
    found[f"{direction}_calls"] = {name: count / CHAIN for name, count in STUBS.calls.items()}


def _plain(module: nn.Module, x: Tensor, *, first: bool) -> Any:
    return module(x, is_first_microbatch=first)


def _bare(module: nn.Module, x: Tensor, *, first: bool) -> Any:
    return module(x)


def _grouped(module: Any, x: Tensor, *, first: bool) -> Any:
    splits = module.splits
    return module(x, splits, is_first_microbatch=first)


class Attention(nn.Module):
    """Attention's core, causal, with keys and values of its own."""

    def __init__(self, te: Any) -> None:
        super().__init__()
        self.core = te.DotProductAttention(
            2, SIZE // 2, attention_dropout=0.0, attn_mask_type="causal", qkv_format="sbhd"
        )
        self.keys, self.values = nn.Parameter(_heads()), nn.Parameter(_heads())

    def forward(self, x: Tensor) -> Tensor:
        """Return the core's output."""
        out: Tensor = self.core(x.view(SIZE, 1, 2, -1), self.keys, self.values)
        return out.view(SIZE, SIZE)


def _of_experts(te: Any, count: int) -> Any:
    module = te.GroupedLinear(count, SIZE, SIZE, **_OPTIONS)
    module.splits = [SIZE // count] * count
    return module


_OPTIONS: Final[dict[str, Any]] = {
    "bias": False, "params_dtype": torch.bfloat16, "device": "cpu", "fuse_wgrad_accumulation": True,
}  # fmt: skip


def modules(te: Any) -> dict[str, tuple[Callable[[], nn.Module], Any]]:
    """Return how each module is made and called."""
    return {
        "Linear": (lambda: te.Linear(SIZE, SIZE, **_OPTIONS), _plain),
        "RMSNorm": (lambda: te.RMSNorm(SIZE, dtype=torch.bfloat16, device="cpu"), _bare),
        "DotProductAttention": (partial(Attention, te), _bare),
        "LayerNormLinear": (
            lambda: te.LayerNormLinear(SIZE, SIZE, normalization="RMSNorm", **_OPTIONS), _plain
        ),
        **{f"GroupedLinear {n}": (partial(_of_experts, te, n), _grouped) for n in EXPERTS},
    }  # fmt: skip


def main() -> None:
    """Print what each module costs, by recipe."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.disable()  # as training with --manual-gc does within a step
    names = sys.argv[1:] or [name for name in RECIPES if name not in ON_BLACKWELL]
    te = engine(blackwell=any(name in ON_BLACKWELL for name in names))
    recipes = importlib.import_module("transformer_engine.common.recipe")
    found: dict[str, Any] = {"version": version("transformer_engine"), "torch Linear": reference()}
    for name in names:
        kind = RECIPES[name]
        recipe = getattr(recipes, kind)() if kind else None
        for what, (make, call) in modules(te).items():
            both = measured(make, recipe, te, call, wgrad=True)
            dgrad = measured(make, recipe, te, call, wgrad=False)
            found[f"{name}: {what}"] = {**both, "dgrad_us": dgrad["backward_us"]}
        if kind:
            found[f"{name}: autocast"] = _entering(te, partial(getattr(recipes, kind)))
    print(json.dumps(found))


def _entering(te: Any, recipe: Callable[[], Any]) -> Measured:
    """Return the time of entering a recipe's scope with a recipe made for it, as Megatron-LM does
    before each layer (core/fp8_utils.py)."""
    spent = []
    for _ in range(ROUNDS):
        begun = time.thread_time()
        with _scope(te, recipe()):
            pass
        spent.append(time.thread_time() - begun)
    return Measured(forward_us=median(spent) * 1e6, backward_us=0.0, dgrad_us=0.0)


def reference() -> dict[str, float]:
    """Return PyTorch's own linear, forward and backward, for the machine's speed."""
    chain = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(CHAIN)))
    forward, backward = [], []
    for _ in range(200):
        x = torch.randn(4, 8, requires_grad=True)
        begun = time.perf_counter()
        out = chain(x)
        between = time.perf_counter()
        out.sum().backward()
        forward.append(between - begun)
        backward.append(time.perf_counter() - between)
    return {"forward": median(forward) / CHAIN * 1e6, "backward": median(backward) / CHAIN * 1e6}


if __name__ == "__main__":
    main()
