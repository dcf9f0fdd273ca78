"""Structure of a trace.

HolisticTraceAnalysis itself is 500 MB with what it needs, too much for a test. Run by hand (0.5.0,
HTA_DISABLE_NS_ROUNDING=1), its overlap is ``hidden_comm_fraction`` to all digits that it prints.
"""

from __future__ import annotations

import bisect
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domino_tune.store.formats.chrome_trace import STREAMS, trace_bytes, write_trace
from simulator.errors import InputError
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import simulate
from simulator.schedule import EP, Timeline
from simulator.specs import MOE_DISPATCHERS, MoeDispatcher
from tests.support.pages import SLICED, case
from tests.unit.simulator.test_experts import case_of

Event = dict[str, Any]


def timelines() -> dict[str, Timeline]:
    on = case(dp=2, micros=2)
    plans = {"baseline": MEGATRON, "chosen": SLICED, "bound": NO_COMM}
    return {name: simulate(on, plan) for name, plan in plans.items()}


def ns(us: float) -> int:
    return round(us * 1000)


def events(data: bytes, kind: str) -> list[Event]:
    return [e for e in json.loads(data)["traceEvents"] if e["ph"] == kind]


def test_every_op_is_a_kernel_at_its_time() -> None:
    shown = timelines()
    kernels = events(trace_bytes(shown), "X")
    for pid, timeline in enumerate(shown.values()):
        mine = [e for e in kernels if e["pid"] == pid]
        assert [ns(e["ts"]) for e in mine] == list(timeline.start_ns)
        assert [ns(e["ts"] + e["dur"]) for e in mine] == list(timeline.end_ns)
        for event, op in zip(mine, timeline.ops, strict=True):
            assert op.name in event["name"]
            assert event["args"]["slice"] == op.slice


@pytest.mark.parametrize("dispatcher", MOE_DISPATCHERS)
def test_experts_have_a_stream_of_their_own(dispatcher: MoeDispatcher) -> None:
    on = case_of(moe_dispatcher=dispatcher)
    kernels = events(trace_bytes({"experts": simulate(on, MEGATRON)}), "X")
    moved = [event for event in kernels if event["tid"] == STREAMS[EP]]
    each = 6 if dispatcher == "alltoall" else 4  # probabilities and their gradients move apart
    assert len(moved) == each * on.model.num_hidden_layers
    assert all(event["name"].startswith("ncclDevKernel_") for event in moved)


def test_rivals_copies_have_names() -> None:
    plan = replace(MEGATRON, strategy="userbuffers", sequence_parallel=True)
    names = [event["name"] for event in events(trace_bytes({"rival": simulate(case(), plan)}), "X")]
    assert any(name.startswith("ncclDevKernel_peer_copy") for name in names)


def test_rules_of_holistic_trace_analysis() -> None:
    data = trace_bytes(timelines())
    assert b'"rank": 0' in data
    kernels = events(data, "X")
    assert {e["cat"] for e in kernels} == {"kernel"}
    assert b"ProfilerStep" not in data
    for event in kernels:
        assert isinstance(event["args"]["stream"], int)
        assert event["tid"] == event["args"]["stream"]
        comm = event["args"]["kind"] == "collective"
        assert event["name"].startswith("ncclDevKernel_") == comm
        assert comm or not re.search("memcpy|memset|dma|sync|nccl", event["name"].lower())


def test_one_lane_one_thread_without_overlap() -> None:
    shown = timelines()
    data = trace_bytes(shown)
    last: dict[tuple[int, int], float] = {}
    for event in events(data, "X"):
        lane = event["pid"], event["tid"]
        assert event["ts"] >= last.get(lane, 0.0) - 1e-6
        last[lane] = event["ts"] + event["dur"]
    named = {(e["pid"], e["tid"]) for e in events(data, "M") if e["name"] == "thread_name"}
    assert set(last) <= named
    names = [e["args"]["name"] for e in events(data, "M") if e["name"] == "process_name"]
    assert names == list(shown)


def test_processes_keep_their_order_and_have_their_names_on_thread_0() -> None:
    shown = timelines()
    named = [e for e in events(trace_bytes(shown), "M") if e["name"].startswith("process_")]
    assert [(e["pid"], e["tid"], e["name"], e["args"]) for e in named] == [
        one
        for pid, name in enumerate(shown)
        for one in (
            (pid, 0, "process_name", {"name": name}),
            (pid, 0, "process_sort_index", {"sort_index": pid}),
        )
    ]


def test_overlap_read_from_the_trace_is_the_breakdown() -> None:
    timeline = timelines()["chosen"]
    compute: set[int] = set()
    comm: set[int] = set()
    for event in events(trace_bytes({"chosen": timeline}), "X"):
        # In 100 ns steps: coarse, and independent of the interval arithmetic of the timeline.
        steps = range(ns(event["ts"]) // 100, ns(event["ts"] + event["dur"]) // 100)
        (comm if event["name"].startswith("nccl") else compute).update(steps)
    hidden = len(compute & comm) / len(comm)
    assert hidden == pytest.approx(timeline.breakdown.hidden_comm_fraction, abs=2e-3)


@pytest.mark.parametrize("plan", [MEGATRON, SLICED, SlicePlan(row_slices=4, mlp_col_slices=2)])
def test_arrows_lead_to_each_all_reduce_and_to_its_first_reader(plan: SlicePlan) -> None:
    data = trace_bytes({"a": simulate(case(), plan), "b": simulate(case(), plan)})
    starts = {e["id"]: e for e in events(data, "s")}
    ends = {e["id"]: e for e in events(data, "f")}
    assert len(starts) == len(events(data, "s"))
    assert starts.keys() == ends.keys()
    lanes: dict[tuple[int, int], list[Event]] = {}
    for event in events(data, "X"):
        lanes.setdefault((event["pid"], event["tid"]), []).append(event)

    def holder(arrow: Event) -> Event:
        lane = lanes[arrow["pid"], arrow["tid"]]
        at = bisect.bisect_right([ns(e["ts"]) for e in lane], ns(arrow["ts"])) - 1
        assert ns(arrow["ts"]) < ns(lane[at]["ts"] + lane[at]["dur"])
        return lane[at]

    pairs = [(holder(starts[i]), holder(ends[i])) for i in starts]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 and a["pid"] == b["pid"] for a, b in pairs)
    assert all(e["bp"] == "e" for e in ends.values())
    collectives = [e["args"]["correlation"] for e in events(data, "X") if "nccl" in e["name"]]
    into = [b["args"]["correlation"] for _, b in pairs if "nccl" in b["name"]]
    out = [a["args"]["correlation"] for a, _ in pairs if "nccl" in a["name"]]
    assert sorted(into) == sorted(collectives)
    assert sorted(out) == sorted(collectives)


def test_written_whole_and_the_same_each_time(tmp_path: Path) -> None:
    shown = {"chosen": simulate(case(), SLICED)}
    write_trace(tmp_path / "a.json", shown)
    write_trace(tmp_path / "a.json.gz", shown)
    write_trace(tmp_path / "b.json.gz", shown)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    unpacked = gzip.decompress((tmp_path / "a.json.gz").read_bytes())
    assert unpacked == (tmp_path / "a.json").read_bytes()
    with pytest.raises(InputError, match="Cannot write"):
        write_trace(tmp_path / "no" / "a.json", shown)
    with pytest.raises(InputError, match="at least one timeline"):
        write_trace(tmp_path / "c.json", {})
    assert len(list(tmp_path.iterdir())) == 3
