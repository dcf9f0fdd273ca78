"""File formats of others and of ours: models, arguments and traces. May import the store."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.errors import InfeasiblePlanError


def refused(text: str) -> InfeasiblePlanError:
    """Return the error for what the framework of an export does not run."""
    return InfeasiblePlanError(text, reason="target")


def refuse_first(framework: str, problems: Iterable[tuple[bool, str]]) -> None:
    """Raise that error for the first problem that is there; its text says what does not run, and
    what to do."""
    for there, what in problems:
        if there:
            raise refused(f"{framework} does not run {what}.")
