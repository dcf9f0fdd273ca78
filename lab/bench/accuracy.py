"""Errors of look-ups and of the contention law on data withheld from them, and expected errors of
look-ups that borrow, measured again on the tables that show them.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.store.profile_check import collective_error
from domino_tune.store.profiles import load_profile
from lab.bench.facts import SOURCES, errors, facts_dir, read_measured
from lab.fits.collectives import fit_collectives
from lab.fits.gemm import leave_out_error
from lab.fits.grouped_rows import trained_rows
from lab.fits.unshipped import fitted_overlap
from lab.verdict import Check, at_most, check_table, equal, reported
from simulator.lookup import expected
from simulator.lookup.attention import AttentionRow, AttentionTable
from simulator.lookup.collective_fit import MIB
from simulator.lookup.collectives import CollectiveRow, CollectiveTable
from simulator.lookup.expected import Expected
from simulator.lookup.gemm import GemmRow
from simulator.lookup.gemm_bytes import ACCUMULATE_BYTES, moved_bytes
from simulator.lookup.pointwise import PointwiseRow, PointwiseTable
from simulator.profile import Profile

GEMM_LIMIT: Final = 0.025
ALL_REDUCE_LIMIT: Final = 0.03
CONTENTION_LIMIT: Final = 0.03
MEASUREMENTS: Final = 70


def accuracy() -> list[Table]:
    """Return errors of look-ups in the imported H100 tables."""
    checks = [_gemm_check(), *_all_reduce_checks()]
    notes = ["withheld: whole (n, k) pairs in ten folds; MAPE of the table's interpolation."]
    return [check_table("Look-ups from the imported H100 tables", checks, notes)]


def contention() -> list[Table]:
    """Return errors of the law, fitted to all measurements, and with one GEMM shape left out."""
    overlapped = fitted_overlap(facts_dir())
    fit = overlapped.fit
    checks = [
        equal("measurements", MEASUREMENTS, overlapped.cells),
        at_most("MAPE, one GEMM shape left out at a time", CONTENTION_LIMIT,
                fit.leave_shape_out_error),
        at_most("MAPE, fitted once to all", CONTENTION_LIMIT, fit.error),
        reported("SMs that a CTA takes", f"{fit.sms_per_cta:g}"),
        reported("factors on GEMM time, all-reduce time",
                 f"{fit.compute_factor:g}, {fit.collective_factor:g}"),
        reported("constant of the experiment", f"{fit.constant_us:g} us"),
    ]  # fmt: skip
    return [check_table("Contention: overlap_432_1200MHz, 4 × A100, 64 MiB all-reduce", checks)]


def _gemm_check() -> Check:
    rows: tuple[GemmRow, ...] = read_measured("h100_gemm_bf16.csv.gz", "gemm-csv").rows
    profile = load_profile("h100-dgx")
    error = leave_out_error(
        [(row.m, row.n, row.k, row.median_us) for row in rows],
        fit=profile.section("gemm").fits[0], sm_count=profile.machine.sm_count,
    )  # fmt: skip
    what = f"GEMM, {len(rows):,} rows imported into h100-dgx, (n, k) withheld"
    return at_most(what, GEMM_LIMIT, error)


def _all_reduce_checks() -> list[Check]:
    rows = read_measured("h100_nccl_nvlink.csv", "collectives-csv").rows
    reduces: list[CollectiveRow] = [row for row in rows if row.op == "all_reduce"]
    checks = [
        at_most(
            f"all-reduce, {len(reduces)} rows of 2, 4 and 8 GPUs, one left out at a time",
            ALL_REDUCE_LIMIT, collective_error(reduces),
        )
    ]  # fmt: skip
    for ranks in sorted({row.per_node for row in reduces}):
        mine = [row for row in reduces if row.per_node == ranks]
        fit = fit_collectives(mine)[0]
        checks.append(
            reported(
                f"  {ranks} GPUs: the table, and the law fitted to it",
                f"{100 * collective_error(mine):.2f}%, {100 * fit.error:.2f}%",
            )
        )
    return checks


# Look-ups that borrow ----------------------------------------------------------------------------

Errors = Iterator[float]
Parts = tuple[Callable[[], Errors], ...]
NODES: Final = ("h100_nccl_nvlink.csv", "a100_nccl_nvlink.csv")
GEMMS: Final = (("h100-dgx", "h100_gemm_bf16.csv.gz"), ("a100-sxm", "a100_gemm_bf16.csv.gz"))


def constants() -> list[Table]:
    """Return the errors that tables show for each constant; `profiles check` lists the
    assumed ones.
    """
    checks, notes = [], []
    for constant, parts in MEASURED.items():
        found = [list(part()) for part in parts]
        checks.append(near_stated(constant, list(itertools.chain(*found))))
        if len(parts) > 1:
            means = sorted(100 * statistics.fmean(part) for part in found)
            spread = f"{means[0]:.0f} to {means[-1]:.0f} %"
            notes.append(f"{constant.what}: {spread} by machine and group ({constant.source}).")
    return [
        check_table(
            "Expected errors that tables tell: means of |looked up / measured − 1|", checks, notes
        )
    ]


def near_stated(constant: Expected, found: Sequence[float]) -> Check:
    """Return a check that the mean error is between half of the stated error and that error."""
    mean, stated = statistics.fmean(found), constant.error
    return Check(
        what=constant.what,
        target=f"{50 * stated:g} to {100 * stated:g} %",
        measured=f"{100 * mean:.2f} %",
        ok=stated / 2 <= mean <= stated,
    )


def _h200() -> Profile:
    return load_profile("h200-sxm")


def _from_forward(layout: str) -> Errors:
    """Yield the error of treating rows of ``layout`` as forward GEMMs of their shape."""
    table = _h200().gemm_table()
    rows: tuple[GemmRow, ...] = _h200().section("gemm").rows
    mine = [row for row in rows if row.layout == layout and not row.accumulate]
    packed = (row._replace(layout="forward", strides=(0, 0, 0), bias=False) for row in mine)
    return errors(table, packed)


def _one_by_one() -> Errors:
    """Yield the error of taking a grouped GEMM for as many single ones, on a B200."""
    table = load_profile("b200-sxm").gemm_table()
    for row in trained_rows(SOURCES):
        if row.accumulate == (row.layout == "wgrad"):
            each_us = table.estimate(row.signature._replace(groups=1)).duration_us
            yield abs(row.groups * each_us / row.median_us - 1)


def _accumulated() -> Errors:
    """Yield the error of predicting rows that add to C from those that do not and the bytes of fp32
    sums.
    """
    found: dict[tuple[object, ...], dict[bool, GemmRow]] = {}
    rows: tuple[GemmRow, ...] = _h200().section("gemm").rows
    for row in rows:
        if row.layout == "wgrad":
            key = (row.m, row.n, row.k, row.strides, row.bias)
            found.setdefault(key, {})[row.accumulate] = row
    bytes_per_us = 1e3 * _h200().machine.memory_bandwidth_gb_s
    for pair in found.values():
        if len(pair) == 2:
            us = (
                pair[False].median_us
                + ACCUMULATE_BYTES * pair[True].m * pair[True].n / bytes_per_us
            )
            yield abs(us / pair[True].median_us - 1)


def _peaks(name: str, table: str) -> Errors:
    """Yield the error of the data-sheet peaks of the profile ``name`` on training shapes."""
    machine = load_profile(name).machine
    flops_us, bytes_us = 1e6 * machine.peak_tflops["bf16"], 1e3 * machine.memory_bandwidth_gb_s
    for row in read_measured(table, "gemm-csv").rows:
        if row.m >= 256 and min(row.n, row.k) >= 512:
            us = row.signature.flops / flops_us + moved_bytes(row.signature) / bytes_us
            yield abs(us / row.median_us - 1)


def _attention() -> Errors:
    """Yield the error of rows looked up without rows of their length."""
    rows: tuple[AttentionRow, ...] = _h200().section("attention").rows
    for seq in sorted({row.seq for row in rows}):
        table = AttentionTable([row for row in rows if row.seq != seq])
        yield from errors(table, [row for row in rows if row.seq == seq])


def _pointwise() -> Errors:
    """Yield the error of rows looked up without themselves."""
    rows: tuple[PointwiseRow, ...] = _h200().section("pointwise").rows
    for row in rows:
        others = [other for other in rows if other is not row and other.name == row.name]
        if len(others) > 2 and row.bytes_written:
            yield from errors(PointwiseTable(others), [row])


def _between_rows(name: str) -> Errors:
    """Yield the error of each row of a group within a node, except its ends, looked up without the
    row.

    ``name`` is the table.
    """
    rows: tuple[CollectiveRow, ...] = read_measured(name, "collectives-csv").rows
    for _, group in itertools.groupby(rows, key=lambda row: row.group):
        line = list(group)
        for index in range(1, len(line) - 1):
            table = CollectiveTable([*line[:index], *line[index + 1 :]])
            yield from errors(table, [line[index]])


def _collectives(
    known: Callable[[CollectiveRow], bool], asked: Callable[[CollectiveRow], bool]
) -> Parts:
    """Return, by machine, a function that yields the errors of ``asked`` rows from ``known`` ones,
    ≥ 1 MiB.
    """

    def found(name: str) -> Errors:
        rows = [r for r in read_measured(name, "collectives-csv").rows if r.bytes >= MIB]
        return errors(CollectiveTable(list(filter(known, rows))), filter(asked, rows))

    return tuple(partial(found, name) for name in NODES)


def _between_groups(asked: int, *known: int) -> Parts:
    """Return functions that yield errors of groups of ``asked`` GPUs of a node from those of
    ``known``.
    """
    return _collectives(lambda r: r.per_node in known, lambda r: r.per_node == asked)


MEASURED: Final[dict[Expected, Parts]] = {
    expected.GEMM_DGRAD: (lambda: _from_forward("dgrad"),),
    expected.GEMM_WGRAD: (lambda: _from_forward("wgrad"),),
    expected.GEMM_ACCUMULATE: (_accumulated,),
    expected.GEMM_GROUPED: (_one_by_one,),
    expected.GEMM_ANALYTIC: tuple(partial(_peaks, name, table) for name, table in GEMMS),
    expected.ATTENTION_NEAREST: (_attention,),
    expected.POINTWISE_TABLE: (_pointwise,),
    expected.COLLECTIVE_TABLE: tuple(partial(_between_rows, name) for name in NODES),
    expected.COLLECTIVE_HALF: _collectives(
        lambda row: row.op == "all_reduce", lambda row: row.op in ("all_gather", "reduce_scatter")
    ),
    expected.COLLECTIVE_GROUPS: (*_between_groups(4, 2, 8), *_between_groups(8, 2, 4)),
    expected.COLLECTIVE_ONE_GROUP: (*_between_groups(4, 8), *_between_groups(8, 2)),
}
"""Functions that yield the errors of each constant that tables can show, by machine and group."""
