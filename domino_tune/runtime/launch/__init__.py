"""Launch: starts ranks and connects them. May import lanes, launch_spec and base."""

from __future__ import annotations

import mmap
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from domino_tune.runtime.launch_spec import LaunchSpec
from simulator.errors import InputError

# The launcher that started this process as a rank -------------------------------------------------
# Torchrun, Slurm, or none.

_FIRST_HOST: Final = re.compile(r"([^,\[]+)(?:\[([^],-]+)[^]]*\]([^,]*))?")


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The launcher of this rank, with what it set. ``address`` is (host, port) of rank 0's store;
    ``ranks_here`` is the number of ranks on this node."""

    name: str
    rank: int
    world_size: int
    local_rank: int
    ranks_here: int
    address: tuple[str, int]

    def check(self, spec: LaunchSpec) -> None:
        """Raise InputError unless the launcher's world is the one that ``spec`` asks for."""
        if self.world_size != spec.world_size:
            raise InputError(
                f"{self.name} started {self.world_size} ranks, but tp × dp = {spec.tp} × {spec.dp} "
                f"= {spec.world_size}; start {spec.world_size}, or change --tp or --dp."
            )
        if spec.emulate_link_bits_per_s is not None:
            raise InputError(
                f"An emulated link needs ranks that this process starts itself, not {self.name}; "
                f"run without {self.name}, or without --emulate-link."
            )


def find_launcher(env: Mapping[str, str] = os.environ) -> Launcher | None:
    """Return the launcher of this process; None when the process must start its own ranks."""
    if "RANK" in env and "WORLD_SIZE" in env:
        return Launcher(
            name="torchrun",
            rank=_number(env, "RANK"),
            world_size=_number(env, "WORLD_SIZE"),
            local_rank=_number(env, "LOCAL_RANK", default=env["RANK"]),
            ranks_here=_ranks_here(env.get("LOCAL_WORLD_SIZE", ""), env["WORLD_SIZE"]),
            address=(env.get("MASTER_ADDR", "localhost"), _number(env, "MASTER_PORT", "29500")),
        )
    # A batch script or a shell of an allocation is no step of several tasks, even where it has
    # SLURM_NTASKS: there, this process starts the ranks.
    tasks = "SLURM_STEP_NUM_TASKS"
    if "SLURM_PROCID" in env and _number(env, tasks, default="1") > 1:
        # The port depends on the job, as jobs may share a node; the kernel uses those over 32767.
        port = 15000 + _number(env, "SLURM_JOB_ID", default="0") % 15000
        nodes = env.get("SLURM_STEP_NODELIST", env.get("SLURM_NODELIST", "localhost"))
        return Launcher(
            name="Slurm",
            rank=_number(env, "SLURM_PROCID"),
            world_size=_number(env, tasks),
            local_rank=_number(env, "SLURM_LOCALID", default="0"),
            ranks_here=_ranks_here(env.get("SLURM_STEP_TASKS_PER_NODE", ""), env[tasks]),
            address=(
                env.get("MASTER_ADDR", first_host(nodes)),
                _number(env, "MASTER_PORT", default=str(port)),
            ),
        )
    return None


def _ranks_here(text: str, world: str) -> int:
    """Return the first number of a launcher's ``text`` (Slurm's 8(x2): 8 on each of two nodes);
    the whole world where it has none."""
    found = re.match(r"\d+", text)
    return max(1, min(int(world), int(found[0]) if found else int(world)))


def first_host(nodelist: str) -> str:
    """Return the first host of Slurm's list: ``gpu07`` of ``gpu[07-09,12],login1``."""
    match = _FIRST_HOST.match(nodelist)
    if match is None:
        raise InputError(f"Cannot read host list {nodelist!r}; set MASTER_ADDR to rank 0's host.")
    return f"{match[1]}{match[2] or ''}{match[3] or ''}"


def _number(env: Mapping[str, str], name: str, default: str = "") -> int:
    text = env.get(name, default)
    if not text.isdecimal():
        raise InputError(
            f"The environment says {name}={text!r}, which is not a whole number ≥ 0; "
            "unset it, or start with torchrun or srun, which set it."
        )
    return int(text)


# The parent's view of its ranks -------------------------------------------------------------------
# Which are alive, which are stuck, which failed first.

TAIL_LINES: Final = 25
STACKS: Final = "Where each thread is, innermost call first:"
"""Written above the stacks that a rank dumps on request."""
_BEAT, _FAILED, _SLOTS = 0, 1, 2


class Heartbeats:
    """Two times per rank, CLOCK_MONOTONIC ns, in a file that all map: last progress, and failure.

    All processes of a machine share the clock, so times of different ranks can be compared.
    """

    def __init__(self, path: Path, ranks: int) -> None:
        """Map ``path``; create it first, with all times 0, if it does not exist."""
        size = ranks * _SLOTS * 8
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._times = memoryview(self._map).cast("q")
        self.ranks = ranks

    def beat(self, rank: int) -> None:
        """Record progress of ``rank``."""
        self._times[rank * _SLOTS + _BEAT] = time.monotonic_ns()

    def fail(self, rank: int) -> None:
        """Record that ``rank`` met an error and is about to end. Must precede the closing of its
        sockets, so that the failures this causes on other ranks are later."""
        self._times[rank * _SLOTS + _FAILED] = time.monotonic_ns()

    def last_beat_ns(self, rank: int) -> int:
        """Return the time of the last progress, ns; 0 before the first."""
        return self._times[rank * _SLOTS + _BEAT]

    def failed_ns(self, rank: int) -> int:
        """Return the time of the error, ns; 0 without one, as of a rank that was killed."""
        return self._times[rank * _SLOTS + _FAILED]

    def close(self) -> None:
        """Unmap the file."""
        self._times.release()
        self._map.close()


def first_to_die(exit_codes: dict[int, int], beats: Heartbeats) -> int:
    """Return the rank that caused the failure: a killed one, else the first to fail."""
    return min(exit_codes, key=lambda rank: (beats.failed_ns(rank), rank))


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP, debugger); False where /proc is missing."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "tT"


def how_it_ended(exit_code: int) -> str:
    """Return ``ended with exit code 3``, or ``was killed by SIGKILL`` for a negative code."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    memory = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{memory}"


def tail(path: Path) -> str:
    """Return the last lines of a rank's stderr."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    last = [line.rstrip() for line in lines[-TAIL_LINES:]]
    return "\n".join(["The end of its stderr:", *last]) if last else "Its stderr is empty."


def waits_for_others(stderr: Path) -> bool:
    """Return whether the stacks at the end of a rank's stderr show its main thread in a collective
    or waiting for one: then another rank holds it up."""
    text = stderr.read_text(errors="replace") if stderr.exists() else ""
    threads = text.rpartition(f"{STACKS}\n")[2].split("\n\n")
    main = next((stack for stack in threads if "_run_module_as_main" in stack), "")
    return any(place in main for place in ("distributed_c10d.py", "runtime/lanes/lane.py"))
