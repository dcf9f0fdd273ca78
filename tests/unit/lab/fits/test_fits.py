"""The fits recover laws they were given, and meet their errors on the published tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from domino_tune.measure.importers import read_table
from domino_tune.store.profiles import collective_error
from lab.fits.attention import fit_attention
from lab.fits.collectives import fit_collectives, fit_group
from lab.fits.common import rounded
from lab.fits.contention import Overlap, fit_overlap, predict, read_overlap
from lab.fits.measured import fit_pointwise
from simulator.contention import (
    CollectiveFamily,
    ComputeContention,
    ComputeFamily,
    Contention,
    ContentionFit,
    Slowdown,
)
from simulator.errors import InputError
from simulator.lookup.attention import AttentionFit, AttentionRow
from simulator.lookup.collective_law import MIB
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.pointwise import PointwiseRow
from tests.conftest import DATA


def collective_rows(us_by_size: dict[int, float]) -> list[CollectiveRow]:
    return [
        CollectiveRow(op="all_reduce", nodes=1, per_node=8, bytes=size, median_us=us)
        for size, us in us_by_size.items()
    ]


def test_a_piecewise_law_is_found_again() -> None:
    sizes = [1 << power for power in range(9, 30)]
    truth = {s: 12.0 + 8.0 * min(s / MIB, 4) + 3.0 * max(0.0, s / MIB - 4) for s in sizes}
    law = fit_group(collective_rows(truth))
    assert law.error < 1e-3
    for size, us in truth.items():
        assert law.latency_us + law.transfer_us(size) == pytest.approx(us, rel=1e-3)


def test_two_sizes_make_no_law() -> None:
    with pytest.raises(InputError, match="at least 3 sizes"):
        fit_group(collective_rows({8: 1.0, 16: 2.0}))


def test_an_attention_law_is_found_again() -> None:
    truth = AttentionFit(
        sm_count=132, head_dim=128, fixed_us=10.0, row_ns=0.5, tflops=600.0, tile_tflops=2500.0,
        blend=1.5, backward_ratio=2.5, min_seq=1024, max_seq=8192, error=0.0, backward_error=0.0,
    )  # fmt: skip
    blank = AttentionRow(batch=1, heads=1, kv_heads=1, seq=1, head_dim=128, median_us=1.0)
    rows = []
    for seq in (1024, 1536, 2048, 4096, 8192):
        for heads in (1, 2, 4, 8, 16, 32, 64):
            row = replace(blank, heads=heads, kv_heads=heads, seq=seq)
            rows.append(replace(row, median_us=sum(truth.shares_us(row.signature))))
    pairs = [rows[0], replace(rows[0], direction="backward", median_us=2.5 * rows[0].median_us)]
    found = fit_attention(rows, pairs, sm_count=132)
    assert found.error < 1e-3
    assert found.tflops == pytest.approx(600.0, rel=1e-2)
    assert found.backward_ratio == 2.5


def test_a_pointwise_law_is_found_again() -> None:
    rows = [
        PointwiseRow(
            name="add", bytes_read=mb * 1_000_000, bytes_written=0,
            median_us=2.0 + min(mb, 30) / 4.0 + max(0, mb - 30) / 2.0,
        )
        for mb in range(1, 100)
    ]  # fmt: skip
    law = fit_pointwise(rows, ("add",))
    numbers = (law.fixed_us, law.small_gb_s, law.large_gb_s)
    assert numbers == pytest.approx((2, 4000, 2000), rel=1e-3)
    assert law.knee_bytes == 30_000_000


def test_a_contention_law_is_found_again() -> None:
    blank = [
        Overlap((m, 64, 64), ctas, gemm, 8000.0 / ctas, 1.0)
        for m, gemm in ((1, 300.0), (2, 700.0), (3, 2000.0), (4, 9000.0))
        for ctas in (1, 2, 4, 8, 16)
    ]
    truth = np.array([1.7, 1.2, 1.1, 40.0])
    together = predict(truth, blank, 108)
    cells = [c._replace(together_us=float(t)) for c, t in zip(blank, together, strict=True)]
    found = fit_overlap(cells, sm_count=108)
    numbers = (found.sms_per_cta, found.compute_factor, found.collective_factor)
    assert numbers == pytest.approx((1.7, 1.2, 1.1), rel=1e-2)
    assert found.constant_us == pytest.approx(40.0, rel=1e-2)


def test_the_fit_and_the_simulators_law_are_the_same() -> None:
    """A cell predicted by the fit's formula equals two jobs slowed by ``Contention``."""
    law = ContentionFit(
        sm_count=108, default_ctas=24,
        compute=(ComputeContention(family="gemm", sms_per_cta=1.9, factor=1.1, error=0.03),),
        collective=Slowdown(factor=1.14, error=0.03), same_links=Slowdown(factor=2.0, error=0.1),
        other_links=Slowdown(factor=1.1, error=0.1),
    )  # fmt: skip
    cell = Overlap((1, 1, 1), 8, 400.0, 1000.0, 1.0)
    gemm, comm = (
        s / 1024
        for s in Contention(law).slowdowns((ComputeFamily("gemm"), CollectiveFamily(1, 4, 8)))
    )
    by_hand = 400.0 * gemm + 1000.0 - 400.0 * gemm / comm
    by_fit = predict(np.array([1.9, 1.1, 1.14, 0.0]), [cell], 108)[0]
    assert by_hand == pytest.approx(by_fit, rel=1e-3)


def test_rounding_is_to_significant_digits() -> None:
    assert (rounded(1234.56), rounded(0.000123456), rounded(0.0)) == (1235.0, 0.0001235, 0.0)


@pytest.mark.facts
def test_contention_reproduces_the_published_cells(facts_dir: Path) -> None:
    cells = read_overlap((facts_dir / "contention" / "overlap_432_1200MHz.csv").read_bytes())
    assert len(cells) == 70
    assert fit_overlap(cells, sm_count=108).leave_shape_out_error <= 0.03


def test_all_reduce_between_published_rows_is_within_three_percent() -> None:
    data = (DATA / "measured" / "h100_nccl_nvlink.csv").read_bytes()
    rows = [r for r in read_table(data, "collectives-csv").rows if r.op == "all_reduce"]
    assert collective_error(rows) <= 0.03
    assert all(law.error <= 0.031 for law in fit_collectives(rows))
