"""`validate` refuses what it cannot run, before ranks start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domino_tune.requests import ValidateRequest
from domino_tune.store.plans import load_plan, save_plan
from domino_tune.verbs.validate import parse_percent, validate
from simulator.errors import InputError
from tests.support.runs import Runner
from tests.support.validation_cases import Files, write_files

pytestmark = pytest.mark.usefixtures("needs_torch")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("validate"))


def of_changed_plan(run: Runner, files: Files, **changes: Any) -> tuple[str, ...]:
    """Return the options of the plan with two slices, with ``changes``."""
    path = run.folder / "changed.json"
    save_plan(replace(load_plan(files.two), **changes), path)
    return "--plan", str(path), "--profile", files.profile, "--backend", "gloo"


def test_plans_of_different_questions_are_refused(run: Runner, files: Files) -> None:
    other = load_plan(files.four)
    path = run.folder / "other.json"
    longer = replace(other.workload, seq_length=16)
    save_plan(replace(other, workload=longer, model=replace(other.model, hidden_size=32)), path)
    text = run.refused("validate", "--plan", files.two, "--plan", str(path))
    assert "model.hidden_size (32 and 64)" in text
    assert "workload.seq_length (16 and 32)" in text


def test_a_profile_of_another_machine_is_refused(run: Runner, files: Files) -> None:
    text = run.refused("validate", "--plan", files.two, "--profile", "h100-dgx")
    for name in ("gpu: profiled H100 SXM 80 GB", "gpus_per_node: profiled 8, here 2", "--force"):
        assert name in text


def test_attention_dropout_is_refused_before_ranks_start(run: Runner, files: Files) -> None:
    model = replace(load_plan(files.two).model, attention_dropout=0.1)
    text = run.refused("validate", *of_changed_plan(run, files, model=model))
    assert "Make the plan again with --set attention_dropout=0." in text


def test_ranks_on_other_nodes_than_planned_are_refused(run: Runner, files: Files) -> None:
    cluster = replace(load_plan(files.two).cluster, ranks_per_node=1)
    text = run.refused("validate", *of_changed_plan(run, files, cluster=cluster))
    assert "has 1 of its 2 ranks on a node, but here 2 share one" in text
    assert "--force" in text


def test_an_emulated_link_is_part_of_the_machine(run: Runner, files: Files) -> None:
    text = run.refused("validate", *files.options, "--emulate-link", "1gbit", "--backend", "gloo")
    assert "link_bits_per_s: profiled none, here 1000000000" in text


def test_cta_counts_are_refused_over_gloo(run: Runner, files: Files) -> None:
    plan = replace(load_plan(files.two).plan, comm_ctas=4)
    text = run.refused("validate", *of_changed_plan(run, files, plan=plan))
    assert "comm_ctas = 4 is a number of NCCL CTAs, which gloo does not have" in text
    assert "--backend nccl" in text


def test_bad_input_is_refused(run: Runner, files: Files) -> None:
    assert "Missing --plan" in run.refused("validate")
    assert "write percent" in run.refused("validate", *files.options, "--max-error", "much")
    text = run.refused("validate", *files.options, "--nproc-per-node", "3", "--backend", "gloo")
    assert "does not fit tp × dp = 2 × 1" in text
    nowhere = str(Path("no", "such", "trace.json"))
    run.refused("validate", *files.options, "--trace", nowhere)


@pytest.mark.parametrize(
    ("text", "value"), [("5%", 0.05), ("5", 0.05), ("0.5 %", 0.005), ("0", 0.0)]
)
def test_percent(text: str, value: float) -> None:
    assert parse_percent("--x", text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "%", "-1%", "nan", "inf", "5x"])
def test_what_is_no_percent(text: str) -> None:
    with pytest.raises(InputError, match=r"^--x cannot be"):
        parse_percent("--x", text)


def test_a_rank_alone_has_no_link(files: Files) -> None:
    request = ValidateRequest(
        plan=(files.two,), profile=files.profile, backend="gloo", emulate_collectives=True,
        emulate_link="1gbit",
    )  # fmt: skip
    with pytest.raises(InputError, match="leave out --emulate-link"):
        validate(request)
