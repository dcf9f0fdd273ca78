"""Results of searches as JSON, from which the next quantum continues in any process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from domino_tune.search import Record, Trial
from domino_tune.search.layouts import Candidate, Timed
from simulator.errors import InfeasiblePlanError
from simulator.plan import SlicePlan


def record_to_json(record: Record) -> dict[str, Any]:
    """Return the plans by index: time in ns and peak in bytes, or the reason why a plan cannot run.

    Keep the message of the first plan that cannot run: a search without any feasible plan repeats
    it.
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
    """Return the record from the JSON of ``record_to_json``; ``plans``: the searched ones."""
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


def layouts_to_json(candidates: Sequence[Candidate]) -> list[list[int | None]]:
    """Return the evaluated plans in order, each as the indices of its candidate and of the plan,
    then time in ns and peak in bytes. The time is None for a plan that is not recommended; the peak
    is then given only if it fits nevertheless.
    """
    found: list[list[int | None]] = []
    for number, one in enumerate(candidates):
        plans = {plan: index for index, plan in enumerate(one.plans)} if one.timed else {}
        for plan, timed in one.timed.items():
            cost: list[int | None]
            if timed is None:
                cost = [None, *([one.unsure[plan]] if plan in one.unsure else [])]
            else:
                cost = [timed.iteration_ns, timed.peak_bytes]
            found.append([number, plans[plan], *cost])
    return found


def restore_layouts(found: Sequence[Sequence[Any]], candidates: Sequence[Candidate]) -> None:
    """Replace the candidates' results by those in the JSON of ``layouts_to_json``."""
    for one in candidates:
        one.timed.clear()
        one.unsure.clear()
    for number, index, iteration_ns, *peak in found:
        one = candidates[number]
        plan = one.plans[index]
        one.timed[plan] = None if iteration_ns is None else Timed(plan, iteration_ns, *peak)
        if iteration_ns is None and peak:
            one.unsure[plan] = peak[0]
