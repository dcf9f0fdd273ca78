"""Profile a machine: start ranks, collect their messages, and keep the profile's file valid."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from domino_tune.base.units import rounded
from domino_tune.measure.contention_law import assumptions, contention_fit, with_earlier_sizes
from domino_tune.measure.laws import idle_lane_law, with_loads
from domino_tune.measure.probe_set import ProbeSet
from domino_tune.results.profile import Outlier
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from domino_tune.store.profiles import save_profile
from simulator.cpu_hosts import ResumeFit, ResumeRow, SkewFit, SkewRow
from simulator.lookup import Provenance, Timing
from simulator.lookup.attention import AttentionRow
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import PointwiseRow
from simulator.ops import Attention, Collective, Gemm, Pointwise, Signature
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    ContentionSection,
    GemmSection,
    LaunchSection,
    PointwiseSection,
    Profile,
    ResumeSection,
    SkewSection,
    gemm_key,
)

# Op rows ------------------------------------------------------------------------------------------
# Adds many rows of compute ops to a profile at once. A section is sorted and checked only once, so
# that adding a report takes milliseconds of a core that a rank may be using.

KINDS: Final[Mapping[str, type[Any]]] = {
    "gemm": Gemm, "attention": Attention, "pointwise": Pointwise, "collective": Collective,
}  # fmt: skip
SECTIONS: Final[Mapping[str, tuple[type[Any], type[Any], Callable[[Any], Any]]]] = {
    "gemm": (GemmSection, GemmRow, gemm_key),
    "attention": (AttentionSection, AttentionRow, attrgetter("key")),
    "pointwise": (PointwiseSection, PointwiseRow, attrgetter("key")),
}
"""Kind of op → its section, the section's row type, and the key of a row."""
TIMING: Final = ("median_us", "spread_us", "samples")
MEASURED: Final = Provenance(
    kind="measured",
    source="domino_tune profile: the runtime's own ops, timed in place on all ranks at once",
)


Row = TypeVar("Row", bound=Timing)


def signature_from(plain: list[Any]) -> Signature:
    """Return a signature from its JSON form: kind, then the fields."""
    kind, *fields = plain
    values = [tuple(value) if isinstance(value, list) else value for value in fields]
    signature: Signature = KINDS[kind](*values)
    return signature


def add_ops(
    profile: Profile, rows: Iterable[Mapping[str, Any]], before: Profile | None = None
) -> Profile:
    """Return ``profile`` with the ``ops`` rows of a ``plan`` message, each merged with its row in
    ``before``, which holds the measurements of earlier runs. A row of ``profile`` with more samples
    stays."""
    plain: dict[str, list[dict[str, Any]]] = {kind: [] for kind in SECTIONS}
    for row in rows:
        signature = signature_from(row["signature"])
        timing = {name: row[name] for name in TIMING}
        _, row_type, _ = SECTIONS[signature.kind]
        known = inspect.signature(row_type).parameters  # real ranks play no softcap, no ring
        shape = {name: value for name, value in signature._asdict().items() if name in known}
        plain[signature.kind].append({**shape, **timing})
    for kind, (section, row_type, key) in SECTIONS.items():
        if plain[kind]:
            found = [row_type(**row) for row in plain[kind]]
            by_key = [
                {key(row): row for row in some}
                for some in (_rows(profile, kind), _rows(before, kind), found)
            ]
            changed = section(rows=add_rows(*by_key), provenance=MEASURED)
            profile = replace(profile, **{kind: changed})
    return profile


def add_rows(
    known: Mapping[Any, Row], before: Mapping[Any, Row], found: Mapping[Any, Row]
) -> tuple[Row, ...]:
    """Return ``known`` and ``found`` rows, sorted by key. Found rows are merged with those of
    ``before``, the start of the run; a known row with more samples stays."""
    rows = dict(known)
    for key, row in found.items():
        whole = together(row, before[key]) if key in before else row
        if key not in rows or rows[key].samples <= whole.samples:
            rows[key] = whole
    return tuple(rows[key] for key in sorted(rows))


