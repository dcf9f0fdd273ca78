"""A step as one CUDA graph: the host launches it whole, so that launches cost nothing.

The comm lanes' streams fork from the compute stream and join it again by events, so they are
captured with it, NCCL's collectives too. What changes from step to step is read from the device:
tokens and targets from fixed buffers, dropout's and Adam's step from ``Parameters.step_count``.
"""

from __future__ import annotations

import time
from typing import Any, Final

import torch

from domino_tune.runtime.clock import DeviceClock, NoClock
from domino_tune.runtime.executor import Executor, StepResult
from simulator.schedule import COMPUTE
from simulator.timeline import Timeline

EAGER_STEPS: Final = 2
"""Steps run eagerly first: libraries make their handles, and communicators, outside a capture."""


class CapturedExecutor:
    """Runs ``executor``'s steps from a graph; the first ones, and all where it cannot be captured,
    eagerly. ``why_not`` says why it could not. ``elapsed_ns`` is what the last step took on the
    device, ``launch_ns`` what the host took to launch the last replay.

    Graphs that never run at once may share a ``pool`` of memory.
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
        """Whether steps are replayed."""
        return self._captured is not None

    def run_step(self, tokens: torch.Tensor, targets: torch.Tensor) -> StepResult:
        """One optimizer step, as ``Executor.run_step``. Of a replayed step only the whole is
        known: every op stands at its begin but the last compute op, which ends with it."""
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
        kept = dict(state.saved)
        try:
            self._captured = _Captured(self.executor, tokens, targets, self.pool)
        except (RuntimeError, AssertionError) as error:
            first = _first_of(error)
            self.why_not = f"{type(first).__name__}: {first}".splitlines()[0]
            torch.cuda.set_stream(stream)  # a capture that fails may leave its own behind
            state.values.clear()
            state.saved.clear()
            state.saved.update(kept)
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
    """A graph of one step, and the buffers it reads and writes."""

    def __init__(
        self, executor: Executor, tokens: torch.Tensor, targets: torch.Tensor, pool: Any
    ) -> None:
        self.tokens, self.targets = tokens.clone(), targets.clone()
        self.begin, self.end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        self.graph = torch.cuda.CUDAGraph()
        # thread_local: NCCL's watchdog thread may go on asking events while we capture.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            _, self.launched = executor.play(self.tokens, self.targets, NoClock())
            self.loss = executor.loss()
            self.norm = executor.state.saved["grad_norm"].sqrt()

    def replay(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[int, int]:
        """Play the graph on this batch; nanoseconds it took on the device and to launch."""
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
    """What an eager step took as a whole, by the executor's clock."""
    clock = executor.clock
    return clock.elapsed_ns if isinstance(clock, DeviceClock) else result.timeline.makespan_ns


def _first_of(error: BaseException) -> BaseException:
    """What went wrong first: ending a capture that failed fails again, and says nothing."""
    while error.__context__ is not None:
        error = error.__context__
    return error
