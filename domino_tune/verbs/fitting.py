"""Whether a job fits the memory of its GPUs, and for one that does not, what would."""

from __future__ import annotations

from domino_tune.requests import TuneRequest
from domino_tune.verbs.advice import Deadline, smallest_change, unsliced_plans, words_of
from simulator.case import Case
from simulator.errors import InfeasiblePlanError
from simulator.peak import least_peak_bytes, may_fit, static_memory
from simulator.units import GIB


def check_may_fit(case: Case, request: TuneRequest) -> None:
    """Raise InfeasiblePlanError when no plan fits the memory, without looking at each of them.

    Nothing is refused that could run: ``least_peak_bytes`` is not above any plan's peak.
    """
    if may_fit(case):
        return
    least, static = least_peak_bytes(case), sum(static_memory(case, unsliced_plans(case)[0]))
    # Of a what-if only the changed machine is known, not which options would change it so.
    asked = request.model is not None
    change = smallest_change(case, request, Deadline()) if asked else {}
    raise InfeasiblePlanError(
        f"No plan fits in the memory of {case.profile.machine.gpu}: each needs "
        f"{least / GIB:,.1f} GiB or more at its peak ({static / GIB:,.1f} GiB of weights, "
        "gradients and optimizer state, the rest activations), but it has "
        f"{case.capacity_bytes / GIB:.0f} GiB{words_of(change)}.",
        reason="memory",
        change=change,
    )
