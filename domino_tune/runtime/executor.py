"""Plays a Schedule on this rank: op by op, whole steps, or as a graph; and what it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from domino_tune.runtime.clock import Clock, DeviceClock, NoClock, Tick, clock_for, timed_event
from domino_tune.runtime.lanes.lane import (
    Call,
    Handle,
    Lane,
    all_gather,
    all_reduce,
    reduce_scatter,
)
from domino_tune.runtime.ops import State, attention, edges, layers, sides_of
from domino_tune.runtime.parameters import EDGES, Parameters
from simulator.errors import InputError
from simulator.issue_order import BLOCKS, COLUMN_PARALLEL, ROW_PARALLEL
from simulator.ops import Collective
from simulator.schedule import COMPUTE, RECOMPUTED_SUFFIX, Op, Schedule, Timeline, is_weight
from simulator.shapes import GRAD_BYTES
from simulator.specs import Workload

# Plays ops on this rank, one by one in issue order ------------------------------------------------
# This is what the simulator's engines predict: compute ops run in issue order, a collective is
# handed to its lane at its place in that order, and the first reader of its result waits for it.

OpFunction = Callable[[State, Op], None]

_BLOCK_FUNCTIONS: Final[dict[str, OpFunction]] = {
    "norm": layers.norm,
    "residual": layers.residual,
    "residual_bwd": layers.residual_bwd,
    "norm_bwd": layers.norm_bwd,
}
FUNCTIONS: Final[dict[str, OpFunction]] = {
    **{f"{b}.{name}": f for b in BLOCKS for name, f in _BLOCK_FUNCTIONS.items()},
    **{f"{b}.{COLUMN_PARALLEL[b]}": layers.column_parallel for b in BLOCKS},
    **{f"{b}.{COLUMN_PARALLEL[b]}_dgrad": layers.column_parallel_dgrad for b in BLOCKS},
    **{f"{b}.{COLUMN_PARALLEL[b]}_wgrad": layers.wgrad for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}": layers.row_parallel for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}_dgrad": layers.row_parallel_dgrad for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}_wgrad": layers.wgrad for b in BLOCKS},
    **{f"{b}.{COLUMN_PARALLEL[b]}_wgrad.x": layers.joined for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}_wgrad.dy": layers.joined for b in BLOCKS},
    "attn.proj_wgrad.x": layers.joined,
    "attn.qk_norm": attention.qk_norm,
    "attn.qk_norm_bwd": attention.qk_norm_bwd,
    "attn.rope": attention.rope,
    "attn.core_attn": attention.core_attn,
    "attn.core_attn_bwd": attention.core_attn_bwd,
    "attn.kv_bwd": attention.kv_bwd,
    "attn.rope_bwd": attention.rope_bwd,
    "mlp.act": layers.act,
    "mlp.act_bwd": layers.act_bwd,
    "embed": edges.embed,
    "embed.post": edges.embed_post,
    "embed_bwd": edges.embed_bwd,
    "head.norm": layers.norm,
    "head.norm_bwd": layers.norm_bwd,
    "head.logits": edges.logits,
    "head.logits_dgrad": edges.logits_dgrad,
    "head.logits_wgrad": edges.logits_wgrad,
    "loss.max": edges.loss_max,
    "loss.sum": edges.loss_sum,
    "loss.grad": edges.loss_grad,
    "step.tp.pack": edges.pack_partial,
    "step.tp.unpack": edges.unpack_partial,
    "step.grad_norm": edges.grad_norm,
    "step.adam": edges.adam,
}
"""Tensor function of every compute role."""


class Passage(NamedTuple):
    """Ops to play, and for each the values to free after it."""

    ops: tuple[Op, ...]
    frees: tuple[tuple[str, ...], ...]


def passage(ops: Sequence[Op], keeps: frozenset[str] = frozenset()) -> Passage:
    """Return ``ops`` and when to free what they read and write: after the last op that reads it,
    but never one of ``keeps``, which others read."""
    last: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in (*op.reads, *op.writes):
            last[name] = index
    frees: list[list[str]] = [[] for _ in ops]
    for name, index in last.items():
        if not is_weight(name) and name not in keeps:
            frees[index].append(name)
    return Passage(tuple(ops), tuple(map(tuple, frees)))


def recomputed(ops: Sequence[Op]) -> frozenset[str]:
    """Return the names of ops that are played again in backward."""
    again = (op.name for op in ops if op.role.endswith(RECOMPUTED_SUFFIX))
    return frozenset(name.removesuffix(RECOMPUTED_SUFFIX) for name in again)


def play(
    state: State,
    lanes: Mapping[int, Lane],
    played: Passage,
    clock: Clock,
    arriving: Mapping[str, Handle] | None = None,
) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
    """Issue every op, and wait for all; ``arriving``: collectives under way, by the value that
    each writes. Return (start, end) of each by ``clock``, ns, and the names
    of the issued ops."""
    values = state.values
    pending: dict[str, Handle] = dict(arriving or {})
    moments: list[Callable[[], tuple[Tick, Tick]]] = []
    launched = []
    clock.start()
    for op, free in zip(played.ops, played.frees, strict=True):
        launched.append(op.name)
        if op.lane == COMPUTE:
            for name in op.reads:
                if name in pending:
                    pending.pop(name).wait()
            start = clock.tick()
            FUNCTIONS[op.role.removesuffix(RECOMPUTED_SUFFIX)](state, op)
            moments.append(partial(_pair, start, clock.tick()))
        else:
            call = _call(state, op)
            values[op.writes[0]] = call.target
            handle = lanes[op.lane].issue(op.name, call)
            pending[op.writes[0]] = handle
            moments.append(handle.ticks)
        for name in free:
            values.pop(name, None)
    for handle in pending.values():
        handle.wait()
    clock.stop()
    ticks = [moment() for moment in moments]
    return [(clock.at_ns(a), clock.at_ns(b)) for a, b in ticks], tuple(launched)


def _call(state: State, op: Op) -> Call:
    signature = op.signature
    assert isinstance(signature, Collective)
    if signature.op == "all_gather":
        source, ranks = state.values[op.reads[0]], signature.ranks
        rows, width = len(source) * ranks, source.shape[1]
        return all_gather(source, ranks, state.rooms.room(op.writes[0], rows, width, source))
    if signature.op == "reduce_scatter":
        return reduce_scatter(state.values[op.reads[0]], signature.ranks)
    return all_reduce(_buffer(state, op), "max" if op.role == "loss.max.ar" else "sum")


def _buffer(state: State, op: Op) -> torch.Tensor:
    """Return the tensor that is reduced in place: a value, or a range of main gradients."""
    shapes = state.shapes
    if op.role == "dp.ar":
        count = op.signature.size_bytes // GRAD_BYTES // shapes.layer_parameters  # type: ignore[union-attr]
        return state.trained.gradient_range(op.layer, op.layer + count - 1)
    if op.role == "step.dp.ar":
        rest = op.signature.size_bytes // GRAD_BYTES - shapes.edge_parameters  # type: ignore[union-attr]
        return state.trained.gradient_range(EDGES, rest // shapes.layer_parameters - 1)
    return state.values[op.reads[0]]


def _pair(start: Tick, end: Tick) -> tuple[Tick, Tick]:
    return start, end


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One step of this rank: this replica's share of the global loss, and when each op ran."""

    loss: float
    grad_norm: float
    timeline: Timeline
    launched: tuple[str, ...]