def together(one: Row, other: Row) -> Row:
    """Return two rows of one signature as one: means weighted by samples."""
    samples = one.samples + other.samples
    share = one.samples / samples
    timing = {
        "median_us": share * one.median_us + (1 - share) * other.median_us,
        "spread_us": share * one.spread_us + (1 - share) * other.spread_us,
        "samples": samples,
    }
    changed: Any = one
    merged: Row = (
        changed._replace(**timing) if hasattr(one, "_replace") else replace(changed, **timing)
    )
    return merged


def _rows(profile: Profile | None, kind: str) -> tuple[Any, ...]:
    section = getattr(profile, kind, None)
    return section.rows if section else ()


# Builds a profile from ranks' messages; each message makes it more complete -----------------------

Message = Mapping[str, Any]


def add_message(profile: Profile, message: Message, before: Profile | None = None) -> Profile:
    """Return ``profile`` with one message of ``domino_tune.measure.probes.rank_job`` added.

    A message holds all that its run has measured so far. ``before`` is the profile at the start of
    the run, whose timings count as well.
    """
    return _HANDLERS[message["kind"]](profile, message, before)


def _add_plan(profile: Profile, message: Message, before: Profile | None) -> Profile:
    profile = add_ops(profile, message["ops"], before)
    if "overhead_us" not in message:  # from a GPU, whose launches another probe measures
        return profile
    samples = message["overhead_samples"]
    if profile.launch and samples <= profile.launch.samples:  # a later run has fewer plans left
        return profile
    overhead_us = float(message["overhead_us"])
    computing = dict.fromkeys(("gemm", "attention", "pointwise"), overhead_us)
    known = profile.launch.cost_us if profile.launch else {}
    launch = LaunchSection(
        mode="inline", cost_us={**known, **computing}, samples=samples, provenance=MEASURED
    )
    return replace(profile, launch=launch)


def _add_collective(profile: Profile, message: Message, before: Profile | None) -> Profile:
    collective = Collective(*message["signature"])
    row = CollectiveRow(
        **{name: getattr(collective, name) for name in ("op", "nodes", "per_node", "ctas")},
        bytes=collective.size_bytes,
        **{name: message[name] for name in TIMING},
        behind_us=message.get("behind_us", 0.0),
    )
    known, earlier = (
        {r.key: r for r in (one.collectives.rows if one and one.collectives else ())}
        for one in (profile, before)
    )
    rows = add_rows(known, earlier, {row.key: row})
    section = CollectiveSection(rows=rows, idle_lane=idle_lane_law(rows), provenance=MEASURED)
    profile = replace(profile, collectives=section)
    if "hand_over_us" not in message or _knows_hand_over(before):
        return profile
    launch = profile.launch or LaunchSection(mode="inline", cost_us={}, provenance=MEASURED)
    cost_us = {**launch.cost_us, "collective": message["hand_over_us"]}
    return replace(profile, launch=replace(launch, cost_us=cost_us))


def _knows_hand_over(before: Profile | None) -> bool:
    """Return whether an earlier run measured it: the next one may time only a few collectives."""
    return bool(before and before.launch and "collective" in before.launch.cost_us)


def _add_contention(profile: Profile, message: Message, before: Profile | None) -> Profile:
    rows, lanes = message["rows"], message.get("lanes")
    if not rows:
        return profile
    fit = contention_fit(
        rows, sm_count=profile.machine.sm_count, lanes=lanes, waits=message.get("waits")
    )
    if before and before.contention:
        fit = with_earlier_sizes(fit, before.contention.fit)
    provenance = replace(MEASURED, note=assumptions(rows, lanes))
    return replace(profile, contention=ContentionSection(fit=fit, provenance=provenance))


def _add_launch(profile: Profile, message: Message, before: Profile | None) -> Profile:
    launch = LaunchSection(mode="async", cost_us=dict(message["cost_us"]), provenance=MEASURED)
    return replace(profile, launch=launch)


