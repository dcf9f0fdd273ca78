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
    return [
        f"{name}: profiled {old.get(name, 'none')}, here {new.get(name, 'none')}"
        for name in dict.fromkeys((*FIELDS, *DETAILS, *sorted({*old, *new})))
        if old.get(name) != new.get(name)
    ]


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
