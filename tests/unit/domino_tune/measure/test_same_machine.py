"""Which differences make a profile one of another machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.measure.machine import this_machine
from domino_tune.measure.same_machine import differences

HERE = this_machine(2, "gloo", {})


def with_detail(name: str, value: str):  # type: ignore[no-untyped-def]
    return replace(HERE, details={**HERE.details, name: value})


def test_this_machine_is_this_machine() -> None:
    assert differences(HERE, this_machine(2, "gloo", {})) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("gpu", "another"), ("sm_count", 132), ("backend", "nccl")],
)
def test_fields_that_count(field: str, value: object) -> None:
    other = replace(HERE, **{field: value})  # type: ignore[arg-type]
    assert differences(other, HERE) == [f"{field}: profiled {value}, here {getattr(HERE, field)}"]


def test_another_number_of_ranks_on_cpus_is_named_as_such() -> None:
    (text,) = differences(this_machine(4, "gloo", {}), HERE)
    assert text.startswith("ranks on a node: profiled 4, here 2;")
    gpus = replace(HERE, backend="nccl")
    assert differences(replace(gpus, gpus_per_node=8), gpus) == [
        "gpus_per_node: profiled 8, here 2"
    ]


def test_an_emulated_link_counts_also_where_one_side_has_none() -> None:
    linked = with_detail("link_bits_per_s", "1000000000")
    assert differences(linked, HERE) == ["link_bits_per_s: profiled 1000000000, here none"]
    assert differences(HERE, linked) == ["link_bits_per_s: profiled none, here 1000000000"]


def test_nccls_settings_count() -> None:
    limited = with_detail("NCCL_MAX_CTAS", "4")
    assert differences(limited, HERE) == ["NCCL_MAX_CTAS: profiled 4, here none"]


def test_all_differences_are_named() -> None:
    other = replace(with_detail("cores", "777"), backend="nccl")
    assert [text.partition(":")[0] for text in differences(other, HERE)] == ["backend", "cores"]


@pytest.mark.parametrize("name", ["python", "kernel", "torch", "clocks_sm_max", "NCCL_DEBUG"])
def test_what_changes_by_itself_does_not_count(name: str) -> None:
    assert differences(with_detail(name, "0"), HERE) == []


def test_measured_rates_do_not_count() -> None:
    faster = replace(HERE, peak_tflops={"fp32": 1e3}, memory_bandwidth_gb_s=1e3)
    assert differences(faster, HERE) == []
