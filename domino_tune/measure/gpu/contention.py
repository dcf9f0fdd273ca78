"""Contention on one GPU, by CTA count: ops while emulated collectives run without a pause.

A cell is an op and collectives of C CTAs that move bytes at some rate. Its result is the slowdown
of each op while collectives run all the time, and of each collective while ops do.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F

from domino_tune.runtime.head_start import HeadStart
from domino_tune.runtime.lanes.call import all_reduce
from domino_tune.runtime.lanes.emulated import EmulatedStreamLane, Wire
from domino_tune.runtime.lanes.pace import MOVED_PER_BYTE, Pace
from domino_tune.runtime.lanes.streams import HIGH_PRIORITY, StreamHandle
from domino_tune.runtime.ops.layers import add_product

CTAS: Final = (1, 2, 4, 8, 16, 32)
BYTES_PER_NS_PER_CTA: Final = (0.0, 40.0)
"""Through HBM. 0 takes SMs but no bandwidth; 40 with 16 CTAs is about what an all-reduce of
280 GB/s (algorithm bandwidth) over NVSwitch reads and writes."""
COLLECTIVE_NS: Final = 150_000
OPS_NS: Final = 2_500_000
"""Time of the ops of one cell, alone."""
COVER: Final = 1.8
SETS: Final = 3
"""Sets of operands that an op uses in turn, so that its operands are not in the cache."""
GEMMS: Final = (
    (8192, 1920, 5120), (8192, 5120, 640), (8192, 2560, 5120), (8192, 5120, 2560),
    (4096, 7168, 8192), (4096, 8192, 3584), (2048, 2560, 5120), (2048, 5120, 2560),
    (16384, 2752, 4096),
)  # fmt: skip
"""tokens, out, in: layers of GPT-3 13B, Llama-2 70B and 7B at TP 8."""

Work = Callable[[int], object]
Spans = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of an op, with its sizes in ``shape``, and a collective."""

    family: str
    name: str
    shape: tuple[int, ...]
    ctas: int
    rate: float
    priority: int = HIGH_PRIORITY
    collective_first: bool = True


def ops() -> Iterator[tuple[str, str, tuple[int, ...], Callable[[], Work]]]:
    """Yield (family, name, shape, maker of its work) of every op; work takes the call's number."""
    for tokens, out, wide in GEMMS:
        for layout in ("forward", "dgrad", "wgrad"):
            yield "gemm", layout, (tokens, out, wide), _gemm(layout, tokens, out, wide)
    for batch, heads, seq in ((4, 5, 2048), (1, 8, 4096)):
        for direction in ("forward", "backward"):
            yield (
                "attention",
                direction,
                (batch, heads, seq, 128),
                _attention(direction, batch, heads, seq),
            )
    for tokens, wide in ((8192, 5120), (4096, 8192)):
        for name in ("layernorm", "gelu", "add"):
            yield "pointwise", name, (tokens, wide), _pointwise(name, tokens, wide)


def _gemm(layout: str, tokens: int, out: int, wide: int) -> Callable[[], Work]:
    def make() -> Work:
        x, dy, weight = (
            [_random(rows, columns) for _ in range(SETS)]
            for rows, columns in ((tokens, wide), (tokens, out), (out, wide))
        )
        gradient = torch.zeros(out, wide, device="cuda")

        def work(call: int) -> object:
            i = call % SETS
            if layout == "forward":
                return F.linear(x[i], weight[i])
            if layout == "dgrad":
                return dy[i] @ weight[i]
            add_product(gradient, [(dy[i], x[i])], accumulate=True)
            return None

        return work

    return make


def _attention(direction: str, batch: int, heads: int, seq: int) -> Callable[[], Work]:
    def make() -> Work:
        leaves = [
            [_random(batch, heads, seq, 128).requires_grad_() for _ in range(3)]
            for _ in range(SETS)
        ]
        results = [_attend(qkv) for qkv in leaves]
        upstream = torch.randn_like(results[0])

        def work(call: int) -> object:
            i = call % SETS
            if direction == "forward":
                with torch.no_grad():
                    return _attend(leaves[i])
            return torch.autograd.grad(results[i], leaves[i], upstream, retain_graph=True)

        return work

    return make


def _attend(qkv: list[torch.Tensor]) -> torch.Tensor:
    return F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)


def _pointwise(name: str, tokens: int, wide: int) -> Callable[[], Work]:
    def make() -> Work:
        x, y = ([_random(tokens, wide) for _ in range(SETS)] for _ in range(2))
        weight, bias = _random(wide), _random(wide)

        def work(call: int) -> object:
            i = call % SETS
            if name == "layernorm":
                return torch.native_layer_norm(x[i], (wide,), weight, bias, 1e-5)
            return F.gelu(x[i], approximate="tanh") if name == "gelu" else x[i] + y[i]

        return work

    return make


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


