"""Starting ranks: places, groups, messages in order, and what is refused before anything starts."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from domino_tune.runtime.launch import Launcher, find_launcher, first_host, launch, local
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from domino_tune.runtime.launch_spec import check_torch
from simulator.errors import InputError
from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S, reserved_port

# Under torchrun and Slurm this process is a rank --------------------------------------------------

pytest.importorskip("torch")

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


# Starting ranks -----------------------------------------------------------------------------------

pytest.importorskip("torch")

JOBS = "tests.support.rank_jobs"


def messages(job: str, spec: LaunchSpec, **payload: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    run_job(f"{JOBS}:{job}", payload, spec, on_message=found.append)
    return found


def test_ranks_fill_tp_first_and_each_lane_has_its_group() -> None:
    found = messages("describe", LaunchSpec(tp=2, dp=2), word="hello")
    assert [m["place"] for m in found] == [[0, 0, 0, 4], [1, 1, 0, 4], [2, 0, 1, 4], [3, 1, 1, 4]]
    # TP groups {0, 1} and {2, 3}; the DP lane sums the TP sums' inputs over {0, 2} and {1, 3}.
    assert [m["sums"] for m in found] == [[1, 2], [1, 4], [5, 2], [5, 4]]
    assert all(m["payload"] == {"word": "hello"} and m["threads"] == 1 for m in found)


def test_ranks_keep_to_cores_of_their_own_where_there_are_enough() -> None:
    cores = [set(m["cores"]) for m in messages("describe", LaunchSpec(tp=2))]
    if len(os.sched_getaffinity(0)) >= 2:
        assert len(cores[0]) == len(cores[1])
        assert not cores[0] & cores[1]


def test_messages_arrive_whole_and_in_order() -> None:
    found = messages("count", LaunchSpec(tp=2), count=20, big=100_000)
    assert [m["number"] for m in found] == list(range(20))
    assert {len(m["pad"]) for m in found} == {100_000}


def test_one_rank_is_a_world() -> None:
    assert messages("describe", LaunchSpec(tp=1))[0]["sums"] == [0, 0]


def test_the_parent_does_not_import_torch() -> None:
    code = (
        "import sys; from domino_tune.runtime.launch.launch import *;"
        f"run_job('{JOBS}:count', {{'count': 1}}, LaunchSpec(tp=1), on_message=print);"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


def test_an_error_in_the_listener_ends_the_ranks() -> None:
    def listen(message: dict[str, Any]) -> None:
        raise LookupError(str(message))

    with pytest.raises(LookupError):
        run_job(f"{JOBS}:works_on", {"rank": 0}, LaunchSpec(tp=2), on_message=listen)


def test_an_emulated_link_has_a_speed_and_is_not_for_nccl() -> None:
    with pytest.raises(InputError, match="emulate_link_bits_per_s must be"):
        LaunchSpec(tp=2, emulate_link_bits_per_s=0)
    with pytest.raises(InputError, match="--backend gloo"):
        LaunchSpec(tp=2, backend="nccl", emulate_link_bits_per_s=10**9)


def test_a_world_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="--nproc-per-node 3 does not fit tp × dp = 2 × 1 = 2"):
        messages("describe", LaunchSpec(tp=2, nproc_per_node=3))


def test_missing_torch_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'domino_tune\[runtime\]'"):
        messages("describe", LaunchSpec(tp=2))


def test_nccl_without_cuda_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InputError, match="use --backend gloo"):
        messages("describe", LaunchSpec(tp=2, backend="nccl"))


OTHER_TORCH = "__version__ = {!r}\nclass cuda:\n    device_count = staticmethod(lambda: 8)\n"
ASKED = (
    "from domino_tune.runtime.launch.launch import LaunchSpec, check_ready;"
    "check_ready(LaunchSpec(tp=8, backend='nccl'))"
)


@pytest.mark.parametrize(("version", "fits"), [("2.7.1+cu128", False), ("2.8.0a0+b.nv25", True)])
def test_nccl_with_an_old_torch_is_said(tmp_path: Path, version: str, fits: bool) -> None:
    (tmp_path / "torch.py").write_text(OTHER_TORCH.format(version))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(REPOSITORY)))}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == fits, done.stderr
    assert fits or "need torch 2.8 or newer, got 2.7.1+cu128" in done.stderr


def test_why_torch_cannot_be_imported_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(REPOSITORY)))}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], env=env, capture_output=True, text=True, check=False
    )
    assert "use --backend gloo. Traceback" in done.stderr
    assert done.stderr.rstrip().endswith("ImportError: libcudart.so.12: cannot open")
    assert "CalledProcessError" not in done.stderr


def test_versions_of_torch_that_are_too_old_are_refused() -> None:
    for version in ("1.13.1", "2.7.1+cu128"):
        with pytest.raises(InputError, match=r"2\.8 or newer, got .*pip install 'torch>=2\.8'"):
            check_torch(version)
    for version in ("2.8.0", "2.13.0+cpu", "3.0", "git-0123abc"):
        check_torch(version)


def test_folders_of_dead_parents_are_removed_and_those_in_use_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, young = (tmp_path / f"domino-tune-run-{name}" for name in ("old", "young"))
    for folder in (abandoned, young):
        folder.mkdir()
    long_ago = time.time() - 3600
    os.utime(abandoned, (long_ago, long_ago))
    with local._job_folder() as used:
        os.utime(used, (long_ago, long_ago))
        assert not abandoned.exists()
        with local._job_folder():
            assert used.exists()
    assert list(tmp_path.iterdir()) == [young]


def test_launch_names_are_what_callers_use() -> None:
    assert set(launch.__all__) == {"LaunchSpec", "Message", "check_ready", "run_job"}


def started_by(name: str, ranks_here: int) -> Launcher:
    return Launcher(
        name=name, rank=0, world_size=8, local_rank=0, ranks_here=ranks_here, address=("a", 1)
    )


@pytest.mark.parametrize(
    ("launcher", "devices"),
    [
        (None, 8),
        (started_by("torchrun", 4), 4),
        (started_by("Slurm", 8), 8),
        (started_by("Slurm", 8), 1),  # each task sees its own GPU only
    ],
)
def test_a_gpu_for_each_rank_of_the_node_is_enough(launcher: Launcher | None, devices: int) -> None:
    launch._check_cuda(LaunchSpec(tp=8, backend="nccl"), launcher, devices, "")


@pytest.mark.parametrize(
    ("launcher", "devices", "says"),
    [
        (None, 0, "use --backend gloo. said"),
        (started_by("torchrun", 8), 0, "use --backend gloo"),
        (None, 4, "8 ranks need as many GPUs, and torch sees 4"),
        (started_by("torchrun", 8), 4, "torchrun started 8 ranks on this node, .* sees 4 GPUs"),
        (started_by("torchrun", 8), 1, "torchrun started 8 ranks on this node, .* sees 1 GPUs"),
        (started_by("Slurm", 4), 2, "Slurm started 4 ranks on this node, .* sees 2 GPUs"),
    ],
)
def test_ranks_without_a_gpu_of_their_own_are_refused(
    launcher: Launcher | None, devices: int, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        launch._check_cuda(LaunchSpec(tp=8, backend="nccl"), launcher, devices, "said")


def test_under_a_launcher_missing_cuda_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="use --backend gloo"):
        launch.check_ready(LaunchSpec(tp=2, backend="nccl"))
