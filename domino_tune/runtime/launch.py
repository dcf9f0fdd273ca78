"""Run a job on every rank: START HERE. Starts ranks on this machine, or joins those that are there.

A job is ``package.module:function``, called on every rank as ``function(context, payload)``. What
rank 0 reports reaches the caller while the job runs. This module never imports torch where it
starts ranks itself: only ranks do.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping

from domino_tune.runtime.launch_external import run_as_rank
from domino_tune.runtime.launch_local import run_on_own_ranks
from domino_tune.runtime.launch_spec import LaunchSpec, Message
from domino_tune.runtime.launcher import find_launcher
from simulator.errors import InputError

__all__ = ["LaunchSpec", "Message", "run_job"]


def run_job(
    job: str,
    payload: Mapping[str, object],
    spec: LaunchSpec,
    *,
    on_message: Callable[[Message], None],
) -> None:
    """Call ``job`` on every rank with ``payload`` (JSON); hand rank 0's reports to ``on_message``.

    Under torchrun or Slurm this process is one of the ranks, and nothing is started; ranks other
    than 0 end quietly (SystemExit 0) after the job. Raises InputError, before anything starts,
    for a world that does not fit, missing torch or CUDA; RunError when a rank dies or hangs.
    However it ends, no rank outlives it.
    """
    launcher = find_launcher()
    _check_torch()
    if launcher is not None:
        launcher.check(spec)
        run_as_rank(job, payload, spec, launcher, on_message)
        return
    _check_local_world(spec)
    if spec.backend == "nccl":
        _check_cuda(spec)
    run_on_own_ranks(job, payload, spec, on_message)


def _check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "Running on real ranks needs PyTorch, which is not installed here; install it with "
            "pip install 'domino_tune[runtime]'."
        )


def _check_local_world(spec: LaunchSpec) -> None:
    started = spec.nproc_per_node
    if started is not None and started != spec.world_size:
        raise InputError(
            f"--nproc-per-node {started} does not fit tp × dp = {spec.tp} × {spec.dp} = "
            f"{spec.world_size} ranks; give {spec.world_size}, or start ranks on several nodes "
            "with torchrun or srun."
        )


def _check_cuda(spec: LaunchSpec) -> None:
    """Ask a process of its own, so that this one needs neither torch nor a CUDA context."""
    asked = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    devices = int(asked.stdout) if asked.returncode == 0 else 0
    if devices == 0:
        raise InputError(
            "The nccl backend needs CUDA, and torch sees no CUDA device here; "
            f"use --backend gloo. {asked.stderr.strip()[-300:]}".rstrip()
        )
    if devices < spec.world_size:
        raise InputError(
            f"tp × dp = {spec.world_size} ranks need as many GPUs, and torch sees {devices}; "
            "lower --tp or --dp, or start ranks on several nodes with torchrun or srun."
        )