class Executor:
    """Plays ``schedule`` any number of times. ``lanes`` maps comm lane numbers to lanes; ``clock``
    times the ops (default: the most exact one that the device has)."""

    def __init__(
        self,
        schedule: Schedule,
        state: State,
        lanes: Mapping[int, Lane],
        clock: Clock | None = None,
    ) -> None:
        self.schedule = schedule
        self.state = state
        self.lanes = lanes
        self.ops = tuple(schedule.ops())
        state.recomputed = recomputed(self.ops)
        state.sides = sides_of(self.ops, state.shapes.plan.row_slices)
        self.passage = passage(self.ops)
        self.clock = clock or clock_for(state.parameters.device)

    def run_step(self, tokens: torch.Tensor, targets: torch.Tensor) -> StepResult:
        """Run one optimizer step on this replica's tokens and targets, [sequences, seq_length].

        Raise InputError where their shape is not that of the workload's batch.
        """
        state = self.state
        spans, launched = self.play(tokens, targets, self.clock)
        state.parameters.steps += 1
        loss, norm = float(self.loss()), float(state.saved["grad_norm"].sqrt())
        timeline = Timeline(
            schedule=self.schedule,
            start_ns=tuple(start for start, _ in spans),
            end_ns=tuple(end for _, end in spans),
        )
        return StepResult(loss=loss, grad_norm=norm, timeline=timeline, launched=launched)

    def loss(self) -> torch.Tensor:
        """Return this replica's share of the loss of the last step."""
        return torch.stack(self.state.losses).sum()

    @torch.no_grad()
    def play(
        self, tokens: torch.Tensor, targets: torch.Tensor, clock: Clock
    ) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
        """Issue every op of a step. Return (start, end) of each by ``clock``, ns, and the names of
        the issued ops.

        Raise InputError where tokens and targets do not have the shape of the workload's batch.
        """
        _check_batch(self.state.shapes.workload, tokens, targets)
        self.state.tokens, self.state.targets, self.state.losses = tokens, targets, []
        return play(self.state, self.lanes, self.passage, clock)


