"""The facts of this machine that timings depend on, and whether a profile's is the same one."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Final

from domino_tune.runtime.launch import find_launcher
from domino_tune.runtime.launch_spec import LaunchSpec, may_be_urgent
from simulator.dtypes import GIB
from simulator.profile import Machine

PEAK_TFLOPS: Final = {"gloo": 0.1, "nccl": 100.0}
"""Assumed by backend until a GEMM has been timed: for one CPU thread, and for a GPU."""
MEMORY_GB_S: Final = {"gloo": 10.0, "nccl": 1000.0}
"""Assumed by backend until a pointwise op has been timed."""
HALF_DTYPES: Final = ("bf16", "fp16")
_ASK_TORCH: Final = """
import json, torch
device = torch.cuda.get_device_properties(0)
print(json.dumps({
    "gpu": device.name, "sm_count": device.multi_processor_count,
    "memory_gib": device.total_memory / 2**30, "count": torch.cuda.device_count(),
    "cuda": str(torch.version.cuda), "nccl": ".".join(map(str, torch.cuda.nccl.version())),
}))
"""
_SMI_FIELDS: Final = {
    "driver_version": "driver",
    "clocks.max.sm": "clocks_sm_max",
    "clocks.max.mem": "clocks_memory_max",
    "power.limit": "power_limit",
}


def machine_of(spec: LaunchSpec, env: Mapping[str, str] = os.environ) -> Machine:
    """Return the machine as the ranks of ``spec`` use it; peaks are assumed until ops are timed."""
    details = {"threads_per_rank": str(spec.threads_per_rank), **nccl_settings(env)}
    if spec.backend == "gloo":
        details["communication_priority"] = "real-time" if may_be_urgent() else "normal"
    if spec.emulate_link_bits_per_s is not None:
        details["link_bits_per_s"] = str(spec.emulate_link_bits_per_s)
    per_node = ranks_per_node(spec, env)
    here = this_machine(per_node, spec.backend, details, sharing=ranks_here(spec, env))
    return _with_gpus(here) if spec.backend == "nccl" else here


def ranks_per_node(spec: LaunchSpec, env: Mapping[str, str] = os.environ) -> int:
    """Return the ranks per node: the launcher's number, half with an emulated link, else all."""
    launcher = find_launcher(env)
    if launcher is not None:
        return min(spec.world_size, launcher.ranks_here)
    hosts = 1 if spec.emulate_link_bits_per_s is None else 2
    return max(1, spec.world_size // hosts)


def ranks_here(spec: LaunchSpec, env: Mapping[str, str] = os.environ) -> int:
    """Return the ranks that share this machine's memory: both hosts' with an emulated link."""
    return spec.world_size if find_launcher(env) is None else ranks_per_node(spec, env)


def this_machine(
    ranks: int, backend: str, details: Mapping[str, str], *, sharing: int | None = None
) -> Machine:
    """Return a CPU machine with ``ranks`` ranks per node; measurements refine the peaks.

    ``sharing`` ranks share its memory; None means ``ranks``.
    """
    memory_gib = memory_bytes() / GIB
    peak = PEAK_TFLOPS[backend]
    return Machine(
        gpu=cpu_name(),
        gpus_per_node=ranks,
        gpu_memory_gib=round(memory_gib / (sharing or ranks), 3),
        sm_count=1,
        peak_tflops={"fp32": peak, "fp64": peak / 2, **dict.fromkeys(HALF_DTYPES, peak)},
        memory_bandwidth_gb_s=MEMORY_GB_S[backend],
        backend=backend,
        details={
            "cores": str(os.cpu_count()),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "torch": _version("torch"),
            **details,
        },
    )


def add_machine_message(machine: Machine, message: Mapping[str, Any]) -> Machine:
    """Return ``machine`` with what a rank on a GPU reports: ``gpu``, ``sm_count``, ``memory_gib``
    and ``details``."""
    return replace(
        machine,
        gpu=message.get("gpu", machine.gpu),
        sm_count=message.get("sm_count", machine.sm_count),
        gpu_memory_gib=round(message.get("memory_gib", machine.gpu_memory_gib), 3),
        memory_reported=machine.memory_reported or "memory_gib" in message,
        details={**machine.details, **message.get("details", {})},
    )


def nccl_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return the NCCL_* variables that are set: they change the speed of collectives."""
    return {name: env[name] for name in sorted(env) if name.startswith("NCCL_")}


def cpu_name() -> str:
    """Return the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _with_gpus(machine: Machine) -> Machine:
    """Return ``machine`` with its first GPU's figures; unchanged where torch sees no GPU."""
    query = subprocess.run(
        [sys.executable, "-P", "-c", _ASK_TORCH], capture_output=True, text=True, check=False
    )
    if query.returncode:
        return machine
    found: dict[str, Any] = json.loads(query.stdout)
    details = {"cuda": found["cuda"], "nccl": found["nccl"], **_nvidia_smi()}
    changed = add_machine_message(machine, {**found, "details": details})
    return replace(changed, gpus_per_node=max(machine.gpus_per_node, found["count"]))


def _nvidia_smi() -> dict[str, str]:
    """Return driver and clocks of the first GPU; empty where nvidia-smi is missing or fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    query = subprocess.run(
        [tool, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    first = query.stdout.partition("\n")[0].split(",")
    if query.returncode or len(first) != len(_SMI_FIELDS):
        return {}
    return {name: text.strip() for name, text in zip(_SMI_FIELDS.values(), first, strict=True)}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


# Memory that the processes of this machine may use ------------------------------------------------
# All of it, or a container's limit.

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")


def memory_bytes() -> int:
    """Return the physical memory, or the least limit of this process's control groups, bytes."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *cgroup_limits()])


def cgroup_limits(root: Path = ROOT, own: Path = OWN) -> Iterator[int]:
    """Yield the memory limits, bytes, of this process's control groups, of either version."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield from _limits(root, group, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(root / "memory", group, "memory.limit_in_bytes")


def _limits(root: Path, group: str, name: str) -> Iterator[int]:
    """Yield limits from the group up to the root: a container's own group is often the root."""
    inside = PurePosixPath(group.lstrip("/"))
    for folder in (inside, *inside.parents):
        try:
            text = (root / folder / name).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if text.isdecimal():  # not "max"
            yield int(text)


# Compares a profile's machine with this one, in what durations depend on --------------------------
# Profiles also record versions of the kernel, Python and drivers, and clocks, for the reader; they
# do not make another machine.

FIELDS: Final = ("gpu", "gpus_per_node", "sm_count", "backend")
DETAILS: Final = (
    "cores", "threads_per_rank", "communication_priority", "link_bits_per_s", "topology",
)  # fmt: skip
"""Keys of ``Machine.details`` that count, besides NCCL's settings; ``link_bits_per_s`` is the speed
of an emulated link."""


def differences(profiled: Machine, this: Machine) -> list[str]:
    """Return what makes ``this`` another machine than ``profiled``: ``cores: profiled 8, here 2``.

    Empty where the profile is valid here. A detail that is missing in both is equal.
    """
    old, new = compared_fields(profiled), compared_fields(this)
    on_cpus = profiled.backend == this.backend == "gloo"
    return [
        _difference(name, old.get(name, "none"), new.get(name, "none"), on_cpus=on_cpus)
        for name in dict.fromkeys((*FIELDS, *DETAILS, *sorted({*old, *new})))
        if old.get(name) != new.get(name)
    ]


def _difference(name: str, old: str | int, new: str | int, *, on_cpus: bool) -> str:
    """Return one difference as text. On CPUs, ``gpus_per_node`` is the number of ranks."""
    if name == "gpus_per_node" and on_cpus:
        return (
            f"ranks on a node: profiled {old}, here {new}; ranks share cores, so each number of "
            "ranks needs a profile of its own"
        )
    return f"{name}: profiled {old}, here {new}"


def compared_fields(machine: Machine) -> dict[str, str | int]:
    """Return what durations depend on, name -> value; unknown details are left out."""
    details = {
        name: value
        for name, value in machine.details.items()
        if name in DETAILS or (name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG"))
    }
    return {**{name: getattr(machine, name) for name in FIELDS}, **dict(sorted(details.items()))}
