"""Stage ``fp8``: GEMMs by recipe, the casts around them, the clock and power that they hold. And
stage ``attention``: heads that published tables of Hopper lack, forward and backward.

The three GEMMs of a linear, as Hopper's tensor cores want them: both operands of FP8 with the inner
dimension contiguous, so that all are of one layout. Backward has no fast accumulation, as in
TransformerEngine. Weight gradients come out in fp32; that they add to a sum is not in the times.

Heads: latent attention, whose keys are longer than its values, and heads of 64; beside them heads
of 128, which the tables have. Each by every library that torch can ask for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from domino_tune.measure.gpu import Work
from domino_tune.measure.gpu.loads import REST_S, captured
from lab import Shape, sizes_of
from lab.gpu.cases import SHAPES
from lab.gpu.stage import GpuCase, Moves, Row, Stage, Timed, each_ns, lasting, moved, ops_timer

LASTING: Final[Shape] = (8192, 7168, 8192)
LASTING_S: Final = 9.0
BLOCK: Final = 128
SETS: Final = 3
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
RECIPES: Final = {"bf16": "", "tensorwise": "tensor", "rowwise": "row", "blockwise": "block"}
"""Recipe -> what has a scale of its own. By tensor and by row forward accumulates fast."""
LAYOUTS: Final = ("forward", "dgrad", "wgrad")
Tensors = tuple[torch.Tensor, torch.Tensor]


def fp8_cases(
    stage: Stage, shapes: Sequence[Shape] = SHAPES["fp8"],
    casts: Sequence[tuple[int, int]] = SHAPES["casts"],
) -> Iterator[GpuCase]:  # fmt: skip
    """Yield the loads that last, the casts, then the GEMMs of each shape in all recipes."""
    if stage.device.type == "cuda":
        seconds = LASTING_S + REST_S + 1
        for recipe in ("bf16", "tensorwise", "blockwise"):
            yield GpuCase(f"lasting {recipe}", seconds, partial(_lasting, stage, recipe))
    timed, device = ops_timer(stage.device), stage.device
    for size in casts:
        yield GpuCase("casts {}x{}".format(*size), 1.5, partial(_casts, timed, device, size))
    for shape in shapes:
        name = f"gemms {'x'.join(map(str, shape))}"
        yield GpuCase(name, 2.0, partial(_gemms, timed, device, shape))


def gemm_work(recipe: str, layout: str, shape: Shape, device: torch.device) -> Work:
    """Return the GEMM of a linear in a recipe, with operands that take turns."""
    sizes, scaling = sizes_of(layout, shape), RECIPES[recipe]
    made = partial(_scaled, scaling) if scaling else _plain
    sets = [made(layout, sizes, device) for _ in range(SETS)]
    return lambda call: sets[call % SETS]()


def _plain(layout: str, sizes: Shape, device: torch.device) -> Callable[[], object]:
    a, b = (torch.randn(rows, sizes[2], device=device, dtype=torch.bfloat16) for rows in sizes[:2])
    if layout == "forward":
        return lambda: F.linear(a, b)
    if layout == "dgrad":
        turned = b.t().contiguous()
        return lambda: a @ turned
    left, right = a.t().contiguous(), b.t().contiguous()
    return lambda: left.t() @ right


def _scaled(scaling: str, layout: str, sizes: Shape, device: torch.device) -> Callable[[], object]:
    rows, columns, inner = sizes
    gradient = E4M3 if layout == "forward" or scaling == "block" else E5M2
    a = torch.randn(rows, inner, device=device).to(gradient)
    b = torch.randn(columns, inner, device=device).to(E4M3).t()
    scale_a, scale_b = _scales(scaling, layout, sizes, device)
    out = torch.float32 if layout == "wgrad" and scaling != "row" else torch.bfloat16
    fast = scaling != "block" and layout == "forward"
    return lambda: torch._scaled_mm(
        a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=out, use_fast_accum=fast
    )


def _scales(scaling: str, layout: str, sizes: Shape, device: torch.device) -> Tensors:
    """Return both operands' scales, laid out as cuBLASLt wants them: blocks of 1 x 128 next to each
    other along rows; blocks of 128 x 128 in columns whose number is a multiple of four."""
    (rows, columns, inner), ones = sizes, partial(torch.ones, device=device)
    if scaling == "tensor":
        return ones(()), ones(())
    if scaling == "row":
        return ones(rows, 1), ones(1, columns)
    blocks = -(-inner // BLOCK)
    if layout == "wgrad":
        return ones(blocks, rows).t(), ones(blocks, columns)
    return ones(blocks, rows).t(), ones(-(-columns // BLOCK), -(-blocks // 4) * 4)[:, :blocks].t()


def _gemms(timed: Timed, device: torch.device, shape: Shape) -> Row:
    makers = {
        f"{recipe} {layout}": partial(gemm_work, recipe, layout, shape, device)
        for recipe in RECIPES for layout in LAYOUTS
    }  # fmt: skip
    return {"shape": list(shape), **each_ns(timed, makers, 2 * math.prod(shape))}


def _casts(timed: Timed, device: torch.device, size: tuple[int, int]) -> Row:
    return {"shape": list(size), **moved("casts", timed, cast_works(*size, device))}


def cast_works(rows: int, columns: int, device: torch.device) -> Moves:
    """Return each cast with the bytes that it must move."""
    from lab.gpu.kernels import Casts

    like = partial(torch.randn, rows, columns, device=device, dtype=torch.bfloat16)
    casts, count = [Casts(like()) for _ in range(SETS)], rows * columns
    copies, scales = [torch.empty_like(one.x) for one in casts], 4 * count // BLOCK

    def each(play: Callable[[Any], object]) -> Work:
        return lambda call: play(casts[call % SETS])

    return {
        "copy bf16": (4 * count, lambda call: copies[call % SETS].copy_(casts[call % SETS].x)),
        "amax": (2 * count, each(lambda one: one.x.abs().amax())),
        "amax by norm": (2 * count, each(lambda one: torch.linalg.vector_norm(one.x, torch.inf))),
        "cast by torch": (3 * count, each(lambda one: one.x.to(E4M3))),
        "cast": (3 * count, each(lambda one: one.per_tensor(turn=False))),
        "cast and transpose": (4 * count, each(lambda one: one.per_tensor(turn=True))),
        "cast by block": (3 * count + scales, each(lambda one: one.by_block(turn=False))),
        "cast by block and transpose": (
            4 * count + 2 * scales, each(lambda one: one.by_block(turn=True)),
        ),
        "transpose fp8": (
            2 * count, each(lambda one: one.turned_bytes.copy_(one.out_bytes.t())),
        ),
    }  # fmt: skip


def _lasting(stage: Stage, recipe: str) -> Row:
    works = [gemm_work(recipe, layout, LASTING, stage.device) for layout in LAYOUTS]
    calls = SETS * len(LAYOUTS)

    def play() -> None:
        for call in range(SETS):
            for work in works:
                work(call)

    replay = captured(lambda: play)
    torch.cuda.synchronize()
    time.sleep(REST_S)
    row = lasting(stage.device, replay, LASTING_S)
    lasting_ns = 1e6 * row["step_ms"]
    rate = 2 * calls * math.prod(LASTING) / lasting_ns / 1e3
    return {
        **row, "shape": list(LASTING), "calls": calls, "first_ns": row["step_ns"][1],
        "lasting_ns": lasting_ns, "told": f"{row['told']}, {rate:.0f} TFLOP/s",
    }  # fmt: skip


LIBRARIES: Final = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


class Heads(NamedTuple):
    """One rank's heads, causal: those of queries, of keys and values, and elements of each."""

    batch: int
    seq: int
    queries: int
    keys: int
    key_size: int
    value_size: int


