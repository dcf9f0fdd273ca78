"""Is a profile of this machine? Compares what durations hang on, not what changes by itself.

Versions of the kernel, of Python, of drivers and clocks are recorded in profiles for the reader;
they do not make it another machine.
"""

from __future__ import annotations

from typing import Final

from simulator.profile import Machine

FIELDS: Final = ("gpu", "gpus_per_node", "sm_count", "backend")
DETAILS: Final = (
    "cores", "threads_per_rank", "communication_priority", "link_bits_per_s", "topology",
)  # fmt: skip
"""Keys of ``Machine.details`` that count, beside NCCL's settings; ``link_bits_per_s`` is that of an
emulated link."""


def differences(profiled: Machine, this: Machine) -> list[str]:
    """What makes ``this`` another machine than the ``profiled`` one: ``cores: profiled 8, here 2``.

    Empty where a profile may be used here. A detail that is missing on both sides is the same.
    """
    old, new = compared_fields(profiled), compared_fields(this)
    on_cpus = profiled.backend == this.backend == "gloo"
    return [
        _told(name, old.get(name, "none"), new.get(name, "none"), on_cpus=on_cpus)
        for name in dict.fromkeys((*FIELDS, *DETAILS, *sorted({*old, *new})))
        if old.get(name) != new.get(name)
    ]


def _told(name: str, old: str | int, new: str | int, *, on_cpus: bool) -> str:
    """One difference. A node of CPUs has as many "GPUs" as ranks, which share its cores."""
    if name == "gpus_per_node" and on_cpus:
        return (
            f"ranks on a node: profiled {old}, here {new}; ranks share cores, so each number of "
            "ranks needs a profile of its own"
        )
    return f"{name}: profiled {old}, here {new}"


def compared_fields(machine: Machine) -> dict[str, str | int]:
    """What durations hang on, name -> value; details that are not known are left out."""
    details = {
        name: value
        for name, value in machine.details.items()
        if name in DETAILS or _is_setting(name)
    }
    return {**{name: getattr(machine, name) for name in FIELDS}, **dict(sorted(details.items()))}


def _is_setting(name: str) -> bool:
    """Whether a detail is a setting of NCCL's that changes how fast collectives are."""
    return name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG")
