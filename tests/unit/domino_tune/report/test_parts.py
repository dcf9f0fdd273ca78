from __future__ import annotations

import re
from dataclasses import replace

import pytest

from domino_tune.report import (
    KEY,
    TIE,
    Html,
    gib_text,
    ms_text,
    percent_text,
    plan_name,
    role_label,
    shape_text,
    size_text,
    tag,
    text,
)
from domino_tune.report.breakdown import NAMES, parts_ns, where_time_goes
from domino_tune.report.page import static
from domino_tune.report.plans import FAMILY_WORDS, crossover_sentence, heat_map
from domino_tune.results.shown import ORDER_WORDS, plan_words
from domino_tune.search.problem import TIE_PERCENT
from simulator.draws import FAMILIES
from simulator.ops import Attention, Collective, Gemm, Pointwise
from simulator.overlap import RIVAL_NAMES
from simulator.pipeline.build import PASSES
from simulator.plan import MEGATRON, NO_COMM, Compared, SlicePlan
from tests.support.pages import SLICED, case, cell, crossover, report_data, shown, trial, tuned


@pytest.mark.parametrize("plan", [MEGATRON, NO_COMM, SLICED, SlicePlan(row_slices=4)])
def test_parts_add_up_to_the_iteration(plan: SlicePlan) -> None:
    item = shown(case(dp=2, micros=2), plan)
    parts = parts_ns(item)
    assert sum(parts.values()) == item.timeline.makespan_ns
    assert min(parts.values()) >= 0
    assert (parts["slowed"] > 0) == (plan != NO_COMM)


def test_every_family_of_errors_has_words() -> None:
    assert FAMILY_WORDS.keys() == set(FAMILIES)


def test_time_section_tells_what_hiding_saves_and_costs() -> None:
    page = where_time_goes(report_data(case()))
    assert "Hiding communication saves" in page
    assert "fc1 dgrad" in page
    assert "norm, attention" in page


def test_heat_map_marks_the_best_cell_and_the_holes() -> None:
    cells = cell(1, 1, 110.0), cell(2, 1, 80.0, SLICED), cell(2, 4, None)
    page = heat_map(report_data(case(), search=tuned(cells), baseline_ms=100.0))
    assert page.count('class="good best"') == 1
    title = f"{SLICED.label}: {plan_words(SLICED)}".replace("'", "&#x27;")
    best = f'<td class="good best" title="{title}" style="--v:72%">80.00<small>1.25×</small>'
    assert best in page
    assert page.count('class="none"') == 2
    assert 'title="out of memory"' in page
    assert "1 of 2 cuts beat Megatron-LM" in page
    assert heat_map(report_data(case())) == ""


def test_turns_are_said_from_todays_winner_on() -> None:
    a, b, baseline = SLICED, SlicePlan(row_slices=4), MEGATRON
    assert crossover_sentence([crossover(0, a)]).startswith(f"{a.label} stays the best plan")
    some = [crossover(0, a), crossover(0.5, b), crossover(1.7, baseline)]
    assert crossover_sentence(some).startswith(f"{b.label} is best up to 1.7×, then megatron.")
    two = [crossover(0, a), crossover(0.5, b)]
    assert crossover_sentence(two).startswith(f"{b.label} stays")
    later = [crossover(2, a), crossover(3, b)]
    assert crossover_sentence(later).startswith(f"{a.label} is best up to 3×, then {b.label}")


def test_plans_within_a_percent_of_the_fastest_are_marked_as_ties() -> None:
    def plans(*times: float) -> str:
        return heat_map(report_data(case(), search=tuned(trials=tuple(map(trial, times)))))

    assert 100 * TIE == TIE_PERCENT
    assert plans(100.0, 100.9, 101.1).count('class="tie"') == 2
    assert "predictions do not tell apart" in plans(100.0, 100.9)
    assert 'class="tie"' not in plans(100.0, 101.1)