def attention_cases(stage: Stage, cases: Iterable[Any] = SHAPES["attention"]) -> Iterator[GpuCase]:
    """Yield a case per shape; its row has the forward and backward time by each library."""
    timed = ops_timer(stage.device)
    for one in starmap(Heads, cases):
        name = "{}x{} heads {}/{} of {}+{}".format(*one)
        yield GpuCase(name, 1.5, partial(_measured, timed, stage.device, one))


def _measured(timed: Timed, device: torch.device, one: Heads) -> Row:
    makers = {
        f"{name} {direction}": partial(_work, one, library, device, direction)
        for name, library in LIBRARIES.items() for direction in ("forward", "backward")
    }  # fmt: skip
    pairs = one.batch * one.queries * one.seq**2 / 2  # of the unmasked half
    flop = 2 * pairs * (one.key_size + one.value_size)
    return {**one._asdict(), **each_ns(timed, makers, flop)}


def _work(one: Heads, library: SDPBackend, device: torch.device, direction: str) -> Work:
    def made(heads: int, size: int) -> torch.Tensor:
        shape = one.batch, heads, one.seq, size
        return torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)

    def mixed(inputs: Any) -> torch.Tensor:
        how: Any = {"is_causal": True, "enable_gqa": one.keys != one.queries}
        with sdpa_kernel(library):
            return F.scaled_dot_product_attention(*inputs, **how)

    heads = (one.queries, one.key_size), (one.keys, one.key_size), (one.keys, one.value_size)
    sets = [[made(*each) for each in heads] for _ in range(2)]
    if direction == "forward":
        return lambda call: mixed(sets[call % 2])
    outs = [mixed(inputs) for inputs in sets]
    given = [torch.randn_like(out) for out in outs]

    def backward(call: int) -> object:
        at = call % 2
        return torch.autograd.grad(outs[at], sets[at], given[at], retain_graph=True)

    return backward
