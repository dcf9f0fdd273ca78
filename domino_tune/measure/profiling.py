"""Profile a machine: start ranks, gather what they report, keep a valid file at every moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from domino_tune.measure.collect import add_message
from domino_tune.measure.op_rows import signature_from
from domino_tune.measure.peaks import with_peaks
from domino_tune.measure.probe_set import Wanted
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from domino_tune.store.profiles import save_profile
from simulator.ops import Signature
from simulator.profile import Profile

JOB: Final = "domino_tune.measure.probes.rank_job:profile"
SAVE_EVERY_S: Final = 1.0
"""Written no more often than this: a whole file each time, synced to disk."""
Listener = Callable[[Mapping[str, Any]], None]


def measure_profile(
    profile: Profile,
    wanted: Wanted,
    spec: LaunchSpec,
    path: Path,
    *,
    samples: int,
    seconds: float | None = None,
    listener: Listener = lambda message: None,
) -> Profile:
    """``profile`` with what is ``wanted`` measured into it; ``path`` is written as it grows.

    ``listener`` hears every message of the ranks. ``wanted`` may be of a larger cluster than
    ``spec`` starts ranks for: then compute alone is measured, on the shards of that cluster.
    However this ends, what was measured is in the file.
    """
    cluster = wanted.cases[0].cluster if wanted.cases else None
    if cluster is not None and spec.world_size < cluster.world_size:
        wanted = wanted.without_collectives()
    keeper = Keeper(profile, path, wanted.ops)

    def hear(message: Mapping[str, Any]) -> None:
        keeper.add(message)
        listener(message)

    try:
        run_job(JOB, wanted.payload(samples, seconds), spec, on_message=hear)
    finally:
        keeper.save()
    return keeper.profile


class Keeper:
    """Folds messages of ranks into a profile, and keeps its file up to date.

    Of ops, only those in ``ops`` are kept: probes also play some that no plan of the job has.
    What the profile held before counts: timings of a run that was cut short are not lost.
    """

    def __init__(self, profile: Profile, path: Path, ops: frozenset[Signature]) -> None:
        self.profile = profile
        self._before = profile
        self._path = path
        self._ops = ops
        self._changed = False
        self._saved_s = -SAVE_EVERY_S

    def add(self, message: Mapping[str, Any]) -> None:
        """Fold one message in; save if the last time is long enough ago."""
        found = self._folded(message)
        if found is self.profile:
            return
        self.profile, self._changed = found, True
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Write the file where it is not up to date, with the peak rates seen so far."""
        if self._changed:
            self.profile = with_peaks(self.profile)
            save_profile(self.profile, self._path)
            self._changed, self._saved_s = False, time.monotonic()

    def _folded(self, message: Mapping[str, Any]) -> Profile:
        kind = message["kind"]
        if kind in ("progress", "end"):
            return self.profile
        if kind == "plan":
            rows = [r for r in message["ops"] if signature_from(r["signature"]) in self._ops]
            message = {**message, "ops": rows}
        return add_message(self.profile, message, self._before)
