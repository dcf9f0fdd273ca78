"""One rank: ``python -m domino_tune.runtime.launch.worker JOB_FILE RANK``."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Final, NoReturn

from domino_tune.runtime.launch import Heartbeats
from domino_tune.runtime.launch_spec import LaunchSpec, Message

_PR_SET_PDEATHSIG: Final = 1


def main(job_file: Path, rank: int) -> None:
    """Run the job of ``job_file`` as ``rank`` and end the process, with code 1 after an error.

    It ends without the interpreter's own cleanup, which waits for collectives that never end, or
    crashes on them.
    """
    job = json.loads(job_file.read_text())
    _die_with(job["parent"])
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    spec = LaunchSpec(**job["spec"])
    _keep_to_own_cores(rank, spec.world_size)
    beats = Heartbeats(job_file.parent / "beats", spec.world_size)
    try:
        _run(job, spec, rank, beats, job_file.parent)
    except BaseException:
        beats.fail(rank)
        traceback.print_exc()
        _leave(1)
    _leave(0)


def _leave(exit_code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _run(
    job: dict[str, object], spec: LaunchSpec, rank: int, beats: Heartbeats, folder: Path
) -> None:
    # Late: a rank must be bound to its parent and its cores before the seconds that imports take.
    from domino_tune.runtime.launch.context import file_store, open_context, resolve

    outbox = job["outbox"]
    assert isinstance(outbox, int)
    if rank == 0:
        os.set_inheritable(outbox, False)

    def send(message: Message) -> None:
        _write_all(outbox, json.dumps(message).encode() + b"\n")

    with open_context(
        spec,
        rank=rank,
        local_rank=rank,
        store=file_store(folder / "store", spec),
        send=send,
        heart=lambda: beats.beat(rank),
    ) as context:
        context.beat()
        resolve(str(job["job"]))(context, job["payload"])  # type: ignore[arg-type]


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, in any way (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before prctl
        sys.exit("the parent is gone")


def _keep_to_own_cores(rank: int, world_size: int) -> None:
    """Give each rank an equal block of the cores of this process, if there is one for each rank.

    All threads of a rank inherit its block, comm lanes and gloo's threads included. So a rank's
    communication never uses another rank's core, as between hosts. With one core per rank,
    communication shares it with compute; with more, it has its own.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // world_size
    if share:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
