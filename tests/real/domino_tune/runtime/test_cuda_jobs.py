"""Rank processes on one CUDA device: the launcher over NCCL, profiles, plans that are validated."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch

from domino_tune.measure.machine import this_machine
from domino_tune.measure.probe_set import LEAST_ROUNDS, ContentionProbe, ProbeCase, ProbeSet
from domino_tune.measure.profiling import JOB, add_message
from domino_tune.runtime.lanes.groups import nccl_options
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from domino_tune.runtime.plan_runs import Runs
from simulator.ops import Collective
from simulator.plan import MEGATRON, SlicePlan
from simulator.profile import Profile
from simulator.schedules import fixed_order
from simulator.specs import ClusterSpec, Workload
from tests.real.domino_tune.runtime.jobs import GPT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch sees no CUDA device"),
]
DRY_GPT = replace(GPT, hidden_dropout=0.0)
TWO = SlicePlan(row_slices=2, order="intra", wgrad="eager")


def test_a_job_runs_over_nccl() -> None:
    """The launcher's own path: a rank process, an NCCL lane, a report."""
    found: list[dict[str, object]] = []
    run_job(
        "tests.real.domino_tune.runtime.cuda_jobs:reduce", {}, LaunchSpec(tp=1, backend="nccl"),
        on_message=found.append,
    )  # fmt: skip
    assert found == [{"sum": 4.0, "device": "cuda:0"}]


def test_lanes_by_cta_count_are_made_once_each() -> None:
    found: list[dict[str, object]] = []
    run_job(
        "tests.real.domino_tune.runtime.cuda_jobs:reduce_with_few_ctas", {"ctas": [0, 4, 1, 4, 0]},
        LaunchSpec(tp=1, backend="nccl"), on_message=found.append,
    )  # fmt: skip
    assert found == [{"sums": [4.0] * 5, "lanes": 3}]


def test_options_of_a_group_hold_its_ctas() -> None:
    options = nccl_options(4, timedelta(seconds=50))
    assert (options.config.min_ctas, options.config.max_ctas) == (4, 4)
    assert options._timeout == timedelta(seconds=50)


def test_a_rank_measures_ops_collectives_launches_and_contention() -> None:
    """A group of one sends nothing, so what is beside nothing may have no rows."""
    one = ProbeCase(
        model=replace(DRY_GPT, name="probe"),
        workload=Workload(seq_length=6, micro_batch_size=4, dtype="bf16"),
        cluster=ClusterSpec(tp=1), plans=(MEGATRON, TWO),
    )  # fmt: skip
    messages = [Collective("all_reduce", 1 << 20, 1, 1, ctas) for ctas in (4, 0)]
    probes = ProbeSet(
        cases=(one,), collectives=tuple(reversed(messages)), ops=frozenset(),
        contention=ContentionProbe(case=0, plan=TWO, messages=tuple(messages)),
    )  # fmt: skip
    heard: list[dict[str, Any]] = []
    run_job(
        JOB, probes.payload(LEAST_ROUNDS, None), LaunchSpec(tp=1, backend="nccl"),
        on_message=heard.append,
    )  # fmt: skip
    kinds = {message["kind"] for message in heard}
    assert {"plan", "launch", "collective", "contention", "progress", "end"} <= kinds
    machine = replace(this_machine(1, "nccl", {}), sm_count=132)
    profile = Profile(name="here", created="2026-11-20", machine=machine)
    for message in heard:
        if message["kind"] not in ("machine", "progress", "end"):
            profile = add_message(profile, message)
    assert profile.launch is not None
    assert profile.launch.mode == "async"
    assert set(profile.launch.cost_us) == {"gemm", "attention", "pointwise", "collective"}
    assert all(0.1 < cost < 10_000 for cost in profile.launch.cost_us.values())
    assert profile.comm_ctas_choices(1, 1) == (0, 4)
    assert profile.gemm is not None
    assert all(row.median_us < 10_000 for row in profile.gemm.rows)


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_plans_are_validated_as_wholes_and_their_ops_apart(cuda_graph: bool) -> None:
    workload = Workload(seq_length=6, micro_batch_size=4, dtype="bf16")
    cluster = ClusterSpec(tp=1, cuda_graph=cuda_graph)
    plans = [(plan, fixed_order(plan)) for plan in (MEGATRON, TWO)]
    spec = LaunchSpec(tp=1, backend="nccl")
    for found in Runs(DRY_GPT, workload, cluster, plans, 4).run(spec):
        assert found.captured == cuda_graph, found.why_not_captured
        assert found.why_not_captured == ""
        assert len(found.makespans_ns) == 4
        assert min(found.makespans_ns) > 0
        assert found.timeline is not None
        assert found.timeline.makespan_ns > 0
        assert found.typical_ns is not None
        assert all(time_ns > 0 for time_ns in found.typical_ns)
        assert found.losses == pytest.approx([found.losses[0]] * 4, rel=1e-3)
