"""Many rows of compute ops into a profile at once: a section is sorted and checked only once, so
that folding a report in takes milliseconds of a core that a rank may be working on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from domino_tune.measure.collect import MEASURED, signature_from
from simulator.lookup.attention import AttentionRow
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import PointwiseRow
from simulator.profile import (
    AttentionSection,
    GemmSection,
    PointwiseSection,
    Profile,
    gemm_key,
)

TIMING = ("median_us", "spread_us", "samples")


class _Counted(Protocol):
    @property
    def samples(self) -> int:
        """Runs."""


Row = TypeVar("Row", bound=_Counted)


def add_ops(profile: Profile, rows: Iterable[Mapping[str, Any]]) -> Profile:
    """``profile`` with the ``ops`` rows of a ``plan`` message; where it holds a row that rests on
    more samples, that one stays."""
    plain: dict[str, list[dict[str, Any]]] = {"gemm": [], "attention": [], "pointwise": []}
    for row in rows:
        signature = signature_from(row["signature"])
        timing = {name: row[name] for name in TIMING}
        plain[signature.kind].append({**signature._asdict(), **timing})
    if plain["gemm"]:
        gemms = {gemm_key(r): r for r in (profile.gemm.rows if profile.gemm else ())}
        _keep(gemms, ((gemm_key(r), r) for r in (GemmRow(**f) for f in plain["gemm"])))
        profile = replace(profile, gemm=GemmSection(rows=_sorted(gemms), provenance=MEASURED))
    if plain["attention"]:
        cores = {r.key: r for r in (profile.attention.rows if profile.attention else ())}
        _keep(cores, ((r.key, r) for r in (AttentionRow(**f) for f in plain["attention"])))
        attention = AttentionSection(rows=_sorted(cores), provenance=MEASURED)
        profile = replace(profile, attention=attention)
    if plain["pointwise"]:
        points = {r.key: r for r in (profile.pointwise.rows if profile.pointwise else ())}
        _keep(points, ((r.key, r) for r in (PointwiseRow(**f) for f in plain["pointwise"])))
        pointwise = PointwiseSection(rows=_sorted(points), provenance=MEASURED)
        profile = replace(profile, pointwise=pointwise)
    return profile


def _keep(known: dict[Any, Row], rows: Iterable[tuple[Any, Row]]) -> None:
    """Put ``rows`` in, except where what is there rests on more samples."""
    for key, row in rows:
        if key not in known or known[key].samples <= row.samples:
            known[key] = row


def _sorted(rows: Mapping[Any, Row]) -> tuple[Row, ...]:
    return tuple(rows[key] for key in sorted(rows))
