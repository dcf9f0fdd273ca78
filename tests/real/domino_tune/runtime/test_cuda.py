"""The runtime on one CUDA device: numbers, order of streams, lifetimes, graphs, clocks.

One device is one rank. Collectives are tested on a rank that believes it is one of several: over an
NCCL group of one they do nothing, and on a slow lane they change their tensor late, so that a
missing wait or a buffer used again too early gives wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from domino_tune.runtime.clock import (
    DeviceClock,
    HeadStart,
    HostClock,
    WholeClock,
    empty_span_ns,
    spin,
)
from domino_tune.runtime.executor import FUNCTIONS, PERSISTENT, CapturedExecutor, Executor
from domino_tune.runtime.lanes.groups import silent_lanes
from domino_tune.runtime.lanes.lane import Call, Lane, ThreadHandle
from domino_tune.runtime.lanes.streams import StreamHandle, StreamLane, StreamQueue
from domino_tune.runtime.launch_spec import QUEUES_SETTING
from domino_tune.runtime.ops.layers import add_product, widening_gemm
from domino_tune.runtime.ops.pointwise import keep_mask
from domino_tune.runtime.parameters import Parameters
from simulator.build import build_schedule
from simulator.plan import MEGATRON, SlicePlan
from simulator.schedule import COMPUTE, DP, TP
from simulator.specs import ClusterSpec
from tests.real.domino_tune.runtime.cases import GREEDY, PLANS, SLICED, SMOOTH, greedy_order
from tests.real.domino_tune.runtime.jobs import GPT, LLAMA, Job, RankResult, batch
from tests.real.domino_tune.runtime.ranks import new_state, recording_adam, shards_of
from tests.real.domino_tune.runtime.reference import trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch sees no CUDA device"),
]
CUDA = "cuda:0"
TOLERANCE = {"fp64": 1e-6, "fp32": 2e-5, "bf16": 0.03, "fp16": 0.003}
"""fp64 too: fused Adam corrects its moments by a step count in fp32."""
DRY_GPT = replace(GPT, hidden_dropout=0.0)
"""Each device draws its own dropout masks: comparing devices needs none."""
SOME_PLANS = (MEGATRON, PLANS[1], PLANS[4], PLANS[9], GREEDY, SLICED)
CLOCK_SLACK_NS = 3_000
TWO = SlicePlan(row_slices=2, order="intra", wgrad="eager")


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dist.ProcessGroup]:
    """An NCCL group of one, beside a gloo world as the runtime has it."""
    meeting = tmp_path_factory.mktemp("nccl") / "meeting"
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    group = dist.new_group([0], backend="nccl")
    assert isinstance(group, dist.ProcessGroup)
    yield group
    torch.cuda.synchronize()
    dist.destroy_process_group()


class HalvingLane:
    """A collective that halves its tensor, late: the device dawdles before and after."""

    def __init__(self) -> None:
        self._queue = StreamQueue()

    def issue(self, name: str, call: Call) -> StreamHandle:
        def work() -> None:
            spin(100_000)
            call.target.mul_(0.5)
            spin(25_000)

        return self._queue.launch(name, call, work)

    def close(self) -> None:
        self._queue.close()


class HostHalvingLane:
    """The same on CPU, at once."""

    def issue(self, name: str, call: Call) -> ThreadHandle:
        handle = ThreadHandle(name)
        call.target.mul_(0.5)
        handle.done.set()
        return handle

    def close(self) -> None:
        pass


def make_executor(
    job: Job, device: str, lanes: Mapping[int, Lane] | None = None, clock: Any = None
) -> Executor:
    order = job.order
    if order is None and job.plan.strategy == "domino" and job.plan.order == "greedy":
        order = greedy_order(job)
    schedule = build_schedule(job.model, job.workload, job.cluster, job.plan, order)
    return Executor(schedule, new_state(job, device=device), lanes or {}, clock)


def train(
    job: Job, device: str, lanes: Mapping[int, Lane] | None = None,
    wrap: Callable[[Executor], Any] = lambda executor: executor,
) -> RankResult:  # fmt: skip
    executor = make_executor(job, device, lanes)
    runner = wrap(executor)
    result = RankResult(tp_rank=0, dp_rank=0)
    for step in range(job.steps):
        tokens, targets = (tensor.to(device) for tensor in batch(job, step))
        with patch.dict(FUNCTIONS, {"step.adam": recording_adam(result)}):
            seen = runner.run_step(tokens, targets)
        result.losses.append(seen.loss)
        result.norms.append(seen.grad_norm)
        if seen.launched != tuple(op.name for op in executor.ops):
            result.problems.append(f"step {step}: the launch order is not the schedule's")
        if executor.state.values:
            result.problems.append(f"step {step}: values outlive it")
        if not set(executor.state.saved) <= PERSISTENT:
            result.problems.append(f"step {step}: saved tensors outlive it")
    result.parameters = shards_of(executor.state, executor.state.trained.main)
    return result


def assert_near(got: RankResult, expected: Any, tolerance: float) -> None:
    assert not got.problems
    assert got.losses == pytest.approx(expected.losses, rel=tolerance)
    assert got.norms == pytest.approx(expected.norms, rel=tolerance)
    for step, wanted in enumerate(expected.gradients):
        for name, tensor in wanted.items():
            assert error(got.gradients[step][name], tensor) < tolerance, (step, name)
    for name, tensor in expected.parameters.items():
        assert error(got.parameters[name], tensor) < tolerance, name


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    difference = float((got[: len(expected)] - expected).norm())
    return difference / max(float(expected.norm()), 1e-8)


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
@pytest.mark.parametrize("plan", SOME_PLANS, ids=lambda plan: plan.label)
def test_equals_the_unsliced_reference(model: Any, plan: SlicePlan, dtype: str) -> None:
    training = SMOOTH if dtype == "fp32" else Job(name="", model=model).training
    job = Job(name="", model=model, plan=plan, dtype=dtype, training=training)
    assert_near(train(job, CUDA), trained(job.unsliced, masks=CUDA), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
@pytest.mark.parametrize("plan", [MEGATRON, GREEDY, SLICED], ids=lambda plan: plan.label)
def test_half_precision_is_near_it(model: Any, plan: SlicePlan, dtype: str) -> None:
    job = Job(name="", model=model, plan=plan, dtype=dtype, grad_accumulation=2)
    seen = train(job, CUDA)
    assert not seen.problems
    expected = trained(job.unsliced, masks=CUDA).losses
    assert seen.losses == pytest.approx(expected, rel=TOLERANCE[dtype])


@pytest.mark.parametrize("model", [DRY_GPT, LLAMA], ids=lambda model: model.name)
@pytest.mark.parametrize("plan", SOME_PLANS, ids=lambda plan: plan.label)
def test_collectives_of_one_rank_change_nothing(
    model: Any, plan: SlicePlan, nccl: dist.ProcessGroup
) -> None:
    job = Job(name="", model=model, tp=2, plan=plan, grad_accumulation=2)
    lane = StreamLane(nccl)
    assert_near(
        train(job, CUDA, {TP: lane, DP: lane}),
        train(job, "cpu", silent_lanes(torch.device("cpu"))),
        TOLERANCE["fp64"],
    )


@pytest.mark.parametrize("model", [DRY_GPT, LLAMA], ids=lambda model: model.name)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.label)
def test_readers_wait_and_buffers_live_long_enough(model: Any, plan: SlicePlan) -> None:
    job = Job(name="", model=model, tp=2, plan=plan, steps=2)
    lane, host_lane = HalvingLane(), HostHalvingLane()
    assert_near(
        train(job, CUDA, {TP: lane, DP: lane}),
        train(job, "cpu", {TP: host_lane, DP: host_lane}),
        TOLERANCE["fp64"],
    )


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
@pytest.mark.parametrize("plan", [MEGATRON, PLANS[1], SLICED], ids=lambda plan: plan.label)
def test_a_captured_step_equals_an_eager_one(
    model: Any, plan: SlicePlan, nccl: dist.ProcessGroup
) -> None:
    """Over several replays: dropout masks and Adam's corrections change from step to step."""
    job = Job(name="", model=model, tp=2, plan=plan, dtype="fp32", training=SMOOTH, steps=6)
    lane = StreamLane(nccl)
    captured: list[CapturedExecutor] = []

    def wrap(executor: Executor) -> CapturedExecutor:
        captured.append(CapturedExecutor(executor))
        return captured[-1]

    seen = train(job, CUDA, {TP: lane, DP: lane}, wrap)
    eager = train(job, CUDA, {TP: lane, DP: lane})
    assert captured[0].why_not == ""
    assert captured[0].elapsed_ns > 0
    assert seen.losses == pytest.approx(eager.losses, rel=1e-5)
    assert seen.norms == pytest.approx(eager.norms, rel=1e-4)
    for name, tensor in eager.parameters.items():
        assert error(seen.parameters[name], tensor) < 1e-4, name


