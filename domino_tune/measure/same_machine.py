"""Is a profile of this machine? Compares what durations hang on, not what changes by itself.

Versions of the kernel, of Python, of drivers and clocks are recorded in profiles for the reader;
they do not make it another machine.
"""

from __future__ import annotations

from typing import Final

from simulator.profile import Machine

FIELDS: Final = ("gpu", "gpus_per_node", "sm_count", "backend")
DETAILS: Final = ("cores", "threads_per_rank", "link_bits_per_s", "topology")
"""Keys of ``Machine.details`` that count, beside NCCL's settings; ``link_bits_per_s`` is that of an
emulated link."""


def differences(profiled: Machine, this: Machine) -> list[str]:
    """What makes ``this`` another machine than the ``profiled`` one: ``cores: profiled 8, here 2``.

    Empty where a profile may be used here. A detail that is missing on both sides is the same.
    """
    pairs = [(name, getattr(profiled, name), getattr(this, name)) for name in FIELDS]
    settings = {name for name in (*profiled.details, *this.details) if _is_setting(name)}
    pairs += [
        (name, profiled.details.get(name, "none"), this.details.get(name, "none"))
        for name in (*DETAILS, *sorted(settings))
    ]
    return [f"{name}: profiled {old}, here {new}" for name, old, new in pairs if old != new]


def _is_setting(name: str) -> bool:
    """Whether a detail is a setting of NCCL's that changes how fast collectives are."""
    return name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG")
