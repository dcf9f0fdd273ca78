"""Triton kernels: dropout masks, emulated collectives, the clock, pointwise ops of a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from domino_tune.runtime.lanes import Chunks

BLOCK = 1024


@triton.jit(do_not_specialize=["first", "key", "threshold"])  # type: ignore[untyped-decorator]
def mask_kernel(mask, step, first, key, threshold, elements, quarter, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Draw a sequence's mask. Each counter of a Philox generator gives four elements, one in each
    quarter of the sequence. Its key is (site, step), its second counter the sequence."""
    sequence = tl.program_id(1)
    counter = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seed = (tl.load(step).to(tl.int64) << 32) | key
    zero = counter * 0
    r0, r1, r2, r3 = tl.philox(seed, counter, zero + (first + sequence), zero, zero)
    row = mask + sequence.to(tl.int64) * elements
    mine = counter < quarter
    second, third, fourth = counter + quarter, counter + 2 * quarter, counter + 3 * quarter
    tl.store(row + counter, tl.where(r0 >= threshold, 1, 0).to(tl.uint8), mine)
    tl.store(row + second, tl.where(r1 >= threshold, 1, 0).to(tl.uint8), mine & (second < elements))
    tl.store(row + third, tl.where(r2 >= threshold, 1, 0).to(tl.uint8), mine & (third < elements))
    tl.store(row + fourth, tl.where(r3 >= threshold, 1, 0).to(tl.uint8), mine & (fourth < elements))


def drawn_mask(
    sequences: Sequence[int], shape: tuple[int, int], rate: float, *,
    key: int, step: int | torch.Tensor, device: torch.device,
) -> torch.Tensor:  # fmt: skip
    """Return ``dropout.keep_mask`` by one kernel for all ``sequences``, which are consecutive."""
    elements = shape[0] * shape[1]
    mask = torch.empty((len(sequences) * shape[0], shape[1]), dtype=torch.bool, device=device)
    if not isinstance(step, torch.Tensor):
        step = torch.full((1,), float(step), device=device)
    quarter = triton.cdiv(elements, 4)
    mask_kernel[(triton.cdiv(quarter, BLOCK), len(sequences))](
        mask.view(torch.uint8), step, sequences[0], key & 0x7FFFFFFF, round(rate * 2**31) * 2,
        elements, quarter, BLOCK=BLOCK,
    )  # fmt: skip
    return mask