@pytest.mark.parametrize("queues", ["1", "8"])
def test_a_captured_step_waits_for_slow_collectives(
    queues: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUEUES_SETTING, queues)
    job = Job(name="", model=LLAMA, tp=2, plan=SLICED, steps=5)
    lane = HalvingLane()
    seen = train(job, CUDA, {TP: lane, DP: lane}, CapturedExecutor)
    eager = train(job, CUDA, {TP: lane, DP: lane})
    assert seen.losses == pytest.approx(eager.losses, rel=1e-6)


@pytest.mark.parametrize("plan", SOME_PLANS, ids=lambda plan: plan.label)
def test_the_timeline_keeps_the_lanes_rules(plan: SlicePlan) -> None:
    job = Job(name="", model=GPT, tp=2, plan=plan)
    lane = HalvingLane()
    executor = make_executor(job, CUDA, {TP: lane, DP: lane})
    tokens, targets = (tensor.to(CUDA) for tensor in batch(job, 0))
    timeline = executor.run_step(tokens, targets).timeline
    lane_end: dict[int, int] = {}
    written: dict[str, int] = {}
    for op, start, end in zip(executor.ops, timeline.start_ns, timeline.end_ns, strict=True):
        earliest = max(lane_end.get(op.lane, 0), lane_end.get(COMPUTE, 0))
        if op.lane == COMPUTE:
            earliest = max(earliest, *(written.get(name, 0) for name in op.reads), 0)
        assert earliest - CLOCK_SLACK_NS <= start <= end + CLOCK_SLACK_NS, op.name
        lane_end[op.lane] = end
        written.update(dict.fromkeys(op.writes, end))


