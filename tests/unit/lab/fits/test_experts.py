"""Laws of experts: of what tables say, told apart from what they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from domino_tune.store.profiles import load_profile
from lab.fits.attention import latent_attention, our_rows
from lab.fits.bundled import permutations
from lab.fits.collectives import all_to_alls, copies, deepep, hybridep
from lab.fits.common import Sources
from lab.fits.grouped import Layer, fit_of, layers, quantized_rows, served, trained_rows, trainer
from lab.fits.measured import OTHER_HEADS
from simulator.lookup.experts import GroupedLaw, Times
from simulator.ops import Attention, Gemm, Pointwise
from tests.conftest import DATA

SOURCES = Sources(DATA, DATA.parent / "measurements")
GPUS = ("h100-dgx", "h200-sxm", "b200-sxm", "gb200-nvl72", "gb300-nvl72", "b300-sxm")
POINTWISE = ("moe_permute", "moe_unpermute", "moe_router", "moe_sort")


def test_a_badly_searched_layer_is_left_out() -> None:
    """On H100s half of Llama 4 Scout's experts take 15.6 ms for 16,384 tokens, and all 5.2."""
    found = layers("h100", "bf16", SOURCES)
    assert len(found) > 400
    assert all(one.ep <= 8 and one.tp <= 2 and one.rows >= 16 for one in found)
    scout = {
        one.ep
        for one in found
        if one.hidden == 5120 and (one.inter, one.groups * one.ep) == (8192, 16)
    }
    assert 1 in scout
    assert 2 not in scout


def test_a_small_table_gives_its_law_back() -> None:
    """Layers of a law that is known, of five models."""
    known = load_profile("h100-dgx").section("gemm").grouped
    fit = next(one for one in known.fits if one.dtype == "bf16")
    law = GroupedLaw(fit, 132)
    alike, made = Times(1.0, 1.0), []
    for hidden, inter in ((2048, 768), (4096, 1536), (5120, 8192), (6144, 4096), (7168, 2048)):
        for groups in (4, 16, 64):
            for rows in (32, 128, 512, 2048):
                one = Gemm(rows, 2 * inter, hidden, groups=groups)
                other = one._replace(n=hidden, k=inter)
                us = sum(law.parts(x, times=alike).total_us for x in (one, other)) + 30.0
                made.append(
                    Layer(groups, rows, hidden, inter, rows * groups, us, (hidden, inter), 1, 1)
                )
    found = served(made, "bf16", 132)
    assert found.error < 0.08
    again = GroupedLaw(fit_of(found, "bf16", made), 132)
    one = Gemm(1024, 4096, 4096, groups=16)
    assert again.parts(one).total_us == pytest.approx(
        law.parts(one, times=alike).total_us, rel=0.15
    )


def test_a_weight_gradient_that_adds_takes_longer() -> None:
    rows = {row.signature: row.median_us for row in trained_rows(SOURCES)}
    assert len(rows) == 76
    for one, us in rows.items():
        if one.layout == "wgrad" and not one.accumulate:
            assert us < rows[one._replace(accumulate=True)]


def test_a_trainers_level_is_what_rows_take_over_the_law() -> None:
    profile = load_profile("b200-sxm")
    fit = next(x for x in profile.section("gemm").grouped.fits if x.dtype == "bf16")
    law, alike = GroupedLaw(fit, profile.machine.sm_count), Times(1.0, 1.0)
    rows = [
        row._replace(median_us=2 * law.parts(row.signature, times=alike).total_us)
        for row in trained_rows(SOURCES)
    ]
    found = trainer(law, rows)
    assert found.times["forward"] == found.times["dgrad"] == Times(2.0, 2.0)
    assert found.times["wgrad"] == pytest.approx((2.0, 2.0), rel=0.05)
    assert found.error < 0.02


@pytest.mark.parametrize("dtype", ["fp8_tensor", "fp8_block"])
@pytest.mark.parametrize("name", ["h100-dgx", "h200-sxm"])
def test_fp8_on_hopper_is_at_the_level_of_our_rows(name: str, dtype: str) -> None:
    profile = load_profile(name)
    fit = next(x for x in profile.section("gemm").grouped.fits if x.dtype == dtype)
    law, rows = GroupedLaw(fit, profile.machine.sm_count), quantized_rows(dtype, SOURCES)
    assert len(rows) == 72
    assert fit.kind == "fitted"
    off = [abs(law.parts(row.signature).total_us / row.median_us - 1) for row in rows]
    assert np.mean(off) < fit.error
    for layout in ("forward", "dgrad", "wgrad"):
        mine = [row for row in rows if row.layout == layout]
        over = [row.median_us / law.parts(row.signature).total_us for row in mine]
        assert np.exp(np.mean(np.log(over))) == pytest.approx(1, abs=0.08)


