"""PipelineProgram: what both engines of a pipeline play.

Rules. A rank plays its tasks in order. A task that reads a message starts when it has come. Where a
task ends, its message goes out. A rendezvous also waits until the receiver is done with the task
before the one that reads it. Messages of one link go one after the other. Where messages block, a
rank's next task starts after its message has arrived.

A rank's data-parallel lane is FIFO: first the gathers of parameters, then the sums of gradients. A
task starts when the first gather of its chunk is done, and ends after the last one. The buckets of
a task become ready at equal distances in it, the last one at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulator.pipeline.orders import Action


class Message(NamedTuple):
    """Data from one rank to another; ``link`` numbers the directed pair of ranks."""

    duration_ns: int
    link: int
    sender: int
    receiver: int


class Task(NamedTuple):
    """One action and its time alone. ``reads``, ``sends``: numbers of messages, −1 for none.

    ``gathers_ns``: of the parameters that it needs first; ``buckets_ns``: of gradients that it
    completes.
    """

    action: Action
    duration_ns: int
    reads: int = -1
    sends: int = -1
    gathers_ns: tuple[int, ...] = ()
    buckets_ns: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PipelineProgram:
    """The tasks of each rank, and the messages between them.

    ``rendezvous``, ``blocking``: as in the module's docstring.
    ``summed_ns``: each rank's way from its last gradient to the norm's sum over all ranks.
    ``tied_ns``: the sum of a tied table's gradient between the first and the last rank, before it.
    ``updated_ns``: each rank's way from there to its new parameters.
    """

    ranks: tuple[tuple[Task, ...], ...]
    messages: tuple[Message, ...]
    rendezvous: bool
    blocking: bool
    summed_ns: tuple[int, ...]
    updated_ns: tuple[int, ...]
    tied_ns: int = 0

    @property
    def links(self) -> int:
        """Number of directed links."""
        return 1 + max((message.link for message in self.messages), default=-1)

    def step_end(self, gradients_at: list[int]) -> int:
        """Return when all ranks have new parameters; ``gradients_at``: when each has its
        gradients."""
        ready = list(gradients_at)
        if self.tied_ns:
            ready[0] = ready[-1] = max(ready[0], ready[-1]) + self.tied_ns
        ready = [at + summed for at, summed in zip(ready, self.summed_ns, strict=True)]
        return max(ready) + max(self.updated_ns)


class PipelineRun(NamedTuple):
    """Times of a played program, in ns: (start, end) of each task of each rank, of each message,
    and when each rank's gradients are summed."""

    tasks: tuple[tuple[tuple[int, int], ...], ...]
    messages: tuple[tuple[int, int], ...]
    gradients_at: tuple[int, ...]
    makespan_ns: int
