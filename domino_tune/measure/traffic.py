"""Lanes for measuring: one that does nothing, and collectives that never stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

import torch
import torch.distributed as dist

from domino_tune.runtime.lanes import Lane, ThreadHandle
from simulator.schedule import DP, TP


class SilentLane:
    """A lane whose collectives are done at once: compute alone."""

    def issue(self, name: str, tensor: torch.Tensor, reduction: str) -> ThreadHandle:
        """Nothing happens."""
        now = time.perf_counter_ns()
        handle = ThreadHandle(name, span_ns=(now, now))
        handle.done.set()
        return handle

    def close(self) -> None:
        """Nothing to give up."""


SILENT: Final[Mapping[int, Lane]] = {TP: SilentLane(), DP: SilentLane()}
"""Lanes of a rank that computes alone."""


class Traffic:
    """All-reduces of one size, back to back, on a thread of their own (gloo).

    Ranks must agree on how many: the last element says how many ranks want to stop, and all stop
    behind the all-reduce that brought them the news.
    """

    def __init__(self, group: dist.ProcessGroup, size_bytes: int) -> None:
        self.group = group
        self.buffer = torch.zeros(max(2, size_bytes // 4))
        self.durations_ns: list[int] = []
        self._taken = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def wait_for(self, count: int) -> None:
        """Until ``count`` more all-reduces are done."""
        wanted = len(self.durations_ns) + count
        while len(self.durations_ns) < wanted and self._thread.is_alive():
            time.sleep(0.001)

    def taken_ns(self) -> list[int]:
        """Durations since the last call, without the first: something changed while it ran."""
        begin, self._taken = self._taken, len(self.durations_ns)
        return self.durations_ns[begin + 1 : self._taken]

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        stop = False
        while not stop:
            self.buffer.zero_()
            self.buffer[-1] = float(self._stopping.is_set())
            start = time.perf_counter_ns()
            dist.all_reduce(self.buffer, group=self.group)
            self.durations_ns.append(time.perf_counter_ns() - start)
            stop = bool(self.buffer[-1] > 0)
