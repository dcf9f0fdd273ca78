"""Measured tuning that is killed, interrupted, or loses a rank: real processes, nothing lost."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from domino_tune.requests import TuneRequest
from domino_tune.requests.command_line import command_line
from tests.conftest import REPOSITORY
from tests.domino_tune.verbs.measured_cases import launches, measured_request
from tests.faults.test_ranks import PATIENCE_S, wait_until_gone

Tuning = subprocess.Popen[str]


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    return measured_request(tmp_path)


def start(request: TuneRequest) -> Tuning:
    command = [sys.executable, *shlex.split(command_line("tune", request))[1:], "--json"]
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def ranks_of(tuning: Tuning) -> list[int]:
    """Process ids of the ranks that it has now."""
    try:
        tasks = Path(f"/proc/{tuning.pid}/task/{tuning.pid}/children").read_text().split()
        command = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in tasks}
    except OSError:
        return []
    return [pid for pid, words in command.items() if b"domino_tune.runtime.launch.worker" in words]


def lines(request: TuneRequest) -> int:
    path = Path(str(request.evidence))
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(tuning: Tuning, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert tuning.poll() is None, tuning.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def at_work(request: TuneRequest, known: int) -> tuple[Tuning, list[int]]:
    """A tuning that has ``known`` lines of evidence and ranks at work on the next."""
    tuning = start(request)
    wait_for(tuning, lambda: lines(request) >= known and len(ranks_of(tuning)) == 2)
    return tuning, ranks_of(tuning)


def finish(request: TuneRequest) -> dict[str, object]:
    tuning = start(request)
    out, err = tuning.communicate(timeout=2 * PATIENCE_S)
    assert tuning.returncode == 0, err
    answer: dict[str, object] = json.loads(out)
    return answer


def test_killed_interrupted_and_robbed_of_a_rank_it_loses_nothing(request_: TuneRequest) -> None:
    """One question, asked four times: each time it goes on where it was."""
    tuning, ranks = at_work(request_, known=2)
    tuning.kill()
    tuning.communicate()
    wait_until_gone(ranks)
    first = launches(request_)
    assert len(first) >= 1

    tuning, ranks = at_work(request_, known=1 + len(first))
    os.kill(ranks[1], signal.SIGKILL)
    _, err = tuning.communicate(timeout=PATIENCE_S)
    assert tuning.returncode == 4, err
    assert "Rank 1 of 2 was killed by SIGKILL" in err
    assert "To go on: python -m domino_tune tune" in err
    second = launches(request_)
    assert second[: len(first)] == first

    tuning, ranks = at_work(request_, known=1 + len(second))
    os.killpg(tuning.pid, signal.SIGINT)  # as a terminal does
    _, err = tuning.communicate(timeout=PATIENCE_S)
    assert tuning.returncode == 130, err
    assert "Best so far: " in err
    assert "To go on: python -m domino_tune tune" in err
    assert str(request_.evidence) in err
    assert "Traceback" not in err
    wait_until_gone(ranks)
    third = launches(request_)
    assert third[: len(second)] == second

    answer = finish(request_)
    known = sum(record.kind == "evaluation" for record in third)
    assert (answer["evaluations"], answer["new_runs"]) == (3, 3 - known)
    assert launches(request_)[: len(third)] == third
