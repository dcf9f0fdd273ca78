"""Under torchrun and Slurm this process is a rank."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from domino_tune.runtime.launch.launcher import find_launcher, first_host
from simulator.errors import InputError
from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S, reserved_port

RANK = """
import json, os, sys
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
job, payload = sys.argv[1], json.loads(sys.argv[2])
run_job("tests.support.rank_jobs:" + job, payload,
        LaunchSpec(tp=2, hang_timeout_s=20, kernels_in_order=True),
        on_message=lambda m: print(json.dumps(m), flush=True))
print("rank 0 goes on,", os.environ["CUDA_DEVICE_MAX_CONNECTIONS"], "queue")
"""
# No name of this machine need resolve.
ENV = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(REPOSITORY)}


def slurm(rank: int, port: int) -> dict[str, str]:
    return {
        **ENV, "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(rank),
        "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": str(port),
    }  # fmt: skip


def start_slurm(job: str, payload: object, port: int) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, job, json.dumps(payload)], env=slurm(rank, port),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip


def test_torchrun_ranks_run_the_job_and_only_rank_0_goes_on() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--no-python"),
            *(sys.executable, "-c", RANK, "count", '{"count": 3}'),
        ],
        env=ENV, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *told, last = done.stdout.splitlines()
    assert [json.loads(line)["number"] for line in told] == [0, 1, 2]
    assert last == "rank 0 goes on, 1 queue"


def test_slurm_ranks_run_the_job() -> None:
    first, second = start_slurm("count", {"count": 2}, reserved_port())
    out, err = first.communicate(timeout=PATIENCE_S)
    assert (first.returncode, len(out.splitlines())) == (0, 3), err
    out, err = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, out) == (0, ""), err


def test_a_rank_that_fails_under_slurm_says_why_and_ends_with_code_4() -> None:
    victim, culprit = start_slurm("raises", {"rank": 1}, reserved_port())
    _, err = culprit.communicate(timeout=PATIENCE_S)
    assert culprit.returncode == 4
    assert "Rank 1 failed:" in err
    assert "the culprit's own words" in err
    _, err = victim.communicate(timeout=PATIENCE_S)
    assert victim.returncode == 4
    assert "Rank 0 failed:" in err


def test_a_port_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        rank = start_slurm("count", {"count": 1}, port)
        _, err = rank[0].communicate(timeout=PATIENCE_S)
        rank[1].kill()
        rank[1].communicate()
    assert f"localhost:{port}" in err
    assert "set MASTER_PORT to a free one" in err


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_NTASKS": "4"},  # salloc's shell
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "8"},  # a batch script
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        {"WORLD_SIZE": "4"},
    ],
)
def test_without_a_launcher_ranks_are_ours_to_start(env: dict[str, str]) -> None:
    assert find_launcher(env) is None


def test_what_slurm_says_is_read() -> None:
    launcher = find_launcher(
        {
            "SLURM_PROCID": "5", "SLURM_NTASKS": "9", "SLURM_STEP_NUM_TASKS": "8",
            "SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "15003",
            "SLURM_STEP_NODELIST": "gpu[07-09,12],login1",
        }
    )  # fmt: skip
    assert launcher is not None
    assert (launcher.rank, launcher.world_size, launcher.local_rank) == (5, 8, 1)
    assert launcher.ranks_here == 2
    assert launcher.address == ("gpu07", 15003)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("gpu[1,3]", "gpu1"), ("r[01-04]n,x", "r01n"), ("n[5]", "n5")],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_world_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(InputError, match=r"torchrun started 8 ranks, but tp × dp = 2 × 1 = 2"):
        run_job("x:y", {}, LaunchSpec(tp=2), on_message=print)
    with pytest.raises(InputError, match="emulated link"):
        run_job("x:y", {}, LaunchSpec(tp=8, emulate_link_bits_per_s=10**9), on_message=print)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(InputError, match="RANK='first'"):
        run_job("x:y", {}, LaunchSpec(tp=8), on_message=print)
