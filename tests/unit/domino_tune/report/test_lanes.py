from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from domino_tune.report.data import MAX_OPS, cut_spans, drawn_ops, lanes_json
from domino_tune.report.page import report_html
from simulator.case import Case
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.schedule import COMPUTE, EP, Timeline
from simulator.specs import ClusterSpec, Workload
from tests.support.pages import case, report_data, shown
from tests.unit.simulator.test_experts import case_of


def unpacked(line: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """(role, layer, start, end) of every op, read as the page's script reads them."""
    last: dict[int, int] = {}
    found = []
    columns = (line["ops"][key] for key in "tlgd")
    for template, layer, gap, length in zip(*columns, strict=True):
        _, role, _, _, lane, *_ = line["templates"][template]
        start = last.get(lane, 0) + gap
        last[lane] = start + length
        found.append((role, layer, start, last[lane]))
    return found


def written(timeline: Timeline) -> list[tuple[str, int, int, int]]:
    times = zip(timeline.ops, timeline.start_ns, timeline.end_ns, strict=True)
    return [(op.role, op.layer, start, end) for op, start, end in times]


def large_case() -> Case:
    return Case(
        model=MODELS["gpt3-175b"],
        workload=Workload(seq_length=2048, micro_batch_size=4),
        cluster=ClusterSpec(tp=8),
        profile=case().profile,
    )


def test_script_reads_every_op_at_its_time() -> None:
    data = report_data(case(dp=2, micros=2))
    plain = json.loads(lanes_json(data))
    for line, item in zip(
        plain["timelines"], (data.baseline, data.chosen, data.bound), strict=True
    ):
        assert unpacked(line) == written(item.timeline)
        assert line["end"] == item.timeline.makespan_ns
        assert line["cuts"] == []


def test_every_lane_has_a_label() -> None:
    plain = json.loads(lanes_json(report_data(case_of())))
    labels = {lane: plain["laneNames"][lane] for lane in plain["timelines"][0]["lanes"]}
    assert labels[EP] == "expert parallel"
    assert labels[COMPUTE] == "compute"


def test_views_open_on_a_middle_layer() -> None:
    data = report_data(case())
    forward, backward, whole = json.loads(lanes_json(data))["views"]
    timeline = data.chosen.timeline
    norms = {op.name: start for op, start in zip(timeline.ops, timeline.start_ns, strict=True)}
    assert forward["layer"] == 3
    assert forward["origins"][1] == norms["l3.s0.attn.norm"]
    assert backward["origins"][1] > forward["origins"][1]
    low, high = whole["window"]
    assert low < 0
    assert high > data.baseline.timeline.makespan_ns


def test_long_timelines_keep_some_layers_and_say_so() -> None:
    sliced = SlicePlan(
        row_slices=4, attn_col_slices=4, mlp_col_slices=4, order="intra", wgrad="eager"
    )
    on = large_case()
    data = report_data(on, sliced)
    timeline = data.chosen.timeline
    drawn = drawn_ops(timeline)
    assert MAX_OPS / 2 < len(drawn) <= MAX_OPS < len(timeline.ops)
    layers = {timeline.ops[index].layer for index in drawn}
    assert {0, 48, 95} <= layers
    spans = cut_spans(timeline, drawn)
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    dropped = set(range(len(timeline.ops))) - set(drawn)
    assert all(
        any(low <= timeline.start_ns[i] and timeline.end_ns[i] <= high for low, high in spans)
        for i in list(dropped)[::50]
    )
    line = json.loads(lanes_json(data))["timelines"][1]
    everything = written(timeline)
    assert unpacked(line) == [everything[index] for index in drawn]
    page = report_html(data)
    assert "first, middle and last layers only" in page
    assert len(page.encode()) < 1_500_000


def test_short_timelines_are_drawn_whole() -> None:
    timeline = shown(case(), MEGATRON).timeline
    assert drawn_ops(timeline) == list(range(len(timeline.ops)))
    assert cut_spans(timeline, drawn_ops(timeline)) == []
    assert "first, middle and last" not in report_html(report_data(case()))
