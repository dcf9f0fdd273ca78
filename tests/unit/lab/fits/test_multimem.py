"""Multimem collectives: the laws give back the table, and look-ups beyond it say so."""

from __future__ import annotations

import pytest

from domino_tune.store.profiles import load_profile
from lab.fits.collectives import BEST, CTAS, multimem_collectives
from lab.fits.common import Sources
from simulator.lookup.collective_law import CollectiveFit
from simulator.ops import MULTIMEM, Collective, CollectiveKind
from tests.conftest import REPOSITORY

MIB = 1 << 20
TOKEN_BYTES = 8192 * 2


@pytest.fixture(scope="module")
def laws() -> dict[tuple[str, int], CollectiveFit]:
    """The laws by op and CTAs."""
    fits = multimem_collectives(Sources(REPOSITORY / "data", REPOSITORY / "measurements"))
    return {(fit.op, fit.ctas): fit for fit in fits}


def test_all_reduce_has_a_law_for_each_number_of_ctas(
    laws: dict[tuple[str, int], CollectiveFit],
) -> None:
    reduce = MULTIMEM["all_reduce"]
    assert {ctas for op, ctas in laws if op == reduce} == {0, *CTAS}
    assert {op for op, ctas in laws if ctas == 0} == {op for op, _ in BEST}
    assert all((fit.nodes, fit.per_node) == (1, 8) for fit in laws.values())


@pytest.mark.parametrize(
    ("op", "ctas", "tokens", "us"),
    [  # cells of figure_7.csv and figure_5.csv
        ("multimem_all_reduce", 2, 8192, 764.3), ("multimem_all_reduce", 4, 32768, 1990.2),
        ("multimem_all_reduce", 32, 1024, 79.9), ("multimem_all_reduce", 0, 4096, 257.2),
        ("multimem_reduce_scatter", 0, 16384, 753.6), ("multimem_all_gather", 0, 2048, 100.5),
    ],
)  # fmt: skip
def test_a_law_gives_the_cells_back(
    laws: dict[tuple[str, int], CollectiveFit], op: str, ctas: int, tokens: int, us: float
) -> None:
    fit = laws[op, ctas]
    assert fit.latency_us + fit.transfer_us(tokens * TOKEN_BYTES) == pytest.approx(us, rel=0.06)
    assert fit.error < 0.08


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
def test_it_is_faster_than_nccl_from_4_to_64_mib(op: CollectiveKind) -> None:
    table = load_profile("h100-dgx").collective_table()
    for mib in (4, 16, 64):
        nccl = Collective(op, mib * MIB, 1, 8)
        multimem = nccl._replace(op=MULTIMEM[op])
        assert table.estimate(multimem).duration_us < table.estimate(nccl).duration_us


def test_what_the_table_lacks_is_assumed() -> None:
    profile = load_profile("h100-dgx")
    table = profile.collective_table()
    four_ranks = Collective("multimem_all_reduce", 64 * MIB, 1, 4)
    four_ctas = Collective("multimem_reduce_scatter", 64 * MIB, 1, 8, ctas=4)
    assert table.estimate(four_ranks).source == table.estimate(four_ctas).source == "assumed"
    free = table.estimate(four_ctas._replace(ctas=0)).duration_us
    assert free < table.estimate(four_ctas).duration_us < 1.1 * free
    assert profile.comm_ctas_choices(1, 8, "multimem") == (0, *CTAS)
    assert profile.comm_ctas_choices(1, 8) == (0,)
    assert load_profile("h200-sxm").times_multimem
    assert not load_profile("a100-sxm").times_multimem
