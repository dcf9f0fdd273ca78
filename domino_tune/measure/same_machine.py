"""Compares a profile's machine with this one, in what durations depend on.

Profiles also record versions of the kernel, Python and drivers, and clocks, for the reader; they
do not make another machine.
"""

from __future__ import annotations

from typing import Final

from simulator.profile import Machine

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
        if name in DETAILS or _is_setting(name)
    }
    return {**{name: getattr(machine, name) for name in FIELDS}, **dict(sorted(details.items()))}


def _is_setting(name: str) -> bool:
    """Return whether a detail is an NCCL setting that changes the speed of collectives."""
    return name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG")
