"""Plain CSV tables: our own (m,n,k,us) and those that others have published."""

from __future__ import annotations

import csv
import inspect
import math
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, Literal

from domino_tune.measure.importers.imported import (
    MOST_COUNT,
    Found,
    Hints,
    Importer,
    SectionName,
    brief,
    lines_of,
    text_of,
)
from simulator.errors import InputError
from simulator.lookup.attention import AttentionRow
from simulator.lookup.collective_law import COLLECTIVES
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import PointwiseRow

Line = dict[str, str]
Lines = Iterator[tuple[int, Line]]
CsvReader = Callable[[Lines, Hints], Found]
HALF_BYTES = 2
SEPARATORS: Final = ",;\t"
MOST_SHOWN: Final = 12
"""Most columns that a message lists."""
CTA_COLUMNS: Final = "cta1 … cta99"
_CTAS: Final = re.compile(r"cta[1-9][0-9]?")


def csv_importer(
    section: SectionName, *columns: str, series: str = ""
) -> Callable[[CsvReader], Importer]:
    """Return a decorator: it makes an importer of a function from a CSV's lines to rows and note.

    The function's docstring says what the format is; ``columns`` and ``series``: see Importer.
    """

    def made(read: CsvReader) -> Importer:
        return Importer(
            section=section,
            read=lambda data, hints: read(records(data, columns), hints),
            columns=columns,
            series=series,
            about=inspect.getdoc(read) or "",
        )

    return made


def records(data: bytes, columns: tuple[str, ...]) -> Lines:
    """Yield (line number, row) of a CSV with at least these columns; ``#`` lines are comments.

    The header's separator counts: a comma, semicolon or tab.
    """
    number = 0

    def content() -> Iterator[str]:
        nonlocal number
        for at, line in lines_of(text_of(data)):
            if line.strip() and line[0] != "#":
                number = at
                yield line

    lines = content()
    header = next(lines, "")
    reader = csv.reader(
        chain([header], lines), strict=True, skipinitialspace=True,
        delimiter=max(SEPARATORS, key=header.count),
    )  # fmt: skip
    try:
        names = [name.strip() for name in next(reader)]
        _check_header(names, columns)
        empty = True
        for cells in reader:
            if len(cells) != len(names):
                raise InputError(f"line {number} has a different number of cells than the header.")
            yield number, dict(zip(names, cells, strict=True))
            empty = False
    except csv.Error as error:
        raise InputError(f"line {number} is not CSV: {error}.") from None
    if empty:
        raise InputError("The table is empty: a header and at least one row are needed.")


def _check_header(names: list[str], columns: tuple[str, ...]) -> None:
    shown = ", ".join(brief(name) for name in names[:MOST_SHOWN])
    shown += ", …" if len(names) > MOST_SHOWN else ""
    missing = [name for name in columns if name not in names]
    if missing and any(names):
        raise InputError(f"The table has no column {', '.join(missing)}; it has {shown}.")
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise InputError(f"Column {brief(twice[0])} stands twice in the header; remove one.")


def number(line: int, row: Line, column: str) -> float:
    """Return the cell as a finite number ≥ 0."""
    try:
        value = float(row[column])
    except ValueError:
        cell = brief(row[column])
        raise InputError(f"line {line}: {column} = {cell} is not a number.") from None
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"line {line}: {column} must be finite and ≥ 0, got {brief(row[column])}.")
    return value


def count(line: int, row: Line, column: str) -> int:
    """Return the cell as a whole number ≥ 1."""
    value = number(line, row, column)
    if not 1 <= value <= MOST_COUNT or value != int(value):
        cell = brief(row[column])
        raise InputError(f"line {line}: {column} must be a whole number ≥ 1, got {cell}.")
    return int(value)


def microseconds(line: int, row: Line, column: str = "us") -> float:
    """Return the cell as a time > 0."""
    value = number(line, row, column)
    if value == 0:
        raise InputError(f"line {line}: {column} must be > 0.")
    return value