def _check_batch(workload: Workload, *tensors: torch.Tensor) -> None:
    expected = (workload.micro_batch_size * workload.grad_accumulation, workload.seq_length)
    for tensor in tensors:
        if tuple(tensor.shape) != expected:
            raise InputError(
                f"A replica's tokens and targets must be {list(expected)} (micro_batch_size × "
                f"grad_accumulation, seq_length), got {list(tensor.shape)}."
            )


# A step as one CUDA graph -------------------------------------------------------------------------
# One launch for the whole step, so that launches cost almost nothing.
#
# The comm lanes' streams fork from the compute stream and join it by events. So they are captured
# too, NCCL's collectives included. The device reads what changes from step to step: tokens and
# targets from fixed buffers, the step of dropout and Adam from ``Parameters.step_count``.

EAGER_STEPS: Final = 2
"""Eager steps before the capture: libraries create handles and communicators in them."""


class CapturedExecutor:
    """Runs ``executor``'s steps from a graph.

    The first steps run eagerly, and all steps where no graph can be captured; ``why_not`` is then
    the reason. ``elapsed_ns`` is the device time of the last step, ``launch_ns`` the host time of
    the last replay's launch. Graphs that never run at the same time may share a ``pool`` of memory.
    """

    def __init__(self, executor: Executor, pool: Any = None) -> None:
        self.executor = executor
        self.pool = pool
        self.why_not = ""
        self.elapsed_ns = 0
        self.launch_ns = 0
        self._eager_steps = 0
        self._captured: _Captured | None = None

    def run_step(self, tokens: torch.Tensor, targets: torch.Tensor) -> StepResult:
        """Run one optimizer step, as ``Executor.run_step`` does. Of a replayed step only the total
        time is known: the last compute op ends with it, every other op ends at 0."""
        if self._eager_steps < EAGER_STEPS or self.why_not:
            self._eager_steps += 1
            result = self.executor.run_step(tokens, targets)
            self.elapsed_ns = whole_ns(self.executor, result)
            return result
        if self._captured is None:
            self._capture(tokens, targets)
            return self.run_step(tokens, targets)
        return self._replay(self._captured, tokens, targets)

    def _capture(self, tokens: torch.Tensor, targets: torch.Tensor) -> None:
        state, stream = self.executor.state, torch.cuda.current_stream()
        saved_before = dict(state.saved)
        try:
            self._captured = _Captured(self.executor, tokens, targets, self.pool)
        except (RuntimeError, AssertionError) as error:
            first = root_cause(error)
            self.why_not = f"{type(first).__name__}: {first}".splitlines()[0]
            torch.cuda.set_stream(stream)  # a failed capture may leave its own stream current
            state.clear()
            state.saved.clear()
            state.saved.update(saved_before)
            torch.cuda.synchronize()

    def _replay(
        self, captured: _Captured, tokens: torch.Tensor, targets: torch.Tensor
    ) -> StepResult:
        self.elapsed_ns, self.launch_ns = captured.replay(tokens, targets)
        self.executor.state.parameters.steps += 1
        ops = self.executor.ops
        last = max(i for i, op in enumerate(ops) if op.lane == COMPUTE)
        ends = tuple(self.elapsed_ns if i == last else 0 for i in range(len(ops)))
        timeline = Timeline(schedule=self.executor.schedule, start_ns=(0,) * len(ops), end_ns=ends)
        return StepResult(
            loss=float(captured.loss),
            grad_norm=float(captured.norm),
            timeline=timeline,
            launched=captured.launched,
        )


