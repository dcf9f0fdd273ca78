"""Errors of executors: the call itself did not fail."""

from __future__ import annotations

from domino_tune.base.errors import RunError


class WorkerDiedError(RunError):
    """The process that ran a call ended before it answered."""


class ExecutorLostError(RunError):
    """No worker process is available: the cluster is away or dropped the call, or no worker starts.
    The call may be made again later."""
