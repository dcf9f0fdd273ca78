"""Ranks that die, hang or lose their parent process. All processes and signals are real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")

from domino_tune.base.errors import RunError, meaning_of
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S, children, is_alive, started, wait_until_gone


def fail(job: str, **payload: object) -> str:
    """Run a job that fails. Check that its ranks are gone. Return the message of its RunError."""
    pids: list[int] = []
    spec = LaunchSpec(tp=2, hang_timeout_s=float(str(payload.pop("hang_timeout_s", 40))))
    with pytest.raises(RunError) as caught:
        run_job(
            f"tests.support.rank_jobs:{job}", payload, spec, on_message=lambda m: collect(m, pids)
        )
    assert len(pids) == 2
    assert not any(map(is_alive, pids))
    assert meaning_of(caught.value).exit_code == 4
    return str(caught.value)


def collect(message: dict[str, Any], pids: list[int]) -> None:
    pids += message["pids"]


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize(
    ("job", "rank", "code", "output"),
    [
        ("raises", 0, 1, "the culprit's own words"),
        ("raises", 1, 1, "the culprit's own words"),
        ("raises_while_its_lane_works", 1, 1, "the culprit's own words"),
        ("exits", 0, 3, "last words"),
        ("exits", 1, 3, "last words"),
    ],
)
def test_the_rank_that_fails_first_is_named_with_its_output(
    job: str, rank: int, code: int, output: str
) -> None:
    text = fail(job, rank=rank)
    assert f"Rank {rank} of 2 ended with exit code {code}" in text
    assert output in text


def test_a_killed_rank_is_named() -> None:
    text = fail("gets_signal", rank=1, signal=int(signal.SIGKILL))
    assert "Rank 1 of 2 was killed by SIGKILL" in text


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_a_hang(rank: int) -> None:
    text = fail("gets_signal", rank=rank, signal=int(signal.SIGSTOP), hang_timeout_s=2)
    assert f"rank {rank} of 2 seems to hold the others up (it is stopped)" in text


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs_is_named_and_shows_where(rank: int) -> None:
    text = fail("sleeps", rank=rank, hang_timeout_s=2)
    assert f"rank {rank} of 2 seems to hold the others up (the others wait" in text
    assert "_sleep_forever" in text


PARENT = """
import json, sys
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
spec = LaunchSpec(tp=2, emulate_link_bits_per_s=int(sys.argv[1]) or None)
try:
    run_job("tests.support.rank_jobs:works_on", {"rank": 0}, spec,
            on_message=lambda m: print(json.dumps(m), flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@contextmanager
def working_parent(link: int = 0) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A parent whose ranks work, and the ids of all processes it started. All end with the test:
    ranks left behind would take the cores of every test after it."""
    command = [sys.executable, "-c", PARENT, str(link)]
    with started(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as parent:
        assert parent.stdout is not None
        ranks = json.loads(parent.stdout.readline())["pids"]
        all_pids = children(parent.pid)
        assert set(ranks) <= set(all_pids)
        yield parent, all_pids


def test_ctrl_c_ends_all_ranks_and_reaches_the_caller() -> None:
    with working_parent() as (parent, pids):
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does
        out, _ = parent.communicate(timeout=PATIENCE_S)
    assert out == "interrupted\n"
    assert parent.returncode == 0
    assert not any(map(is_alive, pids))


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_die_with_their_parent(number: signal.Signals) -> None:
    with working_parent() as (parent, pids):
        parent.send_signal(number)
        parent.communicate(timeout=PATIENCE_S)
    wait_until_gone(pids)