@csv_importer("gemm", "m", "n", "k", "us")
def gemm_csv(lines: Lines, hints: Hints) -> Found:
    """C[m, n] = x[m, k]·W[n, k]ᵀ: m tokens, n outputs, k inputs."""
    return [
        (
            f"line {i}",
            GemmRow(
                m=count(i, row, "m"), n=count(i, row, "n"), k=count(i, row, "k"),
                layout="forward", dtype=hints.dtype, accumulate=False, strides=(0, 0, 0),
                median_us=microseconds(i, row), spread_us=0.0, samples=1,
            ),
        )
        for i, row in lines
    ], ""  # fmt: skip


@csv_importer("collectives", "nccl_dtype", "op_name", "num_gpus", "bytes", "us")
def collectives_csv(lines: Lines, hints: Hints) -> Found:
    """Collectives on one node; bytes of the full tensor; int8 and alltoall are left out."""
    rows, skipped = [], 0
    for i, row in lines:
        # int8 cannot use NVLink SHARP, so its times follow another curve than training's.
        if row["nccl_dtype"] == "int8" or row["op_name"] not in COLLECTIVES:
            skipped += 1
        else:
            rows.append(_collective(i, row, hints, op=row["op_name"], per_node="num_gpus"))
    return rows, f"{skipped} rows of int8 or of other collectives left out" if skipped else ""


@csv_importer("collectives", "num_workers", "bytes", "us")
def eager_all_reduce_csv(lines: Lines, hints: Hints) -> Found:
    """All-reduces called from PyTorch, on one node."""
    return [_collective(i, row, hints, per_node="num_workers") for i, row in lines], ""


def _collective(
    line: int, row: Line, hints: Hints, *, per_node: str, op: str = "all_reduce"
) -> tuple[str, CollectiveRow]:
    """Return a row of one node; ``per_node`` names the column of its ranks."""
    return f"line {line}", CollectiveRow(
        op=op,  # type: ignore[arg-type]  # one of COLLECTIVES, which the caller checks
        nodes=1, per_node=count(line, row, per_node), ctas=hints.ctas,
        bytes=count(line, row, "bytes"), median_us=microseconds(line, row),
    )  # fmt: skip


@csv_importer("collectives", "payload_bytes", "algbw_GBps")
def busbw_csv(lines: Lines, hints: Hints) -> Found:
    """Bandwidths of an all-reduce, on one node of 8 ranks if no option says otherwise."""
    return [
        (
            f"line {i}",
            CollectiveRow(
                op="all_reduce", nodes=hints.nodes or 1, per_node=hints.per_node or 8,
                ctas=hints.ctas, bytes=count(i, row, "payload_bytes"),
                median_us=count(i, row, "payload_bytes") / microseconds(i, row, "algbw_GBps") / 1e3,
            ),
        )
        for i, row in lines
    ], "times from algbw"  # fmt: skip


@csv_importer("collectives", "freq_mhz", "bytes", series=CTA_COLUMNS)
def cta_all_reduce_csv(lines: Lines, hints: Hints) -> Found:
    """All-reduces on one node by NCCL CTAs: ms in one column per CTA count; highest clock only."""
    table = list(lines)
    columns = [column for column in table[0][1] if _CTAS.fullmatch(column)]
    if not columns:
        raise InputError(f"The table has no column of times; at least one of {CTA_COLUMNS}.")
    clock = max(number(i, row, "freq_mhz") for i, row in table)
    return [
        (
            f"line {i}",
            CollectiveRow(
                op="all_reduce", nodes=1, per_node=hints.per_node or 4, ctas=int(column[3:]),
                bytes=count(i, row, "bytes"), median_us=1e3 * microseconds(i, row, column),
            ),
        )
        for i, row in table
        if number(i, row, "freq_mhz") == clock
        for column in columns
        if row[column].strip()
    ], f"rows at {clock:g} MHz"  # fmt: skip


