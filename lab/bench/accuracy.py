"""Errors of look-ups and of laws on data withheld from them, and of look-ups that borrow, on tables
that show them."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.store.profiles import collective_error, load_profile
from lab import told
from lab.bench.common import SOURCES, errors, facts_dir, read_measured, shown
from lab.fits.bundled import BUNDLED
from lab.fits.collectives import fit_collectives
from lab.fits.contention import beside_cells
from lab.fits.gemm import layout_fit, leave_out_error
from lab.fits.grouped import COLUMNS, layers, served, trained_rows
from lab.fits.measured import GPU
from lab.fits.unshipped import fitted_overlap
from lab.verdict import Check, at_most, check_table, equal, reported, verdict
from simulator.contention import compute_slowdown
from simulator.lookup import expected
from simulator.lookup.attention import AttentionTable
from simulator.lookup.collective_law import MIB
from simulator.lookup.collectives import CollectiveRow, CollectiveTable
from simulator.lookup.expected import Expected
from simulator.lookup.experts import GroupedLaw
from simulator.lookup.gemm import GemmRow
from simulator.lookup.gemm_law import ACCUMULATE_BYTES, moved_bytes
from simulator.lookup.pointwise import PointwiseRow, PointwiseTable
from simulator.profile import Profile

Errors = Iterator[float]
Chosen = Callable[[CollectiveRow], bool]
Parts = tuple[Callable[[], Errors], ...]
NODES: Final = ("h100_nccl_nvlink.csv", "a100_nccl_nvlink.csv")
GEMMS: Final = (("h100-dgx", "h100_gemm_bf16.csv.gz"), ("a100-sxm", "a100_gemm_bf16.csv.gz"))


def accuracy() -> list[Table]:
    """Return errors of look-ups in the imported H100 tables."""
    gemms: tuple[GemmRow, ...] = read_measured(GEMMS[0][1], "gemm-csv").rows
    profile = load_profile("h100-dgx")
    shapes, fit = [(x.m, x.n, x.k, x.median_us) for x in gemms], profile.section("gemm").fits[0]
    gemm_error = leave_out_error(shapes, fit=fit, sm_count=profile.machine.sm_count)
    what = f"GEMM, {len(gemms):,} rows imported into h100-dgx, (n, k) withheld"
    checks = [at_most(what, 0.025, gemm_error)]
    rows = read_measured(NODES[0], "collectives-csv").rows
    reduces: list[CollectiveRow] = [row for row in rows if row.op == "all_reduce"]
    what = f"all-reduce, {len(reduces)} rows of 2, 4 and 8 GPUs, one left out at a time"
    checks.append(at_most(what, 0.03, collective_error(reduces)))
    for ranks in sorted({row.per_node for row in reduces}):
        mine = [row for row in reduces if row.per_node == ranks]
        both = 100 * collective_error(mine), 100 * fit_collectives(mine)[0].error
        what = f"  {ranks} GPUs: the table, and the law fitted to it"
        checks.append(reported(what, "{:.2f}%, {:.2f}%".format(*both)))
    note = "withheld: whole (n, k) pairs in ten folds; MAPE of the table's interpolation."
    return [check_table("Look-ups from the imported H100 tables", checks, note)]


def contention() -> list[Table]:
    """Return errors of the law, fitted to all measurements, and with one GEMM shape left out."""
    cells, fit = fitted_overlap(facts_dir())
    left_out, factors = fit.leave_shape_out_error, (fit.compute_factor, fit.collective_factor)
    checks = [
        equal("measurements", 70, cells),
        at_most("MAPE, one GEMM shape left out at a time", 0.03, left_out),
        at_most("MAPE, fitted once to all", 0.03, fit.error),
        reported("SMs that a CTA takes", f"{fit.sms_per_cta:g}"),
        reported("factors on GEMM time, all-reduce time", "{:g}, {:g}".format(*factors)),
        reported("constant of the experiment", f"{fit.constant_us:g} us"),
    ]
    return [check_table("Contention: overlap_432_1200MHz, 4 × A100, 64 MiB all-reduce", checks)]


def grouped() -> list[Table]:
    """Return the errors of experts' grouped GEMMs on withheld models, by GPU and math."""
    checks = []
    for profile in map(load_profile, BUNDLED):
        gpu, machine = profile.name.partition("-")[0], profile.machine
        for dtype in COLUMNS if profile.section("gemm").grouped else ():
            if dtype in machine.peak_tflops:
                found = served(layers(gpu, dtype, SOURCES), dtype, machine.sm_count)
                what = f"{profile.name}, {dtype}, {found.layers} layers"
                checks.append(at_most(what, 0.08, found.error))
    return [shown("experts", checks)]


