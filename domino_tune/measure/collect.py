"""Builds a profile from ranks' messages; each message makes it more complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from domino_tune.measure.contention_law import assumptions, contention_fit, with_earlier_sizes
from domino_tune.measure.idle_lane_law import idle_lane_law
from domino_tune.measure.op_rows import MEASURED, add_ops, add_rows
from domino_tune.measure.power_law import with_loads
from simulator.cpu_hosts import ResumeFit, ResumeRow, SkewFit, SkewRow
from simulator.lookup.collectives import CollectiveRow
from simulator.ops import Collective
from simulator.profile import (
    CollectiveSection,
    ContentionSection,
    LaunchSection,
    Profile,
    ResumeSection,
    SkewSection,
)

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
        op=collective.op,
        nodes=collective.nodes,
        per_node=collective.per_node,
        ctas=collective.ctas,
        bytes=collective.size_bytes,
        median_us=message["median_us"],
        spread_us=message["spread_us"],
        samples=message["samples"],
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
