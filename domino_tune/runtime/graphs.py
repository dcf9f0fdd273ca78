"""A step as one CUDA graph: one launch for the whole step, so that launches cost almost nothing.

The comm lanes' streams fork from the compute stream and join it by events. So they are captured
too, NCCL's collectives included. The device reads what changes from step to step: tokens and
targets from fixed buffers, the step of dropout and Adam from ``Parameters.step_count``.
"""

from __future__ import annotations

import time
from typing import Any, Final

import torch

from domino_tune.runtime.clock import DeviceClock, NoClock
from domino_tune.runtime.executor import Executor, StepResult
from simulator.schedule import COMPUTE, Timeline

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

    @property
    def is_captured(self) -> bool:
        """Return whether steps are replayed from a graph."""
        return self._captured is not None

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
        self.begin, self.end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
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