def others() -> list[Table]:
    """Return the errors of a trainer's level, of dispatch and combine, and of latent attention."""
    checks, b200 = [], load_profile("b200-sxm")
    fit = next(one for one in b200.section("gemm").grouped.fits if one.dtype == "bf16")
    law, rows = GroupedLaw(fit, b200.machine.sm_count), trained_rows(SOURCES)
    for layout in ("forward", "dgrad", "wgrad"):
        mine = [row for row in rows if row.layout == layout]
        off = [abs(law.parts(row.signature).total_us / row.median_us - 1) for row in mine]
        what = f"b200-sxm, {layout} of {len(off)} of TransformerEngine's calls, by the law"
        checks.append(reported(what, f"{statistics.fmean(off):.1%}"))
    for name in BUNDLED:
        profile = load_profile(name)
        for op in ("all_to_all", "deepep_dispatch", "deepep_combine", "hybridep_dispatch"):
            stated = [one.error for one in profile.section("collectives").fits if one.op == op]
            if stated:
                mean, worst = statistics.fmean(stated), max(stated)
                checks.append(reported(f"{name}, {op}", f"{mean:.1%}, at most {worst:.0%}"))
        for latent in profile.section("attention").others:
            what = f"{name}, attention of {latent.dims[0]} and {latent.dims[1]}, lengths withheld"
            checks.append(reported(what, f"{latent.error:.1%}"))
    return [check_table("Other laws of experts: the errors that profiles state", checks)]


def constants() -> list[Table]:
    """Return the errors that tables show for each constant; `profiles check` lists the assumed."""
    checks, notes = [], []
    for constant, parts in MEASURED.items():
        found = [list(part()) for part in parts]
        checks.append(near_stated(constant, list(itertools.chain(*found))))
        if len(parts) > 1:
            means = sorted(100 * statistics.fmean(part) for part in found)
            spread = f"{means[0]:.0f} to {means[-1]:.0f} %"
            notes.append(f"{constant.what}: {spread} by machine and group ({constant.source}).")
    title = "Expected errors that tables tell: means of |looked up / measured − 1|"
    return [check_table(title, checks, *notes)]


def near_stated(constant: Expected, found: Sequence[float]) -> Check:
    """Return a check that the mean error is between half of the stated error and that error."""
    mean, stated = statistics.fmean(found), constant.error
    target = f"{50 * stated:g} to {100 * stated:g} %"
    return Check(constant.what, target, f"{100 * mean:.2f} %", stated / 2 <= mean <= stated)


def _from_forward(layout: str) -> Errors:
    """Yield the error of treating rows of ``layout`` as forward GEMMs of their shape."""
    rows: tuple[GemmRow, ...] = load_profile(GPU.name).section("gemm").rows
    mine = (row for row in rows if row.layout == layout and not row.accumulate)
    packed = (row._replace(layout="forward", strides=(0, 0, 0), bias=False) for row in mine)
    return errors(load_profile(GPU.name).gemm_table(), packed)


def _one_by_one() -> Errors:
    """Yield the error of taking a grouped GEMM for as many single ones, on a B200."""
    table = load_profile("b200-sxm").gemm_table()
    for row in trained_rows(SOURCES):
        if row.accumulate == (row.layout == "wgrad"):
            each_us = table.estimate(row.signature._replace(groups=1)).duration_us
            yield abs(row.groups * each_us / row.median_us - 1)


def _accumulated() -> Errors:
    """Yield the error of rows that add to C, told from the others and the bytes of fp32 sums."""
    rows: tuple[GemmRow, ...] = load_profile(GPU.name).section("gemm").rows
    alike = {row._replace(median_us=0, spread_us=0, samples=0): row.median_us for row in rows}
    bytes_per_us = 1e3 * load_profile(GPU.name).machine.memory_bandwidth_gb_s
    for row, us in alike.items():
        plain_us = alike.get(row._replace(accumulate=False)) if row.accumulate else None
        if plain_us is not None:
            yield abs((plain_us + ACCUMULATE_BYTES * row.m * row.n / bytes_per_us) / us - 1)