class Arena:
    """Plays ops and collectives concurrently, the host ahead of both."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.head_start = HeadStart(spin_ns=6_000_000)
        self.was_late = False

    def ops_alone(self, work: Work) -> float:
        """Return the median ns of one call, with calls back to back."""
        calls = 12
        for call in range(3):
            work(call)
        spans, _ = self._play(work, calls, None, 0)
        calls = max(12, min(120, round(OPS_NS / statistics.median(_lengths(spans)))))
        spans, _ = self._play(work, calls, None, 0)
        return statistics.median(_lengths(spans))

    def collectives_alone(self, cell: Cell) -> float:
        """Return the median ns of the cell's collective."""
        _, spans = self._play(None, 0, self._lane(cell), 12)
        return statistics.median(_lengths(spans)[1:])

    def concurrent(
        self, cell: Cell, work: Work, alone_ns: float, collective_ns: float
    ) -> dict[str, Any]:
        """Play both concurrently; return the median ns of those wholly during the others."""
        calls = max(8, min(100, round(OPS_NS / alone_ns)))
        count = max(4, round(COVER * calls * alone_ns / collective_ns))
        ops_spans, comm_spans = self._play(
            work, calls, self._lane(cell), min(count, 120), first=cell.collective_first
        )
        ops_in = _inside(ops_spans, comm_spans)
        comm_in = _inside(comm_spans, ops_spans)
        return {
            "op_ns": statistics.median(_lengths(ops_in)) if ops_in else None,
            "op_mean_ns": statistics.fmean(_lengths(ops_in)) if ops_in else None,
            "collective_ns": statistics.median(_lengths(comm_in)) if comm_in else None,
            "ops": len(ops_in),
            "collectives": len(comm_in),
        }

    def _lane(self, cell: Cell) -> EmulatedStreamLane:
        pace = Pace(COLLECTIVE_NS, cell.ctas)
        lane = EmulatedStreamLane(lambda _: pace, self.wire, cell.priority)
        moved = max(1, round(cell.rate * cell.ctas * COLLECTIVE_NS))
        self.size_bytes = max(4, moved // MOVED_PER_BYTE)
        return lane

    def _play(
        self, work: Work | None, calls: int, lane: EmulatedStreamLane | None, collectives: int,
        *, first: bool = True,
    ) -> tuple[Spans, Spans]:  # fmt: skip
        """Return (start, end) in ns of every op and every collective; try again while the host is
        late."""
        spans: tuple[Spans, Spans] = ([], [])
        for _ in range(6):
            spans = self._try(work, calls, lane, collectives, first=first)
            if not self.was_late:
                break
        return spans

    def _try(
        self, work: Work | None, calls: int, lane: EmulatedStreamLane | None, collectives: int,
        *, first: bool,
    ) -> tuple[Spans, Spans]:  # fmt: skip
        torch.cuda.synchronize()
        origin = _event()
        self.head_start.give()
        origin.record()
        handles = self._send(lane, collectives, origin) if first else []
        ticks = [_recorded()]
        for call in range(calls if work else 0):
            assert work is not None
            work(call)
            ticks.append(_recorded())
        if not first:
            handles = self._send(lane, collectives, origin)
        self.was_late = self.head_start.check()
        torch.cuda.synchronize()
        moments = [1e6 * float(origin.elapsed_time(tick)) for tick in ticks]
        sent = [
            (1e6 * origin.elapsed_time(h.start), 1e6 * origin.elapsed_time(h.end)) for h in handles
        ]
        return list(pairwise(moments)), sent

    def _send(
        self, lane: EmulatedStreamLane | None, count: int, after: torch.cuda.Event
    ) -> list[StreamHandle]:
        """Send collectives that wait for the head start only, not for ops issued before them."""
        if lane is None:
            return []
        handles = []
        pace = lane.pace_of(all_reduce(torch.empty(0)))
        stream = lane.queue.stream
        stream.wait_event(after)
        for _ in range(count):
            start, end = _event(), _event()
            with torch.cuda.stream(stream):
                start.record()
                self.wire.carry(MOVED_PER_BYTE * self.size_bytes, pace)
                end.record()
            handles.append(StreamHandle("probe", start, end, None))
        return handles


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _recorded() -> torch.cuda.Event:
    event = _event()
    event.record()
    return event


def _lengths(spans: Spans) -> list[float]:
    return [end - start for start, end in spans]


def _inside(spans: Spans, others: Spans) -> Spans:
    """Return the spans wholly between the first other's start and the last other's end."""
    first, last = others[0][0], others[-1][1]
    return [(start, end) for start, end in spans if first <= start and end <= last]


def cells_of(family: str, name: str, shape: tuple[int, ...]) -> Iterator[Cell]:
    """Yield the grid of one op; only a few cells vary order and priority."""
    for rate in BYTES_PER_NS_PER_CTA:
        for ctas in CTAS:
            yield Cell(family=family, name=name, shape=shape, ctas=ctas, rate=rate)
    for ctas in (8, 32):
        for priority, first in ((0, True), (HIGH_PRIORITY, False), (0, False)):
            yield Cell(
                family=family, name=name, shape=shape, ctas=ctas, rate=BYTES_PER_NS_PER_CTA[-1],
                priority=priority, collective_first=first,
            )  # fmt: skip


def contention_rows(spent: Callable[[], bool], done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield a row per op: alone, and with every collective of its cells."""
    arena = Arena()
    collectives: dict[tuple[int, float, int], float] = {}
    for family, name, shape, make in ops():
        case = f"{family}/{name}/{'x'.join(map(str, shape))}"
        if case in done:
            continue
        if spent():
            return
        work = make()
        alone_ns = arena.ops_alone(work)
        rows = []
        for cell in cells_of(family, name, shape):
            key = cell.ctas, cell.rate, cell.priority
            if key not in collectives:
                collectives[key] = arena.collectives_alone(cell)
            found = arena.concurrent(cell, work, alone_ns, collectives[key])
            rows.append({**asdict(cell), "collective_alone_ns": collectives[key], **found})
        again_ns = arena.ops_alone(work)
        yield {
            "case": case, "family": family, "name": name, "shape": list(shape),
            "alone_ns": alone_ns, "alone_again_ns": again_ns, "cells": rows, "complete": True,
        }  # fmt: skip
