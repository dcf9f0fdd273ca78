"""The general grid: models of two styles that shard, fit, and messages for every group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.measure.model_free import CPU, GPU, model_free_probes
from simulator.errors import InputError
from simulator.ops import Attention, Gemm
from simulator.sharding import check_shardable
from simulator.specs import ClusterSpec
from tests.support.probing import empty


@pytest.mark.parametrize("grid", [CPU, GPU])
@pytest.mark.parametrize("tp", [1, 2, 3, 8])
def test_its_models_shard_over_any_number_of_ranks(grid, tp: int) -> None:  # type: ignore[no-untyped-def]
    cluster = ClusterSpec(tp=tp)
    profile = empty()
    roomy = replace(profile, machine=replace(profile.machine, gpu_memory_gib=1000.0))
    probes = model_free_probes(grid, cluster, "fp32", roomy)
    assert len(probes.cases) == 2 * len(grid.hidden_sizes) * len(grid.batches)
    for case in probes.cases:
        check_shardable(case.model, case.workload, cluster)
    assert {case.model.norm for case in probes.cases} == {"layernorm", "rmsnorm"}
    assert (probes.contention is None) == (tp == 1)


def test_messages_are_log_spaced_for_every_group() -> None:
    probes = model_free_probes(CPU, ClusterSpec(tp=2, dp=4, ranks_per_node=4), "fp32", empty())
    sizes = {c.size_bytes for c in probes.collectives}
    assert sizes == {1 << power for power in range(12, 27)}
    assert {(c.nodes, c.per_node) for c in probes.collectives} == {(1, 2), (2, 2)}
    kinds = {(c.op, c.nodes, c.per_node) for c in probes.collectives}
    gathers = {("all_gather", 1, 2), ("reduce_scatter", 1, 2)}
    assert kinds == {("all_reduce", 1, 2), ("all_reduce", 2, 2), *gathers}
    assert len(probes.collectives) == len(kinds) * len(sizes)
    coarse = [c.size_bytes for c in probes.collectives[: 5 * len(kinds) : len(kinds)]]
    assert coarse == [4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20]


def test_one_rank_sends_nothing() -> None:
    assert model_free_probes(CPU, ClusterSpec(tp=1), "fp32", empty()).collectives == ()


def test_token_counts_are_log_spaced() -> None:
    probes = model_free_probes(CPU, ClusterSpec(tp=1), "fp32", empty())
    gemms = {op.m for op in probes.ops if isinstance(op, Gemm) and op.layout == "forward"}
    assert {128, 256, 512, 1024} <= gemms
    cores = {(op.seq, op.kv_seq) for op in probes.ops if isinstance(op, Attention)}
    assert cores == {(128, 0), (512, 0), (64, 0), (64, 128), (256, 0), (256, 512)}


def test_what_does_not_fit_is_left_out() -> None:
    profile = empty()
    small = replace(profile, machine=replace(profile.machine, gpu_memory_gib=0.25))
    fewer = model_free_probes(CPU, ClusterSpec(tp=1), "fp32", small).cases
    assert 0 < len(fewer) < len(model_free_probes(CPU, ClusterSpec(tp=1), "fp32", profile).cases)
    assert max(case.model.hidden_size for case in fewer) < max(CPU.hidden_sizes)


def test_a_rank_with_hardly_any_memory_is_told_so() -> None:
    profile = empty()
    none = replace(profile, machine=replace(profile.machine, gpu_memory_gib=0.01))
    with pytest.raises(InputError, match=r"0\.01 GiB, too little .* --for-model"):
        model_free_probes(CPU, ClusterSpec(tp=1), "fp32", none)


def test_over_nccl_cta_counts_are_measured_too() -> None:
    profile = empty()
    on_gpus = replace(profile, machine=replace(profile.machine, backend="nccl"))
    probes = model_free_probes(CPU, ClusterSpec(tp=2), "fp32", on_gpus)
    assert {c.ctas for c in probes.collectives} == {0, 1, 2, 4, 8, 16, 32}
    assert probes.contention is not None
    assert [message.ctas for message in probes.contention.messages] == [1, 2, 4, 8, 16, 32, 0]
