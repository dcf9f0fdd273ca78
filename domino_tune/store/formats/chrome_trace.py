"""Chrome trace: timelines as JSON that Perfetto, chrome://tracing and HolisticTraceAnalysis read.

HolisticTraceAnalysis reads one file a rank in a folder of its own, so give it a trace of one
timeline; Perfetto shows several timelines as processes. The format follows the rules of
HolisticTraceAnalysis: a literal ``"rank": 0``, category ``kernel``, integer stream, NCCL's kernel
names.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from domino_tune.store.files import write_whole
from simulator.errors import InputError
from simulator.ops import Collective, Signature
from simulator.schedule import COMPUTE, LANES, Op, Timeline

Event = dict[str, Any]
STREAMS: Final = (7, 20, 24, 28, 32)
"""Stream of each lane: compute on that which PyTorch profiles usually show, then TP, DP, CP, EP."""
NCCL_NAMES: Final = {
    "all_reduce": "AllReduce_Sum",
    "reduce_scatter": "ReduceScatter_Sum",
    "all_gather": "AllGather",
    "broadcast": "Broadcast",
    "send_recv": "SendRecv",
    "all_to_all": "SendRecv",
}
"""Collective -> NCCL's word for it; others go by their own."""


def write_trace(path: str | Path, timelines: Mapping[str, Timeline]) -> None:
    """Write ``timelines`` (name → timeline) as a Chrome trace.

    The same timelines give the same bytes. Raise InputError where there is no timeline, or where
    ``path`` cannot be written; then no file changes.
    """
    write_trace_bytes(path, trace_bytes(timelines))


def write_trace_bytes(path: str | Path, data: bytes) -> None:
    """Write the bytes of a trace, gzipped where ``path`` ends in .gz. Raise InputError."""
    write_whole(path, gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def trace_bytes(timelines: Mapping[str, Timeline]) -> bytes:
    """Return the trace as JSON, one event a line. Raise InputError where there is no timeline."""
    if not timelines:
        raise InputError("A trace needs at least one timeline, got none.")
    flow = 0
    lines = []
    for pid, (name, timeline) in enumerate(timelines.items()):
        events = [*_names(pid, name, timeline), *_kernels(pid, timeline)]
        arrows = list(_flows(pid, timeline, flow))
        flow += len(arrows) // 2
        lines += [json.dumps(event, separators=(",", ":")) for event in [*events, *arrows]]
    head = '{"schemaVersion":1,"distributedInfo":{"backend":"nccl","rank": 0,"world_size":1},'
    body = ",\n".join(lines)
    return f'{head}\n"displayTimeUnit":"ms",\n"traceEvents":[\n{body}\n]}}\n'.encode()


def event_name(op: Op) -> str:
    """Return the name of an op's event: the op's, after a kernel's name for a collective, which
    begins as NCCL's do, so that tools find it."""
    if not isinstance(op.signature, Collective):
        return op.name
    kernel = NCCL_NAMES.get(op.signature.op, op.signature.op)
    return f"ncclDevKernel_{kernel}_{op.signature.dtype} {op.name}"


def _names(pid: int, name: str, timeline: Timeline) -> Iterator[Event]:
    yield _meta(pid, 0, "process_name", {"name": name})
    yield _meta(pid, 0, "process_sort_index", {"sort_index": pid})
    for lane in timeline.schedule.lanes():
        stream = STREAMS[lane]
        label = "compute" if lane == COMPUTE else f"{LANES[lane].upper()} communication"
        yield _meta(pid, stream, "thread_name", {"name": f"stream {stream} {label}"})
        yield _meta(pid, stream, "thread_sort_index", {"sort_index": stream})


def _meta(pid: int, tid: int, kind: str, args: Event) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _kernels(pid: int, timeline: Timeline) -> Iterator[Event]:
    spans = zip(timeline.ops, timeline.start_ns, timeline.end_ns, strict=True)
    for index, (op, start, end) in enumerate(spans):
        stream = STREAMS[op.lane]
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": event_name(op),
            "pid": pid,
            "tid": stream,
            "ts": start / 1000,
            "dur": (end - start) / 1000,
            "args": {
                "stream": stream,
                "device": pid,
                "correlation": index + 1,
                "layer": op.layer,
                "slice": op.slice,
                "role": op.role,
                **_shape(op.signature),
            },
        }


def _shape(signature: Signature) -> Event:
    values = signature._asdict()
    if isinstance(signature, Collective):
        values["ranks"] = signature.ranks
    return {"kind": signature.kind, **{key: value for key, value in values.items() if value != ""}}


def _flows(pid: int, timeline: Timeline, first: int) -> Iterator[Event]:
    """Yield arrows from the op that wrote a value to its all-reduce, and on to its first reader.

    An arrow is a start and a finish event; both bind to the slice that encloses them.
    """
    writer: dict[str, int] = {}
    arrived: set[int] = set()
    number = first
    for index, op in enumerate(timeline.ops):
        for value in op.reads:
            source = writer.get(value)
            if source is None:
                continue
            to_collective = op.lane != COMPUTE and timeline.ops[source].lane == COMPUTE
            from_collective = op.lane == COMPUTE and timeline.ops[source].lane != COMPUTE
            if to_collective or (from_collective and source not in arrived):
                arrived |= {source} if from_collective else set()
                yield _arrow(pid, timeline, source, number, start=True)
                yield _arrow(pid, timeline, index, number, start=False)
                number += 1
        for value in op.writes:
            writer[value] = index


def _arrow(pid: int, timeline: Timeline, index: int, number: int, *, start: bool) -> Event:
    at = timeline.end_ns[index] - 1 if start else timeline.start_ns[index]
    event: Event = {
        "ph": "s" if start else "f",
        "cat": "dependency",
        "name": "waits for",
        "id": number,
        "pid": pid,
        "tid": STREAMS[timeline.ops[index].lane],
        "ts": at / 1000,
    }
    return event if start else {**event, "bp": "e"}
