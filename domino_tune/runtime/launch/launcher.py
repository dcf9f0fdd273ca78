"""The launcher that started this process as a rank: torchrun, Slurm, or none."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from domino_tune.runtime.launch_spec import LaunchSpec
from simulator.errors import InputError

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