@triton.jit(do_not_specialize=["first", "count", "chunk_ns"])  # type: ignore[untyped-decorator]
def carry_kernel(left, right, total, stamps, first, count, chunk_ns, blocks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add blocks of two buffers into a third, at most one block every ``chunk_ns``.

    A CTA that is late may catch up by a few blocks, as over a link with a small buffer. A larger
    delay makes it end later. Each writes its beginning and its end (ns) to ``stamps``, if not None.
    """
    lane = tl.arange(0, BLOCK)
    begun = globaltimer()
    deadline = begun
    for index in range(count):
        block = index * tl.num_programs(0) + tl.program_id(0)
        offset = ((first + block) % blocks) * BLOCK + lane
        tl.store(total + offset, tl.load(left + offset) + tl.load(right + offset))
        now = globaltimer()
        deadline = tl.maximum(deadline, now - 4 * chunk_ns) + chunk_ns
        while now < deadline:
            now = globaltimer()
    if stamps is not None:
        tl.store(stamps + 2 * tl.program_id(0), begun)
        tl.store(stamps + 2 * tl.program_id(0) + 1, globaltimer())


@triton.jit
def stamp_kernel(stamp):  # type: ignore[no-untyped-def]
    """Write the device's clock, ns."""
    tl.store(stamp, globaltimer())


def stamp(target: torch.Tensor) -> None:
    """Write the device's clock (ns) to an int64 tensor, on the current stream."""
    stamp_kernel[(1,)](target)


def carry(
    left: torch.Tensor, right: torch.Tensor, total: torch.Tensor, first: int, chunks: Chunks,
    ctas: int, stamps: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Launch ``carry_kernel`` on the current stream, from element ``first`` of the buffers."""
    carry_kernel[(ctas,)](
        left, right, total, stamps, first // chunks.block, chunks.count, chunks.chunk_ns,
        left.numel() // chunks.block,
        BLOCK=chunks.block, num_warps=16,
    )  # fmt: skip


# Pointwise ops of a layer in Triton ---------------------------------------------------------------
# The functions of ``pointwise_formulas``, one pass each.
#
# They compute in fp32 (fp64 for fp64) and round once; the formulas round after each operator. Needs
# Triton.

Tensor = torch.Tensor
MOST_PROGRAMS = 264
"""Programs that share the sum of a weight gradient: two per SM of a Hopper GPU, which runs one at
a time where a token has more than 4,096 elements."""
LEAST_ROWS = 8
"""Least rows of a program; with fewer, writing its sums would cost more than it saves."""


@triton.jit  # type: ignore[untyped-decorator]
def rms_norm_kernel(  # type: ignore[no-untyped-def]
    x, weight, y, rstd, width, EPS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Normalise one token per program."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mine = columns < width
    value = tl.load(x + row * width + columns, mine, 0.0).to(WIDE)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + EPS)
    factor = tl.load(weight + columns, mine, 0.0).to(WIDE)
    tl.store(y + row * width + columns, value * scale * factor, mine)
    tl.store(rstd + row, scale)


@triton.jit  # type: ignore[untyped-decorator]
def rms_norm_grad_kernel(  # type: ignore[no-untyped-def]
    dy, x, weight, rstd, residual, dx, sums, rows, width, HAS_RESIDUAL: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dx of every ``programs``-th token; each program sums its share of the weight's
    gradient."""
    columns = tl.arange(0, BLOCK)
    mine = columns < width
    total = tl.zeros([BLOCK], dtype=WIDE)
    first, programs = tl.program_id(0), tl.num_programs(0)
    for index in range((rows - first + programs - 1) // programs):
        row = first.to(tl.int64) + index * programs
        start = row * width
        gradient = tl.load(dy + start + columns, mine, 0.0).to(WIDE)
        scale = tl.load(rstd + row)
        normed = tl.load(x + start + columns, mine, 0.0).to(WIDE) * scale
        total += gradient * normed
        # Loaded again for each token: with it in registers, wide rows would spill.
        scaled = gradient * tl.load(weight + columns, mine, 0.0).to(WIDE)
        result = (scaled - normed * (tl.sum(scaled * normed, 0) / width)) * scale
        if HAS_RESIDUAL:
            result += tl.load(residual + start + columns, mine, 0.0).to(WIDE)
        tl.store(dx + start + columns, result, mine)
    tl.store(sums + tl.program_id(0) * width + columns, total, mine)


@triton.jit  # type: ignore[untyped-decorator]
def dropout_add_kernel(  # type: ignore[no-untyped-def]
    part, bias, mask, residual, result, width, mask_stride, residual_stride, result_stride,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, KEEP: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Add columns of one token per program; strides are from one token to the next."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mine = columns < width
    value = tl.load(part + row * width + columns, mine, 0.0).to(WIDE)
    if HAS_BIAS:
        value += tl.load(bias + columns, mine, 0.0).to(WIDE)
    if HAS_MASK:
        is_kept = tl.load(mask + row * mask_stride + columns, mine, 0).to(tl.int1)
        value = tl.where(is_kept, value / KEEP, 0.0)
    value += tl.load(residual + row * residual_stride + columns, mine, 0.0).to(WIDE)
    tl.store(result + row * result_stride + columns, value, mine)


@triton.jit  # type: ignore[untyped-decorator]
def rotate_kernel(  # type: ignore[no-untyped-def]
    packed, cosine, sine, stride, seq, half, pairs, SIGN: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotate pairs of one token per program."""
    row = tl.program_id(0).to(tl.int64)
    pair = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mine = pair < pairs
    place = pair % half
    first = packed + row * stride + (pair // half) * 2 * half + place
    angle = (row % seq) * half + place
    c = tl.load(cosine + angle, mine, 0.0).to(WIDE)
    s = tl.load(sine + angle, mine, 0.0).to(WIDE) * SIGN
    a = tl.load(first, mine, 0.0).to(WIDE)
    b = tl.load(first + half, mine, 0.0).to(WIDE)
    tl.store(first, a * c - b * s, mine)
    tl.store(first + half, b * c + a * s, mine)


@triton.jit  # type: ignore[untyped-decorator]
def swiglu_kernel(  # type: ignore[no-untyped-def]
    fc1, act, width, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute columns of one token per program; ``width`` is that of ``act``."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mine = columns < width
    gate = tl.load(fc1 + row * 2 * width + columns, mine, 0.0).to(WIDE)
    up = tl.load(fc1 + row * 2 * width + width + columns, mine, 0.0).to(WIDE)
    tl.store(act + row * width + columns, gate * tl.sigmoid(gate) * up, mine)


@triton.jit  # type: ignore[untyped-decorator]
def swiglu_grad_kernel(  # type: ignore[no-untyped-def]
    dact, fc1, dfc1, width, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute columns of one token per program; ``width`` is that of ``dact``."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mine = columns < width
    gradient = tl.load(dact + row * width + columns, mine, 0.0).to(WIDE)
    gate = tl.load(fc1 + row * 2 * width + columns, mine, 0.0).to(WIDE)
    up = tl.load(fc1 + row * 2 * width + width + columns, mine, 0.0).to(WIDE)
    sigmoid = tl.sigmoid(gate)
    dgate = gradient * up * sigmoid * (1 + gate * (1 - sigmoid))
    tl.store(dfc1 + row * 2 * width + columns, dgate, mine)
    tl.store(dfc1 + row * 2 * width + width + columns, gradient * gate * sigmoid, mine)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return x / RMS(x) · weight, in ``y`` or a new tensor, and each token's 1 / RMS."""
    x = x.contiguous()
    rows, width = x.shape
    y = torch.empty_like(x) if y is None else y
    rstd = torch.empty((rows, 1), dtype=_wide_dtype(x), device=x.device)
    rms_norm_kernel[(rows,)](x, weight, y, rstd, width, EPS=eps, WIDE=_wide(x), **_row_block(width))
    return y, rstd


def rms_norm_grad(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, residual: Tensor | None,
    dx: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, plus ``residual``, in ``dx`` or a new tensor, and of the weight
    (fp32 or fp64)."""
    dy, x = dy.contiguous(), x.contiguous()
    rows, width = x.shape
    dx = torch.empty_like(x) if dx is None else dx
    programs = min(MOST_PROGRAMS, triton.cdiv(rows, LEAST_ROWS))
    sums = torch.empty((programs, width), dtype=_wide_dtype(x), device=x.device)
    added = x if residual is None else residual.contiguous()
    rms_norm_grad_kernel[(programs,)](
        dy, x, weight, rstd, added, dx, sums, rows, width, HAS_RESIDUAL=residual is not None,
        WIDE=_wide(x), **_row_block(width),
    )  # fmt: skip
    return dx, sums.sum(0)


def dropout_add(
    part: Tensor, bias: Tensor | None, mask: Tensor | None, keep: float, residual: Tensor,
    result: Tensor,
) -> None:  # fmt: skip
    """Write residual + dropout(part + bias) into ``result``, whose columns follow each other. All
    may be columns of wider tensors; ``keep`` is the probability that ``mask`` is True."""
    part, residual = part.contiguous(), _rows(residual)
    drawn = part if mask is None else _rows(mask).view(torch.uint8)
    rows, width = part.shape
    dropout_add_kernel[_grid(rows, width)](
        part, part if bias is None else bias.contiguous(), drawn, residual, result, width,
        drawn.stride(0), residual.stride(0), result.stride(0), HAS_BIAS=bias is not None,
        HAS_MASK=mask is not None, KEEP=keep, WIDE=_wide(part), BLOCK=BLOCK,
    )  # fmt: skip


def dropout_grad(dy: Tensor, mask: Tensor, keep: float) -> Tensor:
    """Return the gradient of dropout's input, by torch's own kernel."""
    gradient: Tensor = torch.ops.aten.native_dropout_backward(dy, mask, 1 / keep)
    return gradient


def rotate(packed: Tensor, heads: int, cosine: Tensor, sine: Tensor, sign: float) -> None:
    """Rotate the first ``heads`` heads of [tokens, any] in place by their positions' angles times
    ``sign``. ``cosine`` and ``sine`` are [seq_length, 1, head_dim / 2]; a head's halves are paired.
    """
    seq, _, half = cosine.shape
    pairs = heads * half
    rotate_kernel[_grid(packed.shape[0], pairs)](
        packed, cosine, sine, packed.stride(0), seq, half, pairs, SIGN=sign, WIDE=_wide(packed),
        BLOCK=BLOCK,
    )  # fmt: skip


def swiglu(fc1: Tensor, act: Tensor) -> None:
    """Write SiLU(gate) · up of ``fc1``, [tokens, gate then up], to ``act``."""
    fc1 = fc1.contiguous()
    rows, width = act.shape
    swiglu_kernel[_grid(rows, width)](fc1, act, width, WIDE=_wide(fc1), BLOCK=BLOCK)


def swiglu_grad(dact: Tensor, fc1: Tensor, dfc1: Tensor) -> None:
    """Write the gradient of ``fc1`` to ``dfc1``."""
    dact, fc1 = dact.contiguous(), fc1.contiguous()
    rows, width = dact.shape
    swiglu_grad_kernel[_grid(rows, width)](dact, fc1, dfc1, width, WIDE=_wide(fc1), BLOCK=BLOCK)


def _rows(tensor: Tensor) -> Tensor:
    """Return the tensor with columns that follow each other; rows may be apart."""
    return tensor if tensor.stride(1) == 1 else tensor.contiguous()


def _grid(rows: int, width: int) -> tuple[int, int]:
    return rows, triton.cdiv(width, BLOCK)


def _row_block(width: int) -> dict[str, int]:
    """Return a block that holds a row, and enough warps for it."""
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": min(32, max(4, block // 512))}


def _wide(tensor: Tensor) -> tl.dtype:
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32


def _wide_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