def test_a_head_start_keeps_the_host_ahead() -> None:
    job = Job(name="", model=GPT, tp=2, plan=SLICED)
    clock = DeviceClock(HeadStart(spin_ns=200_000))
    executor = make_executor(job, CUDA, silent_lanes(torch.device(CUDA)), clock)
    tokens, targets = (tensor.to(CUDA) for tensor in batch(job, 0))
    late = []
    for _ in range(12):
        timeline = executor.run_step(tokens, targets).timeline
        late.append(clock.was_late)
        assert all(
            -CLOCK_SLACK_NS <= start <= end
            for start, end in zip(timeline.start_ns, timeline.end_ns, strict=True)
        )
    assert late[0]
    assert not late[-1]
    assert clock.elapsed_ns > 0


def test_other_clocks_and_an_empty_span() -> None:
    job = Job(name="", model=LLAMA, tp=2, plan=GREEDY)
    tokens, targets = (tensor.to(CUDA) for tensor in batch(job, 0))
    whole = WholeClock(HeadStart())
    executor = make_executor(job, CUDA, silent_lanes(torch.device(CUDA)), whole)
    executor.run_step(tokens, targets)
    assert whole.elapsed_ns > 0
    host = make_executor(job, CUDA, silent_lanes(torch.device("cpu")), HostClock())
    assert host.run_step(tokens, targets).timeline.makespan_ns > 0
    assert 0 <= empty_span_ns() < 20_000


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_masks_do_not_depend_on_slicing(rate: float) -> None:
    where: dict[str, Any] = {"seed": 3, "site": "l0.attn", "device": torch.device(CUDA)}
    whole = keep_mask(range(2, 9), (33, 70), rate, step=4, **where)
    count = torch.tensor([4.0], device=CUDA)
    parts = [
        keep_mask(range(a, b), (33, 70), rate, step=count, **where) for a, b in ((2, 5), (5, 9))
    ]
    assert torch.equal(whole, torch.cat(parts))
    assert float(whole.float().mean()) == pytest.approx(1 - rate, abs=0.02)
    other = keep_mask(range(2, 9), (33, 70), rate, step=5, **where)
    assert float((whole != other).float().mean()) == pytest.approx(2 * rate * (1 - rate), abs=0.03)


def test_weight_gradients_add_up_in_fp32() -> None:
    assert widening_gemm()
    dy, x = (torch.randn(300, width, device=CUDA, dtype=torch.bfloat16) for width in (64, 96))
    gradient = torch.randn(64, 96, device=CUDA)
    expected = gradient.double() + dy.double().t() @ x.double()
    add_product(gradient, dy, x, accumulate=True)
    assert error(gradient, expected) < 1e-5
    add_product(gradient, dy, x, accumulate=False)
    assert error(gradient, dy.double().t() @ x.double()) < 1e-5


def test_graphs_share_their_memory() -> None:
    """One replays while the others stand still: each gives what it gave alone."""
    pool = torch.cuda.graph_pool_handle()
    jobs = [Job(name="", model=LLAMA, plan=plan, steps=5) for plan in (MEGATRON, SLICED)]
    turns = [CapturedExecutor(make_executor(job, CUDA), pool) for job in jobs]
    losses: list[list[float]] = [[], []]
    for step in range(5):
        for job, turn, seen in zip(jobs, turns, losses, strict=True):
            tokens, targets = (tensor.to(CUDA) for tensor in batch(job, step))
            seen.append(turn.run_step(tokens, targets).loss)
    assert all(turn.elapsed_ns > 0 for turn in turns)
    for job, seen in zip(jobs, losses, strict=True):
        assert seen == pytest.approx(train(job, CUDA).losses, rel=1e-6)


def test_fast_draws_are_alike_where_parameters_are_whole() -> None:
    device = torch.device(CUDA)
    ranks = [
        Parameters(
            GPT, ClusterSpec(tp=2), rank, dtype=torch.float32, device=device, exact=False
        )
        for rank in (0, 1)
    ]  # fmt: skip
    first, second = (rank.weights for rank in ranks)
    assert torch.equal(first["w.positions"], second["w.positions"])
    assert not torch.equal(first["l0.w.mlp.fc2"], second["l0.w.mlp.fc2"])
