"""The numbers of a profile, and of the program, that nobody measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from simulator.contention import ContentionFit
from simulator.lookup.attention import AttentionFit
from simulator.lookup.collective_law import CollectiveFit
from simulator.lookup.expected import EXPECTED
from simulator.lookup.experts import GroupedFit
from simulator.lookup.gemm import GemmFit, in_l2
from simulator.lookup.pointwise import PointwiseFit
from simulator.power import PowerSection
from simulator.profile import SECTIONS, GemmSection, Profile


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """An assumed number: where it stands, what it is, and its expected relative error."""

    where: str
    what: str
    error: float | None


def assumptions(profile: Profile) -> list[Assumption]:
    """Return the assumed numbers of ``profile``, by section, and those of its look-ups."""
    found: list[Assumption] = []
    for name in SECTIONS:
        section = getattr(profile, name)
        if section is None:
            continue
        if section.provenance.kind == "assumed":
            source = section.provenance.source
            found.append(
                Assumption(where=name, what=f"all: {source}", error=section.provenance.error)
            )
        found += _in_section(name, section)
        if name == "gemm":
            found += _gemm(section, round(1e6 * profile.machine.l2_mb))
    look_ups = [one for one in EXPECTED if one.kind == "assumed"]
    return found + [
        Assumption(where="look-ups", what=f"{one.what} ({one.source})", error=one.error)
        for one in look_ups
    ]


def _in_section(name: str, section: Any) -> Iterator[Assumption]:
    if name == "contention":
        yield from _contention(section.fit)
    elif name == "launch":
        whole = section.provenance.kind == "assumed"
        costs = [
            f"{kind} {us:g} us"
            for kind, us in section.cost_us.items()
            if whole or kind in section.assumed
        ]
        if costs:
            yield Assumption(where=name, what=", ".join(costs), error=section.provenance.error)
    elif name == "power":
        yield from _power(section)
    elif name == "collectives" and section.nic_gb_s is not None:
        what = (
            f"groups over nodes without timings: {section.nic_gb_s:g} GB/s a NIC, "
            f"{section.nic_latency_us:g} us for each doubling of nodes"
        )
        yield Assumption(where=name, what=what, error=None)
    if section.provenance.kind != "assumed":
        law = getattr(section, "fit", None)
        if isinstance(law, AttentionFit) and law.kind == "assumed":
            yield Assumption(where=name, what="the law between rows", error=law.error)
        yield from _fits(name, getattr(section, "fits", ()))


def _gemm(section: GemmSection, l2_bytes: int) -> Iterator[Assumption]:
    """Yield how far sources differ, and the rows that a loop read from the L2."""
    if section.disagreement:
        found = section.disagreement
        what = f"how far sources of the same GEMMs agree: {found.between}"
        yield Assumption(where="gemm", what=what, error=found.error)
    if section.looped:
        cached = sum(in_l2(row, l2_bytes) for row in section.rows)
        what = (
            f"{cached} of {len(section.rows)} rows fit the L2, where a loop finds their operands: "
            "their time in memory counts as their error"
        )
        yield Assumption(where="gemm", what=what, error=None)
    if section.grouped:
        yield from _fits("gemm", section.grouped.fits)


def _power(law: PowerSection) -> Iterator[Assumption]:
    for number, kind in law.kinds.items():
        if kind == "assumed":
            what = f"{number} {getattr(law, number):g}"
            yield Assumption(where="power", what=what, error=None)
    for one in law.families:
        if one.kind == "assumed":
            what = f"{one.family}: {one.draw_w:g} W above idle, elasticity {one.elasticity:g}"
            yield Assumption(where="power", what=what, error=one.error)


def _fits(name: str, fits: Iterable[Any]) -> Iterator[Assumption]:
    """Yield the assumed laws, those of the same error together."""
    by_error: dict[float, list[str]] = {}
    for fit in fits:
        if fit.kind == "assumed":
            by_error.setdefault(fit.error, []).append(_name_of(fit))
    for error, names in by_error.items():
        yield Assumption(where=name, what=", ".join(names), error=error)


def _name_of(fit: PointwiseFit | GemmFit | GroupedFit | CollectiveFit) -> str:
    if isinstance(fit, PointwiseFit):
        return ", ".join(fit.names)
    if isinstance(fit, GemmFit):
        return f"{fit.layout} {fit.dtype}"
    if isinstance(fit, GroupedFit):
        return f"grouped {fit.dtype}, at a trainer's level"
    return f"{fit.op} of {fit.nodes} × {fit.per_node}"


def _contention(fit: ContentionFit) -> Iterator[Assumption]:
    for law in fit.compute:
        if law.kind == "assumed":
            what = f"{law.family} beside collectives: {law.factor:g} times, {law.sms_per_cta:g} SMs"
            yield Assumption(where="contention", what=f"{what} a CTA", error=law.error)
    if fit.memory is not None and fit.memory.kind == "assumed":
        what = f"memory that gives {fit.memory.attained_gb_s:g} GB/s, for which collectives wait"
        yield Assumption(where="contention", what=what, error=fit.memory.error)
    for what, slowdown in (
        ("a collective beside compute", fit.collective),
        ("two collectives on the same links", fit.same_links),
        ("two collectives on other links", fit.other_links),
    ):
        if slowdown.kind == "assumed":
            yield Assumption(
                where="contention", what=f"{what}: {slowdown.factor:g} times", error=slowdown.error
            )
    if not fit.by_size:
        what = f"{fit.default_ctas} CTAs where NCCL chooses"
        yield Assumption(where="contention", what=what, error=None)
