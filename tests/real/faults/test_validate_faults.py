"""`validate` with real ranks that die or run out of memory, and when the user presses Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("torch")

from domino_tune.base.errors import RankKilledError
from domino_tune.requests import ValidateRequest
from domino_tune.runtime import plan_runs
from domino_tune.runtime.launch.launch import LaunchSpec
from domino_tune.runtime.plan_runs import BROKE, KILLED, OUT_OF_MEMORY, Measured, Runs
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.validate import validate
from simulator.case import Case
from simulator.greedy import order_of
from simulator.plan import MEGATRON, SlicePlan
from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S, is_alive, started, wait_until
from tests.support.runs import Runner, without_progress
from tests.support.validation_cases import (
    CLUSTER,
    FOUR,
    MODEL,
    TWO,
    WORKLOAD,
    write_files,
)

DRIVER = """
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from domino_tune.cli import commands, show

@contextmanager
def progress():
    def on_progress(message):
        if message.startswith("round 3 "):
            os.kill(os.getpid(), int(os.environ["TO_PARENT"]))
        if message.startswith("round 1 of"):
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
            file = Path(os.environ["CHILDREN"])
            file.with_suffix(".new").write_text(children)
            file.with_suffix(".new").rename(file)  # the test never reads a part of it
    yield on_progress

show.still_progress = progress
sys.exit(commands.main(sys.argv[1:]))
"""
"""The command line, which writes the ids of its ranks to a file, and sends itself a signal."""


def validating(folder: Path, number: int) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run the driver, which gets the signal ``number`` in its third round."""
    options = write_files(folder).options
    return started(
        [sys.executable, "-c", DRIVER, "validate", *options, "--rounds", "9999", "--json",
         "--backend", "gloo"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY,
        env={
            **os.environ, "OMP_NUM_THREADS": "1", "CHILDREN": str(folder / "children"),
            "TO_PARENT": str(number),
        },
    )  # fmt: skip


def rank_pids(folder: Path) -> list[int]:
    wait_until((folder / "children").exists)
    return [int(pid) for pid in (folder / "children").read_text().split()]


def test_a_killed_rank_ends_all_and_is_named(tmp_path: Path) -> None:
    with validating(tmp_path, 0) as parent:  # signal 0 does nothing
        ranks = rank_pids(tmp_path)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        out, err = parent.communicate(timeout=PATIENCE_S)
    assert parent.returncode == 4
    assert out == ""
    assert "Rank 1 of 2 was killed by SIGKILL" in err
    assert "stderr" in err
    assert "Traceback" not in err.partition("stderr")[0]
    assert not any(map(is_alive, ranks))


def test_ctrl_c_shows_what_was_measured(tmp_path: Path) -> None:
    with validating(tmp_path, int(signal.SIGINT)) as parent:
        out, err = parent.communicate(timeout=PATIENCE_S)
    assert parent.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not any(map(is_alive, rank_pids(tmp_path)))
    answer = json.loads(out)
    assert answer["interrupted"] is True
    assert [one["name"] for one in answer["plans"]] == ["baseline", "no_comm", "two", "four"]
    assert all(len(one["makespans_ms"]) in (2, 3) for one in answer["plans"])
    assert all(one["roles"] == [] for one in answer["plans"])


def test_a_plan_short_of_memory_is_infeasible_and_the_others_continue(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_runs, "JOB", "tests.support.rank_jobs:validate_short_of_memory")
    files = write_files(run.folder)
    done = run("validate", *files.options, "--rounds", "3", "--backend", "gloo", "--json")
    assert done.code == 0, done.err
    plans = {one["name"]: one for one in json.loads(done.out)["plans"]}
    assert plans["four"]["failed"] == OUT_OF_MEMORY
    assert plans["four"]["measured"] is None
    for name in ("baseline", "no_comm", "two"):
        assert len(plans[name]["makespans_ms"]) == 3
    assert without_progress(done.err) == ""


def test_rounds_are_counted_anew_without_a_plan_short_of_memory(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_runs, "JOB", "tests.support.rank_jobs:validate_short_of_memory_later")
    files = write_files(run.folder)
    messages: list[str] = []
    request = ValidateRequest(
        plan=(files.two, files.four), profile=files.profile, rounds=3, backend="gloo"
    )
    result = validate(request, messages.append)
    assert result.plans[3].failed == OUT_OF_MEMORY
    rounds = [text.partition(":")[0] for text in messages if text.startswith("round")]
    assert rounds.count("round 1 of 3") > 3
    assert set(rounds) == {"round 1 of 3", "round 2 of 3", "round 3 of 3"}


def test_no_plan_left_is_an_error(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_runs, "JOB", "tests.support.rank_jobs:validate_short_of_memory")
    files = write_files(run.folder)
    done = run(
        "validate", "--plan", files.four, "--profile", files.profile, "--rounds", "3",
        "--backend", "gloo",
    )  # fmt: skip
    assert done.code == 2
    assert "No plan could be run: four (out of memory)" in done.err
    assert "out of memory" in done.out


def lenient(*plans: SlicePlan) -> list[Measured]:
    """Run the plans in turn, three rounds on two ranks, with ``lenient=True``."""
    case = Case(model=MODEL, workload=WORKLOAD, cluster=CLUSTER, profile=load_profile("h100-dgx"))
    planned = [(plan, order_of(case, plan)) for plan in plans]
    return Runs(MODEL, WORKLOAD, CLUSTER, planned, 3, lenient=True).run(LaunchSpec(tp=2))


@pytest.mark.parametrize(
    ("job", "why"), [("validate_killed", KILLED), ("validate_crashing", BROKE)]
)
def test_a_plan_that_brings_its_ranks_down_fails_alone(
    monkeypatch: pytest.MonkeyPatch, job: str, why: str
) -> None:
    monkeypatch.setattr(plan_runs, "JOB", f"tests.support.rank_jobs:{job}")
    *others, four = lenient(MEGATRON, TWO, FOUR)
    assert four.failed == why
    assert [len(one.makespans_ns) for one in others] == [3, 3]


def test_the_first_plan_takes_all_down_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_runs, "JOB", "tests.support.rank_jobs:validate_killed")
    with pytest.raises(RankKilledError, match="Rank 1 of 2 was killed by SIGKILL"):
        lenient(FOUR, TWO)


def test_validate_says_which_plan_killed_its_ranks(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_runs, "JOB", "tests.support.rank_jobs:validate_killed")
    files = write_files(run.folder)
    done = run("validate", *files.options, "--rounds", "3", "--backend", "gloo")
    assert done.code == 4
    assert f"While {FOUR.label} ran: Rank 1 of 2 was killed by SIGKILL" in done.err