def _peaks(name: str, table: str) -> Errors:
    machine = load_profile(name).machine
    flops_us, bytes_us = 1e6 * machine.peak_tflops["bf16"], 1e3 * machine.memory_bandwidth_gb_s
    for row in read_measured(table, "gemm-csv").rows:
        if row.m >= 256 and min(row.n, row.k) >= 512:
            us = row.signature.flops / flops_us + moved_bytes(row.signature) / bytes_us
            yield abs(us / row.median_us - 1)


def _attention() -> Errors:
    rows = load_profile(GPU.name).section("attention").rows
    for seq in sorted({row.seq for row in rows}):
        table = AttentionTable([row for row in rows if row.seq != seq])
        yield from errors(table, [row for row in rows if row.seq == seq])


def _pointwise() -> Errors:
    rows: tuple[PointwiseRow, ...] = load_profile(GPU.name).section("pointwise").rows
    for row in rows:
        others = [other for other in rows if other is not row and other.name == row.name]
        if len(others) > 2 and row.bytes_written:
            yield from errors(PointwiseTable(others), [row])


def _between_rows(name: str) -> Errors:
    """Yield the error of each row of a group in a node but its ends, looked up without the row."""
    rows = read_measured(name, "collectives-csv").rows
    for _, group in itertools.groupby(rows, key=lambda row: row.group):
        line = list(group)
        for index in range(1, len(line) - 1):
            yield from errors(CollectiveTable([*line[:index], *line[index + 1 :]]), [line[index]])


def _collectives(known: Chosen, asked: Chosen) -> Parts:
    """Return, by machine, what yields the errors of ``asked`` rows from ``known``, ≥ 1 MiB."""

    def found(name: str) -> Errors:
        rows = [r for r in read_measured(name, "collectives-csv").rows if r.bytes >= MIB]
        return errors(CollectiveTable(list(filter(known, rows))), filter(asked, rows))

    return tuple(partial(found, name) for name in NODES)


def _between_groups(asked: int, *known: int) -> Parts:
    """Return what yields errors of groups of ``asked`` GPUs of a node from those of ``known``."""
    return _collectives(lambda r: r.per_node in known, lambda r: r.per_node == asked)


MEASURED: Final[dict[Expected, Parts]] = {
    expected.GEMM_DGRAD: (lambda: _from_forward("dgrad"),),
    expected.GEMM_WGRAD: (lambda: _from_forward("wgrad"),),
    expected.GEMM_ACCUMULATE: (_accumulated,), expected.GEMM_GROUPED: (_one_by_one,),
    expected.GEMM_ANALYTIC: tuple(partial(_peaks, name, table) for name, table in GEMMS),
    expected.ATTENTION_NEAREST: (_attention,), expected.POINTWISE_TABLE: (_pointwise,),
    expected.COLLECTIVE_TABLE: tuple(partial(_between_rows, name) for name in NODES),
    expected.COLLECTIVE_HALF: _collectives(
        lambda row: row.op == "all_reduce", lambda row: row.op in ("all_gather", "reduce_scatter")
    ),
    expected.COLLECTIVE_GROUPS: (*_between_groups(4, 2, 8), *_between_groups(8, 2, 4)),
    expected.COLLECTIVE_ONE_GROUP: (*_between_groups(4, 8), *_between_groups(8, 2)),
}  # fmt: skip
"""Functions that yield the errors of each constant that tables can show, by machine and group."""


# Our H200's profile: its errors, and how it differs from the published H100 -----------------------

LAYOUTS: Final = ("forward", "dgrad", "wgrad")
FOLDS: Final = 5
A100_LAW: Final = (1.85, 1.108)
"""SMs that a CTA takes, and a factor on the time, as fitted on A100 (profiles/README.md)."""
FAMILIES: Final[list[dict[str, Any]]] = told(__file__)["families"]


