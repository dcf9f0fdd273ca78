"""Ranks that die, hang or lose their parent: real processes, ended for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from domino_tune.base.errors import RunError, meaning_of
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from tests.conftest import REPOSITORY

PATIENCE_S = 60


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"still alive: {list(filter(is_alive, pids))}"
        time.sleep(0.05)


def fail(job: str, **payload: object) -> str:
    """The message of the job's RunError; all its ranks are gone by then."""
    pids: list[int] = []
    spec = LaunchSpec(tp=2, hang_timeout_s=float(str(payload.pop("hang_timeout_s", 40))))
    with pytest.raises(RunError) as caught:
        run_job(f"tests.faults.jobs:{job}", payload, spec, on_message=lambda m: collect(m, pids))
    assert len(pids) == 2
    assert not any(map(is_alive, pids))
    assert meaning_of(caught.value).exit_code == 4
    return str(caught.value)


def collect(message: dict[str, Any], pids: list[int]) -> None:
    pids += message["pids"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_raises_is_named_with_what_it_said(rank: int) -> None:
    text = fail("raises", rank=rank)
    assert f"Rank {rank} of 2 ended with exit code 1" in text
    assert "the culprit's own words" in text


def test_a_rank_raises_while_its_own_lane_is_stuck() -> None:
    text = fail("raises_while_its_lane_works", rank=1)
    assert "Rank 1 of 2 ended with exit code 1" in text
    assert "the culprit's own words" in text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_exits_is_named_not_those_that_felt_it(rank: int) -> None:
    text = fail("exits", rank=rank)
    assert f"Rank {rank} of 2 ended with exit code 3" in text
    assert "last words" in text


def test_a_killed_rank_is_named() -> None:
    text = fail("gets_signal", rank=1, signal=int(signal.SIGKILL))
    assert "Rank 1 of 2 was killed by SIGKILL" in text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_a_hang(rank: int) -> None:
    text = fail("gets_signal", rank=rank, signal=int(signal.SIGSTOP), hang_timeout_s=2)
    assert f"rank {rank} of 2 seems to hold the others up (it is stopped)" in text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs_is_named_and_shows_where(rank: int) -> None:
    text = fail("sleeps", rank=rank, hang_timeout_s=2)
    assert f"rank {rank} of 2 seems to hold the others up (the others wait" in text
    assert "_sleep_for_ever" in text


PARENT = """
import json, sys
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
spec = LaunchSpec(tp=2, emulate_link_bits_per_s=int(sys.argv[1]) or None)
try:
    run_job("tests.faults.jobs:works_on", {"rank": 0}, spec,
            on_message=lambda m: print(json.dumps(m), flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def start_parent(link: int = 0) -> tuple[subprocess.Popen[str], list[int]]:
    """A parent at work, and every process it started."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(link)],
        stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, start_new_session=True,
    )  # fmt: skip
    assert parent.stdout is not None
    ranks = json.loads(parent.stdout.readline())["pids"]
    tasks = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    children = [int(pid) for pid in tasks.read_text().split()]
    assert set(ranks) <= set(children)
    return parent, children


def test_ctrl_c_ends_all_ranks_and_is_passed_on() -> None:
    parent, children = start_parent()
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal does
    out, _ = parent.communicate(timeout=PATIENCE_S)
    assert out == "interrupted\n"
    assert parent.returncode == 0
    assert not any(map(is_alive, children))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_die_with_their_parent(number: signal.Signals) -> None:
    parent, children = start_parent()
    parent.send_signal(number)
    parent.communicate(timeout=PATIENCE_S)
    wait_until_gone(children)
