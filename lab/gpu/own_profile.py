"""A profile of this GPU and host: rows and launch costs measured here, the rest of another one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from domino_tune.measure.importers.merge import merged_section
from domino_tune.measure.op_rows import SECTIONS
from simulator.profile import LaunchSection, Profile
from simulator.provenance import Provenance

MEASURED: Final = Provenance(
    kind="measured", source="scripts/gpu: ops in place on the GPU that ran the plans"
)


def with_launch(mine: Profile, costs_us: Sequence[Mapping[str, float]]) -> Profile:
    """Return ``mine`` with the mean of the launch costs of all workloads, if there are any."""
    if not costs_us:
        return mine
    mean = {kind: statistics.fmean(one[kind] for one in costs_us) for kind in costs_us[0]}
    launch = LaunchSection(mode="async", cost_us=mean, provenance=MEASURED)
    return replace(mine, launch=launch)


def laid_over(base: Profile, mine: Profile) -> Profile:
    """Return ``base`` with rows and launch costs of ``mine`` in place of its own.

    Laws stay; those of an assumed section are assumed, see ``merged_section``.
    """
    changed: dict[str, Any] = {"launch": mine.launch or base.launch}
    for kind, (_, _, key) in SECTIONS.items():
        below, above = getattr(base, kind), getattr(mine, kind)
        if above is None:
            continue
        rows = {key(row): row for section in (below, above) if section for row in section.rows}
        note = f"Laid over {base.name}: {below.provenance.note}" if below else ""
        ordered = [rows[at] for at in sorted(rows)]
        changed[kind] = merged_section(below or above, ordered, replace(MEASURED, note=note))
    return replace(base, name="this-gpu", created=mine.created, **changed)
