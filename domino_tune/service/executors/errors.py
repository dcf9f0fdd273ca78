"""How an executor fails a call that is not to blame."""

from __future__ import annotations

from domino_tune.base.errors import RunError


class WorkerDiedError(RunError):
    """The process that computed a slice ended before it answered."""


class ExecutorLostError(RunError):
    """No process can be had now: the cluster is away or forgot what it was asked, or no worker
    starts. The call is not to blame, and may be made again later."""
