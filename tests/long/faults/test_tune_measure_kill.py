"""Measured tuning that is killed, interrupted, or loses a rank: no measurement is lost."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("torch")

from domino_tune.requests import MeasureRequest
from domino_tune.requests.command_line import command_line
from tests.conftest import REPOSITORY
from tests.real.domino_tune.verbs.measured_cases import launches, measured_request
from tests.support.processes import PATIENCE_S, children, started, wait_until, wait_until_gone

Tuning = subprocess.Popen[str]


@pytest.fixture
def request_(tmp_path: Path) -> MeasureRequest:
    return measured_request(tmp_path)


def tuning_of(request: MeasureRequest) -> AbstractContextManager[Tuning]:
    command = [sys.executable, *shlex.split(command_line(request))[1:], "--json"]
    return started(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def evidence_lines(request: MeasureRequest) -> int:
    path = Path(str(request.evidence))
    return path.read_bytes().count(b"\n") if path.exists() else 0


def ranks_of(tuning: Tuning, request: MeasureRequest, known: int) -> list[int]:
    """Return the ranks of a tuning, while they run after ``known`` lines of evidence."""

    def ranks() -> list[int]:
        assert tuning.poll() is None, tuning.communicate()
        found = children(tuning.pid, b"domino_tune.runtime.launch.worker")
        return found if evidence_lines(request) >= known and len(found) == 2 else []

    return wait_until(ranks)


def finish(request: MeasureRequest) -> dict[str, object]:
    with tuning_of(request) as tuning:
        out, err = tuning.communicate(timeout=2 * PATIENCE_S)
    assert tuning.returncode == 0, err
    answer: dict[str, object] = json.loads(out)
    return answer


def test_a_tuning_that_is_stopped_three_times_loses_nothing(request_: MeasureRequest) -> None:
    """The same command runs four times. Each run continues where the one before was stopped."""
    with tuning_of(request_) as tuning:
        ranks = ranks_of(tuning, request_, known=2)
        tuning.kill()
        tuning.communicate()
        wait_until_gone(ranks)
    first = launches(request_)
    assert len(first) >= 1

    with tuning_of(request_) as tuning:
        os.kill(ranks_of(tuning, request_, known=1 + len(first))[1], signal.SIGKILL)
        _, err = tuning.communicate(timeout=PATIENCE_S)
    assert tuning.returncode == 4, err
    assert "Rank 1 of 2 was killed by SIGKILL" in err
    assert "To go on: python -m domino_tune measure" in err
    second = launches(request_)
    assert second[: len(first)] == first

    with tuning_of(request_) as tuning:
        ranks = ranks_of(tuning, request_, known=1 + len(second))
        os.killpg(tuning.pid, signal.SIGINT)  # as a terminal does
        _, err = tuning.communicate(timeout=PATIENCE_S)
        wait_until_gone(ranks)
    assert tuning.returncode == 130, err
    assert "Best so far: " in err
    assert "To go on: python -m domino_tune measure" in err
    assert str(request_.evidence) in err
    assert "Traceback" not in err
    third = launches(request_)
    assert third[: len(second)] == second

    answer = finish(request_)
    known = sum(record.kind == "evaluation" for record in third)
    assert (answer["evaluations"], answer["new_runs"]) == (3, 3 - known)
    assert launches(request_)[: len(third)] == third