@csv_importer("attention", "src", "batch_size", "isl", "num_heads", "head_dim", "us")
def attention_csv(lines: Lines, hints: Hints) -> Found:
    """Causal forward; src must be one of sglang-0.5.9, -0.5.10, -0.5.14."""
    # These collectors ran FlashAttention-3. Older kernels are no upper bound for training, and
    # vLLM's rows ran on uninitialised data.
    collectors = ("sglang-0.5.9", "sglang-0.5.10", "sglang-0.5.14")
    rows, skipped = [], 0
    for i, row in lines:
        if row["src"] not in collectors:
            skipped += 1
            continue
        heads = count(i, row, "num_heads")
        found = AttentionRow(
            batch=count(i, row, "batch_size"), heads=heads, kv_heads=heads,
            seq=count(i, row, "isl"), head_dim=count(i, row, "head_dim"),
            dtype=hints.dtype, median_us=microseconds(i, row),
        )  # fmt: skip
        rows.append((f"line {i}", found))
    return rows, f"{skipped} rows of other kernels left out" if skipped else ""


@csv_importer("attention", "batch", "seqlen", "deterministic", "fa3_fwd_ms", "fa3_bwd_ms")
def attention_pair_csv(lines: Lines, hints: Hints) -> Found:
    """Forward and backward of 16 heads of 128, not causal; rows with deterministic False only."""
    directions: tuple[tuple[Literal["forward", "backward"], str], ...]
    directions = (("forward", "fa3_fwd_ms"), ("backward", "fa3_bwd_ms"))
    return [
        (
            f"line {i}",
            AttentionRow(
                batch=count(i, row, "batch"), heads=16, kv_heads=16, seq=count(i, row, "seqlen"),
                head_dim=128, causal=False, direction=direction, dtype=hints.dtype,
                median_us=1e3 * microseconds(i, row, column),
            ),
        )
        for i, row in lines
        if row["deterministic"] == "False"
        for direction, column in directions
    ], "non-deterministic backward"  # fmt: skip


def _norm(t: int, tp: int, h: int, ffn: int) -> tuple[int, int]:
    return t * h, t * h


def _rope(t: int, tp: int, h: int, ffn: int) -> tuple[int, int]:
    kv = h if h == 4096 else h // 8  # 7B has as many kv heads as heads, 70B one for eight
    return t * (h + kv) // tp, t * (h + kv) // tp


POINTWISE_ELEMENTS: dict[str, tuple[str, Callable[[int, int, int, int], tuple[int, int]]]] = {
    "input_layernorm": ("rmsnorm", _norm),
    "post_attention_layernorm": ("rmsnorm", _norm),
    "add": ("add", lambda t, tp, h, ffn: (2 * t * h, t * h)),
    "mlp_act": ("swiglu", lambda t, tp, h, ffn: (2 * t * ffn // tp, t * ffn // tp)),
    "attn_rope": ("rope", _rope),
    "emb": ("embedding", _norm),
}


@csv_importer(
    "pointwise", "op", "num_tokens", "num_tensor_parallel_workers", "n_embd", "n_expanded_embd",
    "us",
)  # fmt: skip
def pointwise_csv(lines: Lines, hints: Hints) -> Found:
    """Norms, adds, SwiGLU, RoPE and embeddings of Llama-2 in 16 bits, forward."""
    sizes = ("num_tokens", "num_tensor_parallel_workers", "n_embd", "n_expanded_embd")
    rows: list[tuple[str, Any]] = []
    for i, row in lines:
        if row["op"] not in POINTWISE_ELEMENTS:
            known = ", ".join(POINTWISE_ELEMENTS)
            raise InputError(f"line {i}: unknown op {brief(row['op'])}; known: {known}.")
        name, elements = POINTWISE_ELEMENTS[row["op"]]
        read, written = elements(*(count(i, row, column) for column in sizes))
        found = PointwiseRow(
            name=name, bytes_read=read * HALF_BYTES, bytes_written=written * HALF_BYTES,
            dtype=hints.dtype, median_us=microseconds(i, row),
        )  # fmt: skip
        rows.append((f"line {i}", found))
    return rows, ""
