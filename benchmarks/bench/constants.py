"""Expected errors of look-ups that borrow, measured again on the tables that can tell them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.bench.facts import read_measured
from benchmarks.verdict import at_most, check_table
from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from simulator.lookup import expected
from simulator.lookup.attention import AttentionRow, AttentionTable
from simulator.lookup.collectives import MIB, CollectiveRow, CollectiveTable
from simulator.lookup.expected import EXPECTED, Expected
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import PointwiseRow, PointwiseTable
from simulator.ops import Collective, Gemm
from simulator.profile import Profile

Errors = Iterator[float]
NODES: Final = ("h100_nccl_nvlink.csv", "a100_nccl_nvlink.csv")
GEMMS: Final = (("h100-dgx", "h100_gemm_bf16.csv.gz"), ("a100-sxm", "a100_gemm_bf16.csv.gz"))


def constants() -> list[Table]:
    """Return what tables tell of each measured constant, and the list of those that are assumed."""
    checks = [
        at_most(constant.what, constant.error, statistics.fmean(errors()))
        for constant, errors in MEASURED.items()
    ]
    assumed = [one for one in EXPECTED if one.kind == "assumed"]
    return [
        check_table(
            "Expected errors that tables tell: means of |looked up / measured − 1|", checks
        ),
        Table(
            title="Assumed: no table tells",
            columns=("expected error of", ">error", "why"),
            rows=[(one.what, f"{one.error:.1%}", one.source) for one in assumed],
        ),
    ]


def _h200() -> Profile:
    return load_profile("h200-sxm")


def _from_forward(layout: str) -> Errors:
    """Yield the error of rows of ``layout`` taken for forward GEMMs of their shape."""
    table = _h200().gemm_table()
    rows: tuple[GemmRow, ...] = _h200().section("gemm").rows
    for row in rows:
        if row.layout == layout and not row.accumulate:
            yield abs(table.estimate(Gemm(row.m, row.n, row.k)).duration_us / row.median_us - 1)


def _accumulated() -> Errors:
    """Yield the error of rows that add to C, from those that do not and the bytes of fp32 sums."""
    found: dict[tuple[object, ...], dict[bool, GemmRow]] = {}
    rows: tuple[GemmRow, ...] = _h200().section("gemm").rows
    for row in rows:
        if row.layout == "wgrad":
            key = (row.m, row.n, row.k, row.strides, row.bias)
            found.setdefault(key, {})[row.accumulate] = row
    bytes_per_us = 1e3 * _h200().machine.memory_bandwidth_gb_s
    for pair in found.values():
        if len(pair) == 2:
            us = pair[False].median_us + 6 * pair[True].m * pair[True].n / bytes_per_us
            yield abs(us / pair[True].median_us - 1)


def _peaks() -> Errors:
    """Yield the error of data-sheet peaks on training shapes."""
    for name, table in GEMMS:
        machine = load_profile(name).machine
        flops_us, bytes_us = 1e6 * machine.peak_tflops["bf16"], 1e3 * machine.memory_bandwidth_gb_s
        for row in read_measured(table, "gemm-csv").rows:
            m, n, k = row.m, row.n, row.k
            if m >= 256 and min(n, k) >= 512:
                us = 2 * m * n * k / flops_us + 2 * (m * k + n * k + m * n) / bytes_us
                yield abs(us / row.median_us - 1)


def _attention() -> Errors:
    """Yield the error of rows looked up without those of their length."""
    rows: tuple[AttentionRow, ...] = _h200().section("attention").rows
    for seq in sorted({row.seq for row in rows}):
        table = AttentionTable([row for row in rows if row.seq != seq])
        for row in rows:
            if row.seq == seq:
                yield abs(table.estimate(row.signature).duration_us / row.median_us - 1)


def _pointwise() -> Errors:
    """Yield the error of rows looked up without themselves."""
    rows: tuple[PointwiseRow, ...] = _h200().section("pointwise").rows
    for row in rows:
        others = [other for other in rows if other is not row and other.name == row.name]
        if len(others) > 2 and row.bytes_written:
            us = PointwiseTable(others).estimate(row.signature).duration_us
            yield abs(us / row.median_us - 1)


def _collectives(
    known: Callable[[CollectiveRow], bool], asked: Callable[[CollectiveRow], bool]
) -> Callable[[], Errors]:
    """Return a function that yields the errors of ``asked`` rows from ``known`` ones, ≥ 1 MiB."""

    def errors() -> Errors:
        for name in NODES:
            rows = [r for r in read_measured(name, "collectives-csv").rows if r.bytes >= MIB]
            table = CollectiveTable([row for row in rows if known(row)])
            for row in rows:
                if asked(row):
                    op = Collective(row.op, row.bytes, row.nodes, row.per_node)
                    yield abs(table.estimate(op).duration_us / row.median_us - 1)

    return errors


def _groups() -> Errors:
    """Yield errors between timed groups (4 GPUs from 2 and 8) and beside them (8 from 2 and 4)."""
    yield from _collectives(lambda r: r.per_node != 4, lambda r: r.per_node == 4)()
    yield from _collectives(lambda r: r.per_node != 8, lambda r: r.per_node == 8)()


def _one_group() -> Errors:
    """Yield errors of 4 GPUs from 8, and of 8 from 2."""
    yield from _collectives(lambda r: r.per_node == 8, lambda r: r.per_node == 4)()
    yield from _collectives(lambda r: r.per_node == 2, lambda r: r.per_node == 8)()


MEASURED: Final[dict[Expected, Callable[[], Errors]]] = {
    expected.GEMM_DGRAD: lambda: _from_forward("dgrad"),
    expected.GEMM_WGRAD: lambda: _from_forward("wgrad"),
    expected.GEMM_ACCUMULATE: _accumulated,
    expected.GEMM_ANALYTIC: _peaks,
    expected.ATTENTION_NEAREST: _attention,
    expected.POINTWISE_TABLE: _pointwise,
    expected.COLLECTIVE_HALF: _collectives(
        lambda row: row.op == "all_reduce", lambda row: row.op in ("all_gather", "reduce_scatter")
    ),
    expected.COLLECTIVE_GROUPS: _groups,
    expected.COLLECTIVE_ONE_GROUP: _one_group,
}
