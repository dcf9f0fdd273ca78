"""simulate where ranks form pipelines, or share sequences: JSON, table, page and trace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Runner

WORDS = (
    "simulate", "--model", "gpt3-1.3b", "--profile", "a100-sxm", "--tp", "2",
    "--seq-length", "2048", "--micro-batch-size", "2", "--grad-accumulation", "16",
)  # fmt: skip


def simulate(run: Runner, *options: str) -> dict[str, Any]:
    return run.answer(*WORDS, *options)


def test_a_pipeline_tells_of_its_stages(run: Runner) -> None:
    result = simulate(run, "--pp", "4", "--vpp", "2", "--dp", "2")
    pipeline = result["pipeline"]
    assert [stage["layers"] for stage in pipeline["stages"]] == [[3, 3]] * 4
    assert len(result["stage_memory_gib"]) == 4
    assert max(result["stage_memory_gib"]) == pytest.approx(result["peak_memory_gib"])
    busiest = pipeline["stages"][pipeline["busiest_stage"]]
    assert result["bubble_ms"] == busiest["bubble_ms"] > 0
    parts = sum(busiest[f"{name}_ms"] for name in ("compute", "exposed_comm", "p2p_wait", "bubble"))
    assert parts <= result["iteration_ms"]
    assert parts > 0.97 * result["iteration_ms"]
    roles = sum(result["time_by_role_ms"].values())
    assert roles > busiest["compute_ms"]


def test_without_a_pipeline_there_is_none(run: Runner) -> None:
    result = simulate(run)
    assert (result["bubble_ms"], result["pipeline"]) == (0, None)
    assert result["stage_memory_gib"] == [pytest.approx(result["peak_memory_gib"])]


def test_the_table_of_stages(run: Runner) -> None:
    text = run(*WORDS, "--pp", "2", "--set", "pp_layers=13,11").out
    assert "Stages of the chosen plan, 1f1b" in text
    assert re.search(r"\b0\s+13\b", text)
    assert "tp 2, dp 1, pp 2" in text


def test_schedules_order_as_they_should(run: Runner) -> None:
    """Fewer micro-batches in flight take less memory; virtual stages wait less."""
    plain = simulate(run, "--pp", "2")
    gpipe = simulate(run, "--pp", "2", "--set", "pp_schedule=gpipe")
    virtual = simulate(run, "--pp", "2", "--vpp", "2")
    assert gpipe["peak_memory_gib"] > plain["peak_memory_gib"]
    assert virtual["bubble_ms"] < plain["bubble_ms"]


def test_page_and_trace_of_a_pipeline(run: Runner, tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    simulate(run, "--pp", "2", "--report", str(page), "--trace", str(trace))
    text = page.read_text("utf-8")
    assert 'id="pipeline"' in text
    boxes = re.findall(r'<rect [^>]*class="pass-([FBW])"', text)
    shown = 4  # two rounds of the pipeline's two stages
    assert (boxes.count("F"), boxes.count("B")) == (2 * 2 * shown, 2 * 2 * shown)
    assert f"{shown} of 16 micro-batches" in text
    assert json.loads(trace.read_text("utf-8"))["traceEvents"]


@pytest.mark.parametrize("how", ["p2p", "all_gather", "a2a"])
def test_shared_sequences(run: Runner, how: str) -> None:
    alone, shared = simulate(run), simulate(run, "--cp", "2", "--set", f"cp_comm={how}")
    assert shared["iteration_ms"] < alone["iteration_ms"]
    assert shared["peak_memory_gib"] < alone["peak_memory_gib"]
    assert shared["mfu"] < alone["mfu"]
    assert shared["workload"]["cp_comm"] == how


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pp", "16"), "num_hidden_layers = 24 is not divisible by pp = 16"),
        (("--set", "pp_layers=12,12"), "give --pp 2 or more"),
        (("--pp", "2", "--set", "pp_layers=12;12"), "must be whole numbers like 10,10,9,9"),
        (("--vpp", "2"), "vpp = 2 needs a pipeline"),
        (("--cp", "3"), "seq_length = 2048 is not divisible by 2 × cp = 6"),
        (("--pp", "64", "--nodes", "1"), r"128 ranks \(tp 2 × dp 1 × pp 64\) do not fit"),
    ],
)
def test_what_cannot_be_is_said(run: Runner, options: tuple[str, ...], message: str) -> None:
    done = run(*WORDS, *options)
    assert done.code == 2
    assert re.search(message, done.err)
