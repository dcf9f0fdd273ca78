"""A search's record as JSON, from which the next quantum goes on in any process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from domino_tune.search import Record, Trial
from simulator.errors import InfeasiblePlanError
from simulator.plan import SlicePlan


def record_to_json(record: Record) -> dict[str, Any]:
    """Return the plans by index: time in ns and peak in bytes, or the reason why a plan cannot run.

    Keep the message of the first plan that cannot run: a search that finds none repeats it.
    """
    first = next(iter(record.failed.values()), "")
    return {
        "history": [
            [index, found.iteration_ns, found.peak_bytes]
            if isinstance(found, Trial)
            else [index, found.reason]
            for index, found in record.history.items()
        ],
        "pruned": sorted(record.pruned),
        "first_failure": str(first),
    }


def record_from_json(parsed: Mapping[str, Any], plans: Sequence[SlicePlan]) -> Record:
    """Return the record that ``record_to_json`` gave; ``plans`` are those that were searched."""
    record = Record(pruned=set(parsed["pruned"]))
    message = parsed["first_failure"]
    for index, *found in parsed["history"]:
        if len(found) == 1:
            record.history[index] = InfeasiblePlanError(message, reason=found[0])
        else:
            iteration_ns, peak_bytes = found
            record.history[index] = Trial(
                plan=plans[index], iteration_ns=iteration_ns, peak_bytes=peak_bytes, index=index
            )
    return record
