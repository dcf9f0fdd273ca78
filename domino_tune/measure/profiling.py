"""Profile a machine: start ranks, collect their messages, and keep the profile's file valid."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from domino_tune.measure.collect import add_message
from domino_tune.measure.op_rows import signature_from
from domino_tune.measure.peaks import with_peaks
from domino_tune.measure.probe_set import ProbeSet
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from domino_tune.store.profiles import save_profile
from simulator.ops import Signature
from simulator.profile import Profile

JOB: Final = "domino_tune.measure.probes.rank_job:profile"
SAVE_EVERY_S: Final = 1.0
"""Shortest time between two writes: each writes the whole file and syncs it to disk."""
Listener = Callable[[Mapping[str, Any]], None]


def measure_profile(
    profile: Profile,
    probes: ProbeSet,
    spec: LaunchSpec,
    path: Path,
    *,
    samples: int,
    seconds: float | None = None,
    listener: Listener = lambda message: None,
) -> Profile:
    """Measure ``probes`` and return ``profile`` with the results; ``path`` is written meanwhile.

    ``listener`` gets every message of the ranks. ``probes`` may be for a larger cluster than
    ``spec`` starts: then only compute is measured, on the shards of that cluster. The file holds
    all measurements also after an error.
    """
    cluster = probes.cases[0].cluster if probes.cases else None
    if cluster is not None and spec.world_size < cluster.world_size:
        probes = probes.without_collectives()
    keeper = Keeper(profile, path, probes.ops)

    def hear(message: Mapping[str, Any]) -> None:
        keeper.add(message)
        listener(message)

    try:
        run_job(JOB, probes.payload(samples, seconds), spec, on_message=hear)
    finally:
        keeper.save()
    return keeper.profile


class Keeper:
    """Adds messages of ranks to a profile, and keeps its file up to date.

    Of ops, only those in ``ops`` are stored: probes also play some that no plan of the job has.
    Earlier timings in the profile count: timings of an interrupted run are not lost.
    """

    def __init__(self, profile: Profile, path: Path, ops: frozenset[Signature]) -> None:
        self.profile = profile
        self._before = profile
        self._path = path
        self._ops = ops
        self._changed = False
        self._saved_s = -SAVE_EVERY_S

    def add(self, message: Mapping[str, Any]) -> None:
        """Add one message; save if SAVE_EVERY_S have passed since the last time."""
        found = self._with(message)
        if found is self.profile:
            return
        self.profile, self._changed = found, True
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Write the file, with the peak rates seen so far, if it is out of date."""
        if self._changed:
            self.profile = with_peaks(self.profile)
            save_profile(self.profile, self._path)
            self._changed, self._saved_s = False, time.monotonic()

    def _with(self, message: Mapping[str, Any]) -> Profile:
        kind = message["kind"]
        if kind in ("progress", "end"):
            return self.profile
        if kind == "plan":
            rows = [r for r in message["ops"] if signature_from(r["signature"]) in self._ops]
            message = {**message, "ops": rows}
        return add_message(self.profile, message, self._before)
