"""LocalExecutor: a process of this machine for each job."""

from __future__ import annotations

from collections.abc import Callable

from domino_tune.service.executors.child import run_in_child
from domino_tune.service.executors.job import Limits, NoWorkerError, Wanted
from domino_tune.service.work.kinds import run_job
from domino_tune.service.work.reporting import Outcome, Reporter, Step


class LocalExecutor:
    """Runs jobs on this machine. ``function`` computes them."""

    lacking = ""

    def __init__(
        self, slots: int, function: Callable[[bytes, Reporter], Outcome] = run_job
    ) -> None:
        self.workers = slots
        self._function = function
        self._closed = False

    def run(
        self,
        task: bytes,
        limits: Limits,
        tell: Callable[[Step], None],
        wanted: Callable[[], Wanted],
    ) -> Outcome:
        """See JobExecutor."""
        try:
            return run_in_child(
                self._function, task, limits, tell, lambda: "end" if self._closed else wanted()
            )
        except OSError as error:
            raise NoWorkerError(
                f"No process can be started: {error.strerror}; is memory short?"
            ) from error

    def check(self) -> None:
        """Nothing is missing on this machine."""

    def close(self) -> None:
        """End the jobs that run."""
        self._closed = True