def test_every_part_of_a_plans_name_is_explained() -> None:
    explained = " ".join(part for part, _ in KEY)
    plans = [
        SlicePlan(row_slices=2, mlp_col_slices=2, mlp_dgrad_slices=1, merge_wgrad=True),
        SlicePlan(row_slices=3, sequence_parallel=True, comm_ctas=16, slice_dim="sequence"),
        MEGATRON, NO_COMM,
    ]  # fmt: skip
    for plan in plans:
        parts = re.sub(r"domino|=\w+|\d+[x/]?", " ", plan.label).split()
        assert [part for part in parts if part not in explained] == []
    for order in ORDER_WORDS:
        assert order in explained
    assert plan_name(SLICED) == f'<span title="{plan_words(SLICED)}">{SLICED.label}</span>'.replace(
        "'", "&#x27;"
    )


def test_markup_escapes_all_but_markup() -> None:
    made = tag("p", "a < b", Html("<b>c</b>"), class_="x", aria_label='"', id=None)
    assert made == '<p class="x" aria-label="&quot;">a &lt; b<b>c</b></p>'
    assert tag("br") == "<br/>"
    assert text(text("<")) == "&lt;"


@pytest.mark.parametrize(
    ("strategy", "told", "words"),
    [
        ("userbuffers", (), ""),
        (
            "userbuffers", ("proj_fprop=none", "qkv_dgrad=none", "fc2_fprop=pipeline:4:8"),
            " (proj forward, qkv dgrad: not hidden; fc2 forward: in 4 chunks on 8 SMs)",
        ),
        (
            "userbuffers", ("qkv_fprop=ring_exchange:2",),
            " (qkv forward: chunk by chunk, two at a time)",
        ),
        ("userbuffers", ("qkv_dgrad=bulk:8",), " (qkv dgrad: whole on 8 SMs)"),
        ("userbuffers", ("fc2_fprop=pipeline:4:16",), ""),
        ("async-tp", ("proj_fprop=none",), " (proj forward: not hidden)"),
        ("fused", ("fc2_fprop=fused",), ""),
    ],
)  # fmt: skip
def test_a_rivals_plan_says_which_gemms_it_treats_otherwise(
    strategy: Compared, told: tuple[str, ...], words: str
) -> None:
    plan = replace(MEGATRON, strategy=strategy, sequence_parallel=True, tp_comm_overlap=told)
    found = plan_words(plan)
    name = RIVAL_NAMES[strategy]
    assert found == f"unsliced, communication hidden by {name}{words}, sequence parallel"


def test_names() -> None:
    assert role_label("mlp.fc1_dgrad.ar") == "all-reduce fc1 dgrad"
    assert role_label("attn.norm_bwd") == "norm bwd"
    assert role_label("attn.proj_wgrad") == "proj wgrad"
    assert role_label("something.new") == "something.new"
    assert [gib_text(v) for v in (41.24, 178534.71)] == ["41.2", "178,534.7"]
    assert [ms_text(v) for v in (0, 0.0384, 4.18, 369.71, 4109.9)] == [
        "0", "0.038", "4.18", "369.7", "4,109.9",
    ]  # fmt: skip
    assert percent_text(0.995) == "99.5 %"
    assert percent_text(1.0) == "100 %"
    assert size_text(83886080) == "80.0 MiB"
    assert size_text(12) == "12 B"
    assert size_text(1 << 40) == "1024.0 GiB"
    assert shape_text(Gemm(1024, 2, 3)) == "m 1,024 · n 2 · k 3 · forward"
    assert shape_text(Collective("all_reduce", 2048, 2, 8)) == "2.0 KiB over 16 ranks on 2 nodes"
    assert shape_text(Pointwise("gelu", 1024, 1024)) == "2.0 KiB moved"
    assert shape_text(Attention(2, 8, 8, 1024, 64)) == "2 × 1,024 tokens · 8 heads of 64"
    plan = SlicePlan(attn_col_slices=2, mlp_dgrad_slices=4, merge_wgrad=True, comm_ctas=8)
    assert plan_words(plan) == (
        "2 row slices × 2/1 column slices, dgrad in 2/4, greedy order, weight gradients fill the "
        "waits, merged over slices, 8 CTAs for communication"
    )


def test_each_kind_of_pass_has_a_name_and_a_colour() -> None:
    assert NAMES.keys() == PASSES.keys()
    style = static("page.css")
    assert all(f"rect.pass-{kind} {{ fill" in style for kind in PASSES)
    assert all(f".key.pass-{kind}::before" in style for kind in PASSES)
