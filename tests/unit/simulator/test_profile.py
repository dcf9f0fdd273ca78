"""The profile's own rules, and its content id."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from domino_tune.store.profiles import load_profile, parse_profile
from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup import Provenance
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.gemm import GemmRow
from simulator.profile import SCHEMA, CollectiveSection, GemmSection, Machine, Profile, to_plain

BY_HAND = Provenance(kind="measured", source="this test")
MACHINE = Machine(
    gpu="G", gpus_per_node=8, gpu_memory_gib=80.0, sm_count=132, peak_tflops={"bf16": 989.4},
    memory_bandwidth_gb_s=3350.0, backend="nccl",
)  # fmt: skip
EMPTY = Profile(name="empty", created="2025-01-31", machine=MACHINE)


def gemm_row(m: int, us: float = 5.0) -> GemmRow:
    return GemmRow(m, 64, 64, "forward", "bf16", False, (0, 0, 0), us, 0.0, 1)


def test_the_id_is_of_the_content_not_of_how_it_was_made() -> None:
    whole = replace(MACHINE, gpu_memory_gib=80)
    assert EMPTY.content_id == replace(EMPTY, machine=whole).content_id
    assert EMPTY.content_id != replace(EMPTY, name="other").content_id
    assert EMPTY.content_id.startswith("sha256:")


@pytest.mark.parametrize("name", ["gemm", "attention", "pointwise", "collective"])
def test_a_missing_section_is_named(name: str) -> None:
    with pytest.raises(MissingSectionError, match=f"no '{name}"):
        getattr(EMPTY, f"{name}_table")()


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": SCHEMA + 1}, {"schema": SCHEMA - 1}, {"schema": 0}, {"name": ""},
        {"name": "../up"}, {"created": "today"},
    ],
)  # fmt: skip
def test_malformed_profiles_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ProfileError):
        replace(EMPTY, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ((gemm_row(2), gemm_row(1)), r"rows\[1\].*must come before"),
        ((gemm_row(1), gemm_row(1)), r"rows\[1\].*repeats"),
        ((gemm_row(1), gemm_row(2, -5.0)), r"rows\[1\].*median_us"),
        ((gemm_row(1), gemm_row(2, float("nan"))), r"rows\[1\].*median_us"),
        ((gemm_row(0),), r"rows\[0\].*m must be"),
    ],
)
def test_gemm_rows_are_sorted_and_finite(rows: tuple[GemmRow, ...], reason: str) -> None:
    with pytest.raises(ProfileError, match=reason):
        GemmSection(rows=rows, provenance=BY_HAND)


def test_comm_ctas_choices_are_those_all_reduce_was_timed_with() -> None:
    rows = tuple(
        CollectiveRow(op="all_reduce", nodes=1, per_node=4, ctas=ctas, bytes=8, median_us=1.0)
        for ctas in (2, 16)
    )
    section = CollectiveSection(rows=rows, provenance=BY_HAND)
    profile = replace(EMPTY, collectives=section)
    assert profile.comm_ctas_choices(1, 4) == (0, 2, 16)
    assert profile.comm_ctas_choices(1, 8) == (0,)
    assert EMPTY.comm_ctas_choices(1, 4) == (0,)
    assert load_profile("a100-sxm").comm_ctas_choices(1, 4) == (0, 1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    "changes",
    [{"sm_count": 0}, {"memory_bandwidth_gb_s": -1.0}, {"peak_tflops": {"bf16": float("inf")}}],
)
def test_impossible_machines_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ProfileError):
        replace(MACHINE, **changes)  # type: ignore[arg-type]


def at(plain: Any, path: str) -> tuple[Any, str | int]:
    """The container and the key of a dotted path, whose whole numbers are indices."""
    steps = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps[:-1]:
        plain = plain[step]
    return plain, steps[-1]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *[(f"gemm.fits.0.params.{name}", value) for name, value in (
            ("reduce_us", []), ("idle_gain", []), ("repeat_share", -1), ("idle_gain", 1e30),
            ("norm", 1e308), ("norm", -1), ("mb_us", -1), ("mb_us", 1e-300), ("tile_us", -1),
            ("tile_us", [1, 2]), ("tile_us.1", -1), ("throttle_gflop", -1), ("surprise", 1),
        )],
        ("gemm.fits.0.law", "tilde"), ("gemm.fits.0.error", -1),
        ("attention.fit.blend", 1e308), ("attention.fit.tflops", 1e-300),
        ("launch.cost_us.gemm", 1e308), ("launch.cost_us.gemm", -1),
        ("machine.gpu_memory_gib", 1e308), ("machine.memory_bandwidth_gb_s", 1e308),
        ("machine.memory_bandwidth_gb_s", -1), ("machine.peak_tflops.bf16", 1e308),
        ("pointwise.fits.0.error", 1e308), ("pointwise.fits.0.small_gb_s", 1e-300),
        ("collectives.fits.0.knots_bytes.0", -1), ("collectives.fits.0.us_per_mib.0", 1e308),
        ("collectives.fits.0.latency_us", 1e308), ("collectives.nic_gb_s", 1e-300),
        ("gemm.provenance.error", 1e308), ("contention.fit.collective.factor", 1e308),
        ("contention.fit.compute.0.sms_per_cta", 1e308),
    ],
)  # fmt: skip
def test_an_absurd_number_is_refused_by_name(path: str, value: object) -> None:
    plain = to_plain(load_profile("h100-dgx"))
    container, key = at(plain, path)
    container[key] = value
    name = next(step for step in reversed(path.split(".")) if not step.isdigit())
    with pytest.raises(ProfileError, match="law" if name in ("law", "surprise") else name):
        read_again(plain)


def read_again(plain: dict[str, Any]) -> None:
    parse_profile(json.dumps({"checksum": "", **plain}).encode(), source="it")
