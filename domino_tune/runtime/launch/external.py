"""Ranks that torchrun or Slurm started: this process is one of them."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

from domino_tune.base.errors import RunError, meaning_of
from domino_tune.runtime.launch.launcher import Launcher
from domino_tune.runtime.launch_spec import QUEUES_SETTING, LaunchSpec, Message
from simulator.errors import DominoTuneError


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
    from domino_tune.runtime.launch.groups import external_store, open_context, resolve

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
