"""Entry of the runtime: run a job on every rank, started here or joined from a launcher.

A job is ``package.module:function``, called on every rank as ``function(context, payload)``. The
caller receives rank 0's reports while the job runs. This module never imports torch where it starts
ranks itself: only ranks do.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from typing import NoReturn

from domino_tune.base.errors import RunError, meaning_of
from domino_tune.runtime.launch import Launcher, find_launcher
from domino_tune.runtime.launch.local import run_on_own_ranks
from domino_tune.runtime.launch_spec import QUEUES_SETTING, LaunchSpec, Message, check_torch
from simulator.errors import DominoTuneError, InputError

__all__ = ["LaunchSpec", "Message", "check_ready", "run_job"]


def run_as_rank(
    job: str,
    payload: Mapping[str, object],
    spec: LaunchSpec,
    launcher: Launcher,
    on_message: Callable[[Message], None],
) -> None:
    """Run the job as this rank; ranks other than 0 end with SystemExit 0.

    After an error this process ends, and the launcher ends the others. A hang becomes an error on
    every waiting rank, by the groups' timeout.
    """
    if spec.kernels_in_order:
        os.environ[QUEUES_SETTING] = "1"  # CUDA reads it when it starts, in this process
    from domino_tune.runtime.launch.context import external_store, open_context, resolve

    try:
        with open_context(
            spec,
            rank=launcher.rank,
            local_rank=launcher.local_rank,
            store=external_store(launcher, spec),
            send=on_message,
            heart=lambda: None,
        ) as context:
            resolve(job)(context, payload)
    except Exception as error:
        _leave(launcher.rank, error)
    if launcher.rank:
        raise SystemExit(0)


def _leave(rank: int, error: Exception) -> NoReturn:
    """Print the error and end the process without cleaning up: the interpreter's normal end waits
    for collectives that never end, or crashes on them."""
    if isinstance(error, DominoTuneError):
        print(f"Rank {rank}: {error}", file=sys.stderr)
    else:
        print(f"Rank {rank} failed:", *traceback.format_exception(error), file=sys.stderr)
        error = RunError()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(meaning_of(error).exit_code)


def run_job(
    job: str,
    payload: Mapping[str, object],
    spec: LaunchSpec,
    *,
    on_message: Callable[[Message], None],
) -> None:
    """Call ``job`` on every rank with ``payload`` (JSON); pass rank 0's reports to ``on_message``.

    Under torchrun or Slurm this process is one of the ranks, and no process is started; ranks other
    than 0 end with SystemExit 0 after the job. Raise InputError, before anything starts, for a
    world that does not fit, missing CUDA, a missing or an old torch; RunError when a rank dies or
    hangs. All ranks have ended when this function ends.
    """
    check_ready(spec)
    launcher = find_launcher()
    if launcher is not None:
        run_as_rank(job, payload, spec, launcher, on_message)
        return
    run_on_own_ranks(job, payload, spec, on_message)


def check_ready(spec: LaunchSpec) -> None:
    """Raise InputError where ``run_job`` would refuse to start. Called early, it names the cause
    before its consequences raise other errors."""
    _check_torch()
    launcher = find_launcher()
    if launcher is None:
        _check_local_world(spec)
    else:
        launcher.check(spec)
    if spec.backend == "nccl":
        version, devices, complaint = _torch_here(os.environ.get("CUDA_VISIBLE_DEVICES"))
        _check_cuda(spec, launcher, devices, complaint)
        check_torch(version)


def _check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "Running on real ranks needs PyTorch, which is not installed here; install it with "
            "pip install 'domino_tune[runtime]'."
        )


def _check_local_world(spec: LaunchSpec) -> None:
    started = spec.nproc_per_node
    if started is not None and started != spec.world_size:
        world = f"tp × dp = {spec.tp} × {spec.dp} = {spec.world_size} ranks"
        ranks = "a single rank" if spec.single_rank else world
        raise InputError(
            f"--nproc-per-node {started} does not fit {ranks}; "
            f"give {spec.world_size}, or start ranks on several nodes with torchrun or srun."
        )


@cache
def _torch_here(visible: str | None) -> tuple[str, int, str]:
    """Return torch's version, how many CUDA devices it sees with ``visible`` as
    CUDA_VISIBLE_DEVICES, and the end of its stderr. Another process runs torch, so that this one
    needs neither torch nor a CUDA context."""
    asked = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__, torch.cuda.device_count())"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    version, devices = asked.stdout.split() if asked.returncode == 0 else ("", "0")
    return version, int(devices), asked.stderr.strip()[-300:]


def _check_cuda(spec: LaunchSpec, launcher: Launcher | None, devices: int, complaint: str) -> None:
    """Raise InputError unless each rank of this node has its own GPU."""
    if devices == 0:
        raise InputError(
            "The nccl backend needs CUDA, and torch sees no CUDA device here; "
            f"use --backend gloo. {complaint}".rstrip()
        )
    if launcher is None:
        if devices < spec.world_size:
            raise InputError(
                f"tp × dp = {spec.world_size} ranks need as many GPUs, and torch sees {devices}; "
                "lower --tp or --dp, or start ranks on several nodes with torchrun or srun."
            )
        return
    bound = launcher.name == "Slurm" and devices == 1  # --gpus-per-task: each task sees its own
    if devices < launcher.ranks_here and not bound:
        raise InputError(
            f"{launcher.name} started {launcher.ranks_here} ranks on this node, and torch sees "
            f"{devices} GPUs here; start as many ranks as there are GPUs on each node."
        )