def _add_skew(profile: Profile, message: Message, before: Profile | None) -> Profile:
    if profile.skew and message["samples"] <= profile.skew.fit.samples:
        return profile
    step_excess = message["step_excess"]
    if step_excess is None:  # no plan was left to play: what an earlier run found holds
        step_excess = profile.skew.fit.step_excess if profile.skew else 0.0
    fit = SkewFit(
        slowest_factor=message["slowest"],
        step_excess=step_excess,
        rows=tuple(SkewRow(*row) for row in message["rows"]),
        beside=tuple(SkewRow(*row) for row in message["beside"]),
        error=message["error"],
        samples=message["samples"],
    )
    return replace(profile, skew=SkewSection(fit=fit, provenance=MEASURED))


def _add_resume(profile: Profile, message: Message, before: Profile | None) -> Profile:
    if profile.resume and message["samples"] <= profile.resume.fit.samples:
        return profile
    fit = ResumeFit(
        rows=tuple(ResumeRow(*row) for row in message["rows"]),
        recovery_us=message["recovery_us"],
        error=message["error"],
        samples=message["samples"],
    )
    return replace(profile, resume=ResumeSection(fit=fit, provenance=MEASURED))


def _add_power(profile: Profile, message: Message, before: Profile | None) -> Profile:
    return replace(profile, power=with_loads(profile.power, message))


_HANDLERS: Final[Mapping[str, Callable[[Profile, Message, Profile | None], Profile]]] = {
    "skew": _add_skew,
    "resume": _add_resume,
    "plan": _add_plan,
    "collective": _add_collective,
    "contention": _add_contention,
    "launch": _add_launch,
    "power": _add_power,
}


def with_peaks(profile: Profile) -> Profile:
    """Return ``profile`` with the highest FLOP rate of a GEMM, by dtype, and the highest byte rate
    of a pointwise op. Rates without timings stay as assumed."""
    machine = profile.machine
    tflops: dict[str, float] = {}
    for row in profile.gemm.rows if profile.gemm else ():
        rate = Gemm(row.m, row.n, row.k).flops / row.median_us / 1e6
        tflops[row.dtype] = max(rate, tflops.get(row.dtype, 0.0))
    points = profile.pointwise.rows if profile.pointwise else ()
    gb_s = [(row.bytes_read + row.bytes_written) / row.median_us / 1e3 for row in points]
    return replace(
        profile,
        machine=replace(
            machine,
            peak_tflops={**machine.peak_tflops, **{k: rounded(v) for k, v in tflops.items()}},
            memory_bandwidth_gb_s=rounded(max(gb_s)) if gb_s else machine.memory_bandwidth_gb_s,
        ),
    )


# Profile a machine --------------------------------------------------------------------------------
# Start ranks, collect their messages, and keep the profile's file valid.

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


# Rows with a large spread -------------------------------------------------------------------------
# The machine was disturbed, or the op has no single duration.

LARGE_SPREAD: Final = 0.25
"""Half of the interquartile range of the timings, over their median."""
SHORT_US: Final = 50.0
"""Shortest median: below it, clocks and interrupts alone cause such a spread."""


def outliers_of(profile: Profile) -> tuple[Outlier, ...]:
    """Return the rows with a large spread, longest op first."""
    found = []
    for name in ("gemm", "attention", "pointwise", "collectives"):
        section = getattr(profile, name)
        for row in section.rows if section else ():
            spread = row.spread_us / row.median_us
            if spread > LARGE_SPREAD and row.median_us >= SHORT_US:
                found.append(
                    Outlier(section=name, op=_op(row), median_us=row.median_us, spread=spread)
                )
    return tuple(sorted(found, key=lambda outlier: -outlier.median_us))


def _op(row: object) -> str:
    """Return the op's signature as a short text."""
    fields = row._asdict() if hasattr(row, "_asdict") else vars(row)
    timing = ("median_us", "spread_us", "samples")
    return " ".join(f"{k}={v}" for k, v in fields.items() if k not in timing and v is not False)
