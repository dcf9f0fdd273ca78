"""Windows of a pass, and the bounds of rivals that are made of them."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from typing import Any, Final

import pytest

from domino_tune.store.profiles import load_profile
from simulator.bounds import Bounds
from simulator.case import Case
from simulator.cost import Factors
from simulator.errors import InfeasiblePlanError, InputError
from simulator.implementation import IMPLEMENTATIONS
from simulator.ops import Pointwise
from simulator.overlap import CHOICES, GEMMS, RIVALS, gemms_of
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.recipes import windows
from simulator.schedule import COMPUTE, TP, OpTemplate
from simulator.specs import ClusterSpec, Workload
from simulator.values import Ref
from tests.unit.simulator.test_estimate import GPT, LLAMA

MACHINES: Final = ("h100-dgx", "a100-sxm", "h200-sxm", "b200-sxm")
RECOMPUTED: Final[tuple[dict[str, Any], ...]] = (
    {}, {}, {"recompute": "full"}, {"recompute": "full", "recompute_layers": 1},
    {"recompute": "selective"}, {"recompute": "per-op"},
    {"recompute": "selective", "recompute_modules": ("layernorm", "mlp")},
)  # fmt: skip
PIPELINES: Final[tuple[dict[str, Any], ...]] = (
    {}, {}, {}, {"pp": 2}, {"pp": 2, "vpp": 2}, {"pp": 2, "pp_schedule": "zero-bubble"},
    {"dp": 2}, {"cp": 2},
)  # fmt: skip


def rival(rng: random.Random) -> SlicePlan:
    """A rival whose GEMMs have random methods; each second has the usual ones."""
    strategy = rng.choice(list(RIVALS))
    told = []
    for gemm in GEMMS if rng.random() < 0.5 else ():
        how = rng.choice([how for kind, how in CHOICES[strategy] if gemm in gemms_of(kind)])
        told.append(f"{gemm}={how.text}")
    return replace(
        MEGATRON, strategy=strategy, sequence_parallel=True,  # type: ignore[arg-type]
        tp_comm_overlap=tuple(told), wgrad=rng.choice(("eager", "deferred")),
    )  # fmt: skip


def case_on(machine: str, rng: random.Random) -> Case:
    """A random job on a machine, at the clock of its timings or at that which power allows."""
    profile, layout = load_profile(machine), dict(rng.choice(PIPELINES))
    schedule = layout.pop("pp_schedule", "1f1b")
    return Case(
        model=replace(rng.choice((GPT, LLAMA)), num_hidden_layers=4),
        workload=Workload(
            seq_length=rng.choice((1024, 4096)), micro_batch_size=rng.choice((1, 2, 4)),
            grad_accumulation=rng.choice((2, 4)), pp_schedule=schedule, **rng.choice(RECOMPUTED),
            implementation=IMPLEMENTATIONS[rng.choice(("megatron-te", "torch", "megatron-2022"))],
        ),
        cluster=ClusterSpec(tp=rng.choice((2, 4, 8)), cuda_graph=rng.random() < 0.5, **layout),
        profile=profile if rng.random() < 0.5 else replace(profile, power=None),
        factors=Factors(
            link_bandwidth=rng.choice((0.1, 0.5, 1.0, 4.0)),
            contention=rng.choice((0.0, 1.0, 1.0, 3.0)),
        ),
    )  # fmt: skip


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("machine", MACHINES)
def test_bounds_of_rivals_are_not_above_their_times_and_near_them(machine: str) -> None:
    shares = []
    for seed in range(40):
        rng = random.Random(f"{machine} {seed}")
        try:
            case, plan = case_on(machine, rng), rival(rng)
            time_ns = predict(case, plan).makespan_ns
        except (InfeasiblePlanError, InputError):  # what does not divide, or cannot be combined
            continue
        bound_ns = Bounds(case).lower_bound_ns(plan)
        assert bound_ns <= time_ns, (seed, plan.label, bound_ns, time_ns)
        shares.append(bound_ns / time_ns)
    assert len(shares) >= 30
    assert statistics.median(shares) >= 0.8


def op(name: str, lane: int, *reads: str) -> OpTemplate:
    """An op that writes ``name``."""
    seen = tuple(Ref(one) for one in reads)
    return OpTemplate(name, 0, Pointwise("add", 1, 1), lane, 0, seen, (Ref(name),))


def named(ops: list[OpTemplate], *, wgrads_wait: bool = True) -> list[list[str]]:
    return [[one.role for one in window] for window in windows(ops, wgrads_wait=wgrads_wait)]


def test_a_chunks_copy_runs_beside_the_chunks_before_it() -> None:
    ring = [op(f"copy{i}", TP, "x") for i in (1, 2)]
    ring += [
        op("gemm0", COMPUTE, "x"),
        op("gemm1", COMPUTE, "copy1"),
        op("gemm2", COMPUTE, "copy2"),
    ]
    ops = [op("x", COMPUTE), *ring, op("y", COMPUTE, "gemm2")]
    assert named(ops) == [["copy1", "copy2", "gemm0", "gemm1"]]


def test_a_sum_that_is_read_at_once_runs_beside_nothing() -> None:
    ops = [op("gemm0", COMPUTE), op("rs0", TP, "gemm0"), op("gemm1", COMPUTE),
           op("rs1", TP, "gemm1"), op("add", COMPUTE, "rs1")]  # fmt: skip
    assert named(ops) == [["rs0", "gemm1"], ["rs1"]]


def test_gathers_and_sums_of_bulk_run_beside_different_gemms() -> None:
    ops = [op("ag", TP), op("fc1_dgrad", COMPUTE), op("rs", TP, "fc1_dgrad"),
           op("fc1_wgrad", COMPUTE, "ag"), op("norm", COMPUTE, "rs")]  # fmt: skip
    assert named(ops) == [["ag", "fc1_dgrad"], ["rs", "fc1_wgrad"]]
    assert named(ops, wgrads_wait=False) == [["ag", "fc1_dgrad", "rs", "fc1_wgrad"]]


def test_what_no_op_of_the_layer_waits_for_is_left_out() -> None:
    awaited = [op("ag", TP), op("gemm", COMPUTE, "ag")]
    assert named([*awaited, op("rs", TP, "gemm"), op("next", COMPUTE)]) == [["ag"]]
    assert named([*awaited, op("rs", TP, "gemm")]) == [["ag"]]
