"""Shapes of presets: a table that no preset looks up is imported with a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.measure.importers import import_into, not_from, read_table
from domino_tune.measure.importers.imported import preset_shapes, with_laws_as_known
from domino_tune.store.profiles import load_profile
from lab.gpu.cases import laid_over
from simulator.cost import CostModel
from simulator.lookup import Estimate, Provenance
from simulator.lookup.attention import AttentionRow
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import PointwiseRow
from simulator.ops import Collective
from simulator.presets import MODELS
from simulator.profile import AttentionSection, GemmSection, PointwiseSection, Profile

ATTENTION = "src,batch_size,isl,num_heads,head_dim,us\n"


def warnings(importer: str, text: str) -> tuple[str, ...]:
    return read_table(text.encode(), importer).warnings


@pytest.mark.parametrize(
    "line",
    [
        "4096,12288,4096,500",  # qkv of llama2-7b at tp 1
        "77,5120,1728,9",  # fc2 of llama2-13b at tp 8
        "4096,2048,11008,400",  # half the columns of llama2-7b's fc2
    ],
)
def test_gemms_of_presets(line: str) -> None:
    assert warnings("gemm-csv", f"m,n,k,us\n{line}\n") == ()
    assert warnings("gemm-csv", f"m,n,k,us\n{line}\n5,6,7,8\n") == ()


def test_gemms_of_no_preset() -> None:
    (warning,) = warnings("gemm-csv", "m,n,k,us\n5,6,7,8\n50,6,7,9\n5,7,6,8\n")
    assert warning.startswith("None of the 2 imported GEMM shapes (n, k) occurs in any preset at ")
    assert "tp 1…8" in warning
    assert "interpolate" in warning


def test_attention() -> None:
    assert warnings("attention-csv", f"{ATTENTION}sglang-0.5.9,2,1024,32,128,50\n") == ()
    (warning,) = warnings("attention-csv", f"{ATTENTION}sglang-0.5.9,2,1024,7,96,50\n")
    assert "None of the 1 imported attention shapes" in warning


def test_every_preset_has_its_shapes() -> None:
    shapes = preset_shapes()
    for model in MODELS.values():
        if model.q_lora_rank:
            queries = model.num_attention_heads * model.head_dim, model.q_lora_rank
        else:
            queries = model.qkv_size, model.hidden_size
        assert ("forward", *queries) in shapes
        heads = (model.num_attention_heads, model.num_key_value_heads)
        assert ("forward", *heads, model.head_dim, True) in shapes


# Merging rows -------------------------------------------------------------------------------------
# What was assumed stays assumed, clocks are kept, an import is recognized.

PAIR = b"num_workers,bytes,us\n2,1048576,12\n"
OF_EIGHT = Collective("all_reduce", 50 << 20, 1, 8)
MEASURED = Provenance(kind="measured", source="me")
ASSUMED = Provenance(kind="assumed", source="me", error=0.6)
GEMM = GemmRow(64, 64, 64, "forward", "bf16", False, (0, 0, 0), 5.0, 0.0, 1)
CORE = AttentionRow(batch=1, heads=8, kv_heads=8, seq=512, head_dim=128, median_us=9.0)
ADD = PointwiseRow(name="add", bytes_read=256, bytes_written=128, median_us=2.0)


def grown(profile: Profile, data: bytes, kind: str = "eager-all-reduce-csv") -> Profile:
    return import_into(profile, read_table(data, kind), source="t.csv", data=data)


def test_a_row_does_not_make_the_laws_of_an_assumed_section_known() -> None:
    base = load_profile("h200-sxm")
    before = CostModel(base).estimate(OF_EIGHT)
    made = grown(base, PAIR)
    assert made.section("collectives").provenance.kind == "imported"
    assert before.source == "assumed"
    assert CostModel(made).estimate(OF_EIGHT) == before
    pair = Collective("all_reduce", 1 << 20, 1, 2)
    assert CostModel(made).estimate(pair) == Estimate(12.0, "measured", 0.02)
    assert grown(made, PAIR) == made
    assert not_from(made, base) == []
    faster = replace(base.section("collectives").fits[0], latency_us=1.0)
    other = replace(base.section("collectives"), fits=(faster,))
    assert not_from(made, replace(base, collectives=other)) == ["collectives"]


def test_rows_of_an_assumed_section_stay_assumed() -> None:
    section = GemmSection(rows=(GEMM,), provenance=ASSUMED)
    base = replace(load_profile("h100-dgx"), gemm=section)
    made = grown(base, b"m,n,k,us\n128,64,64,6\n", "gemm-csv")
    estimate = CostModel(made).estimate(GEMM.signature)
    assert (estimate.source, estimate.error) == ("assumed", 0.6)
    assert not_from(made, base) == []
    replaced = grown(base, b"m,n,k,us\n64,64,64,6\n", "gemm-csv")
    assert CostModel(replaced).estimate(GEMM.signature).source == "measured"


@pytest.mark.parametrize("name", ["gemm", "attention", "pointwise", "collectives"])
def test_every_law_of_rows_can_say_that_it_is_assumed(name: str) -> None:
    section = replace(load_profile("h100-dgx").section(name), provenance=ASSUMED)
    found = with_laws_as_known(section)
    laws = found.fits if hasattr(found, "fits") else (found.fit,)
    assert {law.kind for law in laws} == {"assumed"}
    assert all(law.error >= 0.6 for law in laws)
    known = replace(section, provenance=MEASURED)
    assert with_laws_as_known(known) == known


def test_rows_measured_here_are_laid_over_assumed_laws_that_stay_assumed() -> None:
    h100 = load_profile("h100-dgx")
    sections = ("gemm", "attention", "pointwise")
    assumed = {name: replace(h100.section(name), provenance=ASSUMED) for name in sections}
    mine = replace(
        h100,
        gemm=GemmSection(rows=(GEMM,), provenance=MEASURED),
        attention=AttentionSection(rows=(CORE,), provenance=MEASURED),
        pointwise=PointwiseSection(rows=(ADD,), provenance=MEASURED),
    )
    cost = CostModel(laid_over(replace(h100, **assumed), mine))
    for signature, other in (
        (GEMM.signature, GEMM.signature._replace(layout="wgrad", m=4096, n=4096, k=4096)),
        (CORE.signature, CORE.signature._replace(seq=4096)),
        (ADD.signature, ADD.signature._replace(name="gelu")),
    ):
        assert cost.estimate(signature).source == "measured"
        assert cost.estimate(other).source == "assumed"
        assert cost.estimate(other).error >= 0.6


def test_the_clock_of_the_older_numbers_is_kept() -> None:
    gemms = (b"m,n,k,us\n64,64,64,5\n", b"m,n,k,us\n64,64,32,4\n")
    base = load_profile("h200-sxm")
    old = base.section("gemm").provenance.clock
    assert old
    section = replace(base.section("gemm"), rows=base.section("gemm").rows[:4])
    made = replace(base, gemm=section)
    for data in gemms:
        made = grown(made, data, "gemm-csv")
        assert made.section("gemm").provenance.clock == f"imported rows: not known; before: {old}"
    assert grown(base, PAIR).section("collectives").provenance.clock == ""
