"""What is recorded of a machine, and what not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.measure.machine import (
    add_machine_message,
    differences,
    machine_of,
    nccl_settings,
    ranks_per_node,
    this_machine,
)
from domino_tune.runtime.launch_spec import LaunchSpec


def test_settings_of_nccl_are_recorded_and_nothing_else() -> None:
    env = {"NCCL_MAX_CTAS": "8", "HOME": "/home/me", "NCCL_ALGO": "Ring", "TOKEN": "secret"}
    assert nccl_settings(env) == {"NCCL_ALGO": "Ring", "NCCL_MAX_CTAS": "8"}
    machine = machine_of(LaunchSpec(tp=2), env)
    assert machine.details["NCCL_ALGO"] == "Ring"
    assert not {"HOME", "TOKEN", "/home/me", "secret"} & {
        *machine.details, *machine.details.values()
    }  # fmt: skip


def test_versions_cores_and_the_emulated_link_are_recorded() -> None:
    machine = machine_of(LaunchSpec(tp=2, emulate_link_bits_per_s=10**9, threads_per_rank=3), {})
    assert machine.details["link_bits_per_s"] == "1000000000"
    assert machine.details["threads_per_rank"] == "3"
    assert {"cores", "kernel", "python", "torch"} <= set(machine.details)
    assert machine.gpus_per_node == 1  # two ranks on two emulated hosts


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, 4),
        ({"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "LOCAL_WORLD_SIZE": "2"}, 2),
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
            },
            2,
        ),
        ({"LOCAL_WORLD_SIZE": "1"}, 4),  # nobody's launcher
    ],
)
def test_a_launcher_says_how_many_ranks_share_a_node(env: dict[str, str], expected: int) -> None:
    assert ranks_per_node(LaunchSpec(tp=2, dp=2), env) == expected


def test_what_a_rank_on_a_gpu_says_is_folded_in() -> None:
    said = {
        "kind": "machine", "gpu": "H", "sm_count": 132, "memory_gib": 79.6471,
        "details": {"driver": "570"},
    }  # fmt: skip
    machine = add_machine_message(this_machine(8, "nccl", {"a": "b"}), said)
    assert (machine.gpu, machine.sm_count, machine.gpu_memory_gib) == ("H", 132, 79.647)
    assert {"a": "b", "driver": "570"}.items() <= machine.details.items()
    assert add_machine_message(machine, {"kind": "machine"}) == machine


# Which differences make a profile one of another machine ------------------------------------------

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