class _Captured:
    """A graph of one step, with the buffers it reads and writes."""

    def __init__(
        self, executor: Executor, tokens: torch.Tensor, targets: torch.Tensor, pool: Any
    ) -> None:
        self.tokens, self.targets = tokens.clone(), targets.clone()
        self.begin, self.end = timed_event(), timed_event()
        self.graph = torch.cuda.CUDAGraph()
        # thread_local: NCCL's watchdog thread may query events during the capture.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            _, self.launched = executor.play(self.tokens, self.targets, NoClock())
            self.loss = executor.loss()
            self.norm = executor.state.saved["grad_norm"].sqrt()

    def replay(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[int, int]:
        """Replay the graph on this batch. Return the device time and the launch time, ns."""
        self.tokens.copy_(tokens)
        self.targets.copy_(targets)
        torch.cuda.synchronize()
        self.begin.record()
        before = time.perf_counter_ns()
        self.graph.replay()
        launch_ns = time.perf_counter_ns() - before
        self.end.record()
        torch.cuda.synchronize()
        return round(1e6 * float(self.begin.elapsed_time(self.end))), launch_ns


def whole_ns(executor: Executor, result: StepResult) -> int:
    """Return the total time of an eager step by the executor's clock, ns."""
    clock = executor.clock
    return clock.elapsed_ns if isinstance(clock, DeviceClock) else result.timeline.makespan_ns


def root_cause(error: BaseException) -> BaseException:
    """Return the first error: ending a failed capture raises another one that explains nothing."""
    while error.__context__ is not None:
        error = error.__context__
    return error


# Peak memory of a step ----------------------------------------------------------------------------
# Live tensors are counted on CPU, the allocator is asked on CUDA.

PERSISTENT: Final = frozenset({"rope", "grad_norm"})
"""Names of saved tensors that may live longer than a step."""


class WatchedValues(dict[str, torch.Tensor]):
    """A state's values; ``all_peak`` is the most bytes alive so far, saved tensors included."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.all_peak = state, 0

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        super().__setitem__(name, value)
        saved = (value for key, value in self.state.saved.items() if key not in PERSISTENT)
        self.all_peak = max(self.all_peak, storage_bytes([*self.values(), *saved]))


def storage_bytes(values: Iterable[Any]) -> int:
    """Return the bytes of the distinct storages: views of a storage count once."""
    storages = (tensor.untyped_storage() for tensor in _tensors(values))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for item in values:
        if isinstance(item, torch.Tensor):
            yield item
        else:
            yield from _tensors(item)


def step_peak_bytes(executor: Executor, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
    """Return the most bytes alive during one step, parameters included: of live tensors on CPU,
    the allocator's figure on CUDA. Counting slows the step on CPU: do not time it."""
    if executor.state.parameters.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        executor.run_step(*batch)
        return int(torch.cuda.max_memory_allocated())
    plain = executor.state.values
    watched = executor.state.values = WatchedValues(executor.state)
    try:
        executor.run_step(*batch)
    finally:
        executor.state.values = plain
    return parameter_bytes(executor.state.trained) + watched.all_peak


def parameter_bytes(p: Parameters) -> int:
    """Return the bytes of main parameters, gradients, moments and the compute-dtype copy."""
    return storage_bytes([p.main, p.grad, p.moment1, p.moment2, p.model_copy])