@pytest.mark.parametrize("name", GPUS)
def test_a_law_is_near_withheld_models(name: str) -> None:
    for fit in load_profile(name).section("gemm").grouped.fits:
        assert fit.withheld_error <= (0.125 if fit.dtype == "nvfp4" else 0.08), fit.dtype
        assert fit.error > fit.withheld_error


def test_tokens_go_to_some_of_the_ranks() -> None:
    assert copies(8, 64, 8) == pytest.approx(5.43, abs=0.01)
    assert copies(8, 8, 2) == pytest.approx(2.0)


def test_laws_of_exchanges_are_of_their_tables() -> None:
    assert {fit.per_node for fit in all_to_alls("h100", SOURCES)} == {2, 4, 8}
    trays = list(deepep("gb200", SOURCES))
    assert {fit.per_node for fit in trays} == {4}
    assert {fit.ctas for fit in trays} == {4, 8, 12, 16, 20, 24}
    assert min(fit.error for fit in trays) > 0.3
    assert max(fit.error for fit in deepep("h100", SOURCES)) < 0.2
    h100 = {(fit.nodes, fit.per_node) for fit in hybridep("h100", SOURCES)}
    assert h100 == {(2, 8), (4, 8), (8, 8)}
    node = next(x for x in hybridep("b200", SOURCES) if x.op == "hybridep_dispatch")
    size = node.max_bytes
    by_row_us = node.ns_per_row * size / (2 * 7168) / 1e3
    told_us = node.latency_us + node.transfer_us(size) + by_row_us
    assert size / told_us == pytest.approx(536e3, rel=0.01)


def test_rows_of_fp8_are_told_by_those_of_bf16() -> None:
    """Hybrid-EP's dispatch in FP8, whose calls no law was fitted to alone."""
    for gpu in ("b200", "gb200"):
        small = [fit for fit in hybridep(gpu, SOURCES) if fit.op == "hybridep_dispatch"]
        assert max(fit.error for fit in small if fit.per_node <= 16 or fit.ctas == 32) <= 0.15
        assert all(fit.ns_per_row > 1 for fit in small)


@pytest.mark.parametrize("name", [*GPUS, "a100-sxm"])
def test_every_gpu_has_the_kernels_of_experts(name: str) -> None:
    profile = load_profile(name)
    table = profile.pointwise_table()
    share = 4302 / 8000 * profile.machine.memory_bandwidth_gb_s
    for op in POINTWISE:
        found = table.estimate(Pointwise(op, 10**9, 10**9))
        assert found.source == (
            "fitted" if name == "b200-sxm" and op in POINTWISE[:2] else "assumed"
        )
        if op != "moe_router":
            assert 2e6 / found.duration_us == pytest.approx(share, rel=0.03)
    assert len(permutations(replace(profile, name="b200"), SOURCES)[0]) == len(POINTWISE)


@pytest.mark.parametrize("name", GPUS)
def test_latent_attention_is_near_its_rows(name: str) -> None:
    profile = load_profile(name)
    table = profile.attention_table()
    one, hopper = Attention(1, 64, 64, 16384, 192, v_head_dim=128), name in ("h100-dgx", "h200-sxm")
    found = table.estimate(one)
    rate = one.flops / found.duration_us / 1e6
    assert 450 < rate < (750 if hopper else 1700)
    assert (found.source, found.error <= 0.1) == ("fitted", True)
    back = table.estimate(one._replace(direction="backward"))
    times = 3.51 if hopper else 3.0
    assert back.duration_us == pytest.approx(times * found.duration_us)
    assert sum(table.shares(one)) == pytest.approx(found.duration_us)


@pytest.mark.parametrize("name", ["h100-dgx", "h200-sxm"])
@pytest.mark.parametrize("dims", OTHER_HEADS)
def test_hopper_is_at_the_level_of_our_rows(name: str, dims: tuple[int, int]) -> None:
    section = load_profile(name).section("attention")
    law = next(one for one in section.others if one.dims == dims)
    rows = our_rows(SOURCES, dims)
    assert len(rows) >= 6
    for row in rows:
        us = sum(law.shares_us(row.signature))
        assert us == pytest.approx(row.median_us, rel=law.error + law.backward_error)
        assert (row in section.rows) == (name == "h200-sxm")


def test_the_law_of_latent_attention_has_its_dims() -> None:
    machine = load_profile("h100-dgx").machine
    law = latent_attention("h100", SOURCES, machine)
    assert law.dims == (192, 128)
    heads = [law.shares_us(Attention(1, x, x, 4096, 192, v_head_dim=128)) for x in (16, 128)]
    assert np.sum(heads[1]) > 6 * np.sum(heads[0])
