"""Plain CSV tables: our own (m,n,k,us) and those of the facts folder."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

from domino_tune.measure.importers.imported import NO_HINTS, Hints, Imported, merged, text_of
from simulator.errors import InputError
from simulator.lookup.attention import AttentionRow
from simulator.lookup.collectives import COLLECTIVES, CollectiveRow
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import PointwiseRow

Line = dict[str, str]
HALF_BYTES = 2


def records(data: bytes, columns: tuple[str, ...]) -> Iterator[tuple[int, Line]]:
    """Yield (line number, row) of a CSV with at least these columns; ``#`` lines are comments."""
    lines = text_of(data).splitlines()
    content = [(i, line) for i, line in enumerate(lines, 1) if line.strip() and line[0] != "#"]
    if len(content) < 2:
        raise InputError("The table is empty: a header and at least one row are needed.")
    reader = csv.DictReader(line for _, line in content)
    missing = [name for name in columns if name not in (reader.fieldnames or [])]
    if missing:
        raise InputError(
            f"The table has no column {', '.join(missing)}; it has "
            f"{', '.join(reader.fieldnames or [])}."
        )
    for (number, _), row in zip(content[1:], reader, strict=True):
        if None in row or None in row.values():
            raise InputError(f"line {number} has a different number of cells than the header.")
        yield number, row


def number(line: int, row: Line, column: str) -> float:
    """Return the cell as a finite number ≥ 0."""
    try:
        value = float(row[column])
    except ValueError:
        raise InputError(f"line {line}: {column} = {row[column]!r} is not a number.") from None
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"line {line}: {column} must be finite and ≥ 0, got {row[column]!r}.")
    return value


def count(line: int, row: Line, column: str) -> int:
    """Return the cell as a whole number ≥ 1."""
    value = number(line, row, column)
    if value < 1 or value != int(value):
        raise InputError(f"line {line}: {column} must be a whole number ≥ 1, got {row[column]!r}.")
    return int(value)


def microseconds(line: int, row: Line, column: str = "us") -> float:
    """Return the cell as a time > 0."""
    value = number(line, row, column)
    if value == 0:
        raise InputError(f"line {line}: {column} must be > 0.")
    return value