def h200() -> Iterator[Table]:
    """Yield errors of look-ups and of the contention law, and the published H100 beside it."""
    profile, checks = load_profile(GPU.name), []
    for layout in LAYOUTS:
        found = withheld_errors(profile, layout)
        what = f"GEMM {layout}, {len(found):,} rows, shapes withheld in {FOLDS} folds"
        checks.append(at_most(what, 0.02, statistics.fmean(found)))
        checks.append(reported("  median", f"{statistics.median(found):.2%}"))
    yield check_table("Look-ups from our own H200 rows (MAPE)", checks)
    yield _beside(profile)
    yield _same_shapes(profile.section("gemm").rows)
    yield _agreement([*profile.section("gemm").rows, *profile.section("attention").rows])


def withheld_errors(profile: Profile, layout: str) -> list[float]:
    """Return |looked up / measured − 1| of each row, without all rows of its shape."""
    section, shape = profile.section("gemm"), attrgetter("m", "n", "k", "layout")
    shapes = sorted({shape(row) for row in section.rows if row.layout == layout})
    random.Random(0).shuffle(shapes)
    found: list[float] = []
    for fold in range(FOLDS):
        withheld = set(shapes[fold::FOLDS])
        known = tuple(row for row in section.rows if shape(row) not in withheld)
        fits = (layout_fit(known, layout, GPU.machine.sm_count),)
        left = replace(profile, gemm=replace(section, rows=known, fits=fits)).gemm_table()
        found += errors(left, [row for row in section.rows if shape(row) in withheld])
    return found


def _beside(profile: Profile) -> Table:
    measured, checks = beside_cells(SOURCES.ours("contention")), list[Check]()
    for law in profile.section("contention").fit.compute:
        mine = [one for one in measured if one.family == law.family]
        what = f"{law.family}, {len(mine)} measurements, each op withheld"
        slower = (compute_slowdown(*A100_LAW, one.ctas, GPU.machine.sm_count) for one in mine)
        off = (abs(one.by(x) / one.slowdown - 1) for one, x in zip(mine, slower, strict=True))
        checks += [
            at_most(what, 0.03, law.error),
            reported("  SMs that a CTA takes, factor", f"{law.sms_per_cta:g}, {law.factor:g}"),
            reported("  error of the law fitted on A100", f"{statistics.fmean(off):.1%}"),
        ]
    return check_table("Contention beside an emulated collective of 1 to 32 CTAs", checks)


def _ventiles(ratios: Iterable[float], *shares: int) -> tuple[str, ...]:
    """Return the parts of ``ratios`` below these per cents, multiples of 5."""
    found = statistics.quantiles(ratios, n=20)
    return tuple(f"{found[percent // 5 - 1]:.2f}" for percent in shares)


def _same_shapes(gemms: Iterable[GemmRow]) -> Table:
    rows = read_measured("h100_gemm_bf16.csv.gz", "gemm-csv").rows
    published = {row[:3]: row.median_us for row in rows}
    lines = []
    for layout in LAYOUTS:
        mine = (row for row in gemms if row.layout == layout and row[:3] in published)
        ratios = [row.median_us / published[row[:3]] for row in mine]
        lines.append((layout, len(ratios), *_ventiles(ratios, 5, 25, 50, 75, 95)))
    return shown("same-shapes", lines)


def _agreement(rows: Iterable[Any]) -> Table:
    published, lines = load_profile("h100-dgx"), []
    tables = {"gemm": published.gemm_table(), "attention": published.attention_table()}
    by_way: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        way = row.layout if isinstance(row, GemmRow) else row.direction
        by_way.setdefault((row.signature.kind, way), []).append(row)
    for family in FAMILIES:
        (kind, way), (least, most), (low, high) = family["way"], family["size"], family["median"]
        mine = [row for row in by_way[kind, way] if least <= row.signature.flops / 1e12 < most]
        look_up = tables[kind].estimate  # type: ignore[attr-defined]
        ratios = [look_up(row.signature).duration_us / row.median_us for row in mine]
        median = statistics.quantiles(ratios, n=20)[9]
        lines.append((
            family["name"], len(ratios), *_ventiles(ratios, 5, 50, 95),
            "yes" if abs(median - 1) <= 0.05 else "no", family["because"],
            f"{low:.2f}–{high:.2f}", verdict(low <= median <= high),
        ))  # fmt: skip
    return shown("agreement", lines, gpu=GPU.name)
