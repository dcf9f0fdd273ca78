"""From what ranks report to a profile: every message makes it a little more complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from domino_tune.measure.contention_law import contention_fit
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
    Provenance,
    SkewSection,
    gemm_key,
)
from simulator.skew import SkewFit, SkewRow

KINDS: Mapping[str, type[Any]] = {
    "gemm": Gemm, "attention": Attention, "pointwise": Pointwise, "collective": Collective,
}  # fmt: skip
MEASURED = Provenance(
    kind="measured",
    source="domino_tune profile: the runtime's own ops, timed in place on all ranks at once",
)


def add_message(profile: Profile, message: Mapping[str, Any]) -> Profile:
    """``profile`` with one message of ``domino_tune.measure.rank_job`` added to it."""
    return _HANDLERS[message["kind"]](profile, message)


def signature_from(plain: list[Any]) -> Signature:
    """A signature from its JSON form: kind, then the fields."""
    kind, *fields = plain
    values = [tuple(value) if isinstance(value, list) else value for value in fields]
    signature: Signature = KINDS[kind](*values)
    return signature


def _add_plan(profile: Profile, message: Mapping[str, Any]) -> Profile:
    for row in message["ops"]:
        profile = _add_op(profile, signature_from(row["signature"]), row)
    if "overhead_us" not in message:  # of a GPU, whose launches are measured apart
        return profile
    computing = dict.fromkeys(("gemm", "attention", "pointwise"), message["overhead_us"])
    known = profile.launch.cost_us if profile.launch else {}
    launch = LaunchSection(mode="inline", cost_us={**known, **computing}, provenance=MEASURED)
    return replace(profile, launch=launch)


def _add_op(profile: Profile, signature: Signature, row: Mapping[str, Any]) -> Profile:
    timing = {name: row[name] for name in ("median_us", "spread_us", "samples")}
    fields = signature._asdict()
    if isinstance(signature, Gemm):
        gemms = {gemm_key(r): r for r in (profile.gemm.rows if profile.gemm else ())}
        added = GemmRow(**fields, **timing)
        _keep(gemms, gemm_key(added), added)
        ordered = tuple(gemms[key] for key in sorted(gemms))
        return replace(profile, gemm=GemmSection(rows=ordered, provenance=MEASURED))
    if isinstance(signature, Attention):
        attentions = {r.key: r for r in (profile.attention.rows if profile.attention else ())}
        core = AttentionRow(**fields, **timing)
        _keep(attentions, core.key, core)
        section = AttentionSection(
            rows=tuple(attentions[key] for key in sorted(attentions)), provenance=MEASURED
        )
        return replace(profile, attention=section)
    assert isinstance(signature, Pointwise)
    points = {r.key: r for r in (profile.pointwise.rows if profile.pointwise else ())}
    point = PointwiseRow(**fields, **timing)
    _keep(points, point.key, point)
    rows = tuple(points[key] for key in sorted(points))
    return replace(profile, pointwise=PointwiseSection(rows=rows, provenance=MEASURED))


def _keep(rows: dict[Any, Any], key: Any, row: Any) -> None:
    """Put ``row`` in, unless what is there rests on more samples."""
    known = rows.get(key)
    if known is None or known.samples <= row.samples:
        rows[key] = row


def _add_collective(profile: Profile, message: Mapping[str, Any]) -> Profile:
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
    )
    rows = {r.key: r for r in (profile.collectives.rows if profile.collectives else ())}
    _keep(rows, row.key, row)
    section = CollectiveSection(rows=tuple(rows[key] for key in sorted(rows)), provenance=MEASURED)
    profile = replace(profile, collectives=section)
    if "hand_over_us" not in message:
        return profile
    launch = profile.launch or LaunchSection(mode="inline", cost_us={}, provenance=MEASURED)
    cost_us = {**launch.cost_us, "collective": message["hand_over_us"]}
    return replace(profile, launch=replace(launch, cost_us=cost_us))


def _add_contention(profile: Profile, message: Mapping[str, Any]) -> Profile:
    if not message["rows"]:
        return profile
    fit = contention_fit(message["rows"], sm_count=profile.machine.sm_count)
    return replace(profile, contention=ContentionSection(fit=fit, provenance=MEASURED))


def _add_launch(profile: Profile, message: Mapping[str, Any]) -> Profile:
    launch = LaunchSection(mode="async", cost_us=dict(message["cost_us"]), provenance=MEASURED)
    return replace(profile, launch=launch)


def _add_skew(profile: Profile, message: Mapping[str, Any]) -> Profile:
    fit = SkewFit(
        slowest_factor=message["slowest"],
        rows=tuple(SkewRow(*row) for row in message["rows"]),
        error=0.02,
    )
    return replace(profile, skew=SkewSection(fit=fit, provenance=MEASURED))


def _nothing(profile: Profile, message: Mapping[str, Any]) -> Profile:
    return profile


_HANDLERS = {
    "skew": _add_skew,
    "progress": _nothing,
    "end": _nothing,
    "plan": _add_plan,
    "collective": _add_collective,
    "contention": _add_contention,
    "launch": _add_launch,
}