def gemm_csv(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read ``m,n,k,us``: C[m, n] = x[m, k]·W[n, k]ᵀ; further columns are ignored."""
    rows = [
        GemmRow(
            m=count(i, row, "m"), n=count(i, row, "n"), k=count(i, row, "k"),
            layout="forward", dtype=hints.dtype, accumulate=False, strides=(0, 0, 0),
            median_us=microseconds(i, row), spread_us=0.0, samples=1,
        )
        for i, row in records(data, ("m", "n", "k", "us"))
    ]  # fmt: skip
    return Imported(section="gemm", rows=merged(rows))


def collectives_csv(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read ``nccl_dtype,op_name,num_gpus,bytes,us`` on one node; leave out int8 and alltoall.

    int8 cannot use NVLink SHARP, so its times follow another curve than training's.
    """
    rows, skipped = [], 0
    for i, row in records(data, ("nccl_dtype", "op_name", "num_gpus", "bytes", "us")):
        if row["nccl_dtype"] == "int8" or row["op_name"] not in COLLECTIVES:
            skipped += 1
            continue
        rows.append(
            CollectiveRow(
                op=row["op_name"],  # type: ignore[arg-type]  # one of COLLECTIVES, checked above
                nodes=1, per_node=count(i, row, "num_gpus"), ctas=hints.ctas,
                bytes=count(i, row, "bytes"), median_us=microseconds(i, row),
            )
        )  # fmt: skip
    note = f"{skipped} rows of int8 or of other collectives left out" if skipped else ""
    return Imported(section="collectives", rows=merged(rows), note=note)


def eager_all_reduce_csv(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read ``num_workers,bytes,us``: all-reduce called from PyTorch, one node."""
    rows = [
        CollectiveRow(
            op="all_reduce", nodes=1, per_node=count(i, row, "num_workers"), ctas=hints.ctas,
            bytes=count(i, row, "bytes"), median_us=microseconds(i, row),
        )
        for i, row in records(data, ("num_workers", "bytes", "us"))
    ]  # fmt: skip
    return Imported(section="collectives", rows=merged(rows))


def busbw_csv(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read ``payload_bytes,algbw_GBps`` of an all-reduce; group by hint, else one node of 8."""
    rows = [
        CollectiveRow(
            op="all_reduce", nodes=hints.nodes or 1, per_node=hints.per_node or 8, ctas=hints.ctas,
            bytes=count(i, row, "payload_bytes"),
            median_us=count(i, row, "payload_bytes") / microseconds(i, row, "algbw_GBps") / 1e3,
        )
        for i, row in records(data, ("payload_bytes", "algbw_GBps"))
    ]  # fmt: skip
    return Imported(section="collectives", rows=merged(rows), note="times from algbw")


def cta_all_reduce_csv(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read ``freq_mhz,bytes,cta1 … cta32``: all-reduce ms by NCCL CTAs, at the highest clock."""
    lines = list(records(data, ("freq_mhz", "bytes")))
    clock = max(number(i, row, "freq_mhz") for i, row in lines)
    rows = [
        CollectiveRow(
            op="all_reduce", nodes=1, per_node=hints.per_node or 4, ctas=int(column[3:]),
            bytes=count(i, row, "bytes"), median_us=1e3 * microseconds(i, row, column),
        )
        for i, row in lines
        if number(i, row, "freq_mhz") == clock
        for column in row
        if column.startswith("cta") and row[column].strip()
    ]  # fmt: skip
    return Imported(section="collectives", rows=merged(rows), note=f"rows at {clock:g} MHz")


def attention_csv(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read ``src,batch_size,isl,num_heads,head_dim,us``: causal forward, median over collectors.

    Only FlashAttention-3 collectors (SGLang ≥ 0.5.9): older kernels are no upper bound for
    training, and vLLM's rows ran on uninitialised data.
    """
    collectors = ("sglang-0.5.9", "sglang-0.5.10", "sglang-0.5.14")
    rows, skipped = [], 0
    for i, row in records(data, ("src", "batch_size", "isl", "num_heads", "head_dim", "us")):
        if row["src"] not in collectors:
            skipped += 1
            continue
        heads = count(i, row, "num_heads")
        rows.append(
            AttentionRow(
                batch=count(i, row, "batch_size"), heads=heads, kv_heads=heads,
                seq=count(i, row, "isl"), head_dim=count(i, row, "head_dim"),
                dtype=hints.dtype, median_us=microseconds(i, row),
            )
        )  # fmt: skip
    note = f"{skipped} rows of other kernels left out" if skipped else ""
    return Imported(section="attention", rows=merged(rows), note=note)


def attention_pair_csv(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read ``batch,seqlen,deterministic,…,fa3_fwd_ms,fa3_bwd_ms``: 16 heads of 128, not causal."""
    columns = ("batch", "seqlen", "deterministic", "fa3_fwd_ms", "fa3_bwd_ms")
    directions: tuple[tuple[Literal["forward", "backward"], str], ...]
    directions = (("forward", "fa3_fwd_ms"), ("backward", "fa3_bwd_ms"))
    rows = [
        AttentionRow(
            batch=count(i, row, "batch"), heads=16, kv_heads=16, seq=count(i, row, "seqlen"),
            head_dim=128, causal=False, direction=direction, dtype=hints.dtype,
            median_us=1e3 * microseconds(i, row, column),
        )
        for i, row in records(data, columns)
        if row["deterministic"] == "False"
        for direction, column in directions
    ]  # fmt: skip
    return Imported(section="attention", rows=merged(rows), note="non-deterministic backward")


def _norm(t: int, tp: int, h: int, ffn: int) -> tuple[int, int]:
    return t * h, t * h


def _add(t: int, tp: int, h: int, ffn: int) -> tuple[int, int]:
    return 2 * t * h, t * h


def _swiglu(t: int, tp: int, h: int, ffn: int) -> tuple[int, int]:
    return 2 * t * ffn // tp, t * ffn // tp


def _rope(t: int, tp: int, h: int, ffn: int) -> tuple[int, int]:
    kv = h if h == 4096 else h // 8  # 7B has as many kv heads as heads, 70B one for eight
    return t * (h + kv) // tp, t * (h + kv) // tp


POINTWISE_ELEMENTS: dict[str, tuple[str, Callable[[int, int, int, int], tuple[int, int]]]] = {
    "input_layernorm": ("rmsnorm", _norm),
    "post_attention_layernorm": ("rmsnorm", _norm),
    "add": ("add", _add),
    "mlp_act": ("swiglu", _swiglu),
    "attn_rope": ("rope", _rope),
    "emb": ("embedding", _norm),
}


def pointwise_csv(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read ``op,num_tokens,num_tensor_parallel_workers,n_embd,n_expanded_embd,us``."""
    columns = ("op", "num_tokens", "num_tensor_parallel_workers", "n_embd", "n_expanded_embd", "us")
    rows: list[Any] = []  # times of Llama-2 in fp16
    for i, row in records(data, columns):
        if row["op"] not in POINTWISE_ELEMENTS:
            raise InputError(f"line {i}: unknown op {row['op']!r}.")
        name, elements = POINTWISE_ELEMENTS[row["op"]]
        read, written = elements(*(count(i, row, column) for column in columns[1:5]))
        rows.append(
            PointwiseRow(
                name=name, bytes_read=read * HALF_BYTES, bytes_written=written * HALF_BYTES,
                dtype=hints.dtype, median_us=microseconds(i, row),
            )
        )  # fmt: skip
    return Imported(section="pointwise", rows=merged(rows))
