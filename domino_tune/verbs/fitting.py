"""Whether a job fits the memory of its GPUs, and for one that does not, what would."""

from __future__ import annotations

from domino_tune.requests import TuneRequest
from domino_tune.verbs.advice import Deadline, smallest_change, unsliced_plans, words_of
from simulator.case import Case
from simulator.dtypes import GIB
from simulator.errors import InfeasiblePlanError
from simulator.memory import least_peak_bytes, may_fit, static_memory
from simulator.usable import UNSURE, percent


def check_may_fit(case: Case, request: TuneRequest) -> None:
    """Raise InfeasiblePlanError when no plan can be recommended for its memory, without looking at
    each of them.

    Nothing is refused that could be: ``least_peak_bytes`` is not above any plan's peak.
    """
    if may_fit(case):
        return
    least, static = least_peak_bytes(case), sum(static_memory(case, unsliced_plans(case)[0]))
    # Of a what-if only the changed machine is known, not which options would change it so.
    asked = request.model is not None
    change = smallest_change(case, request, Deadline()) if asked else {}
    memory = case.memory
    chance = percent(memory.chance(least))
    raise InfeasiblePlanError(
        f"No plan fits in the memory of {case.profile.machine.gpu} with a chance of 80 % or more: "
        f"each needs {least / GIB:,.1f} GiB or more at its peak ({static / GIB:,.1f} GiB of "
        "weights, gradients and optimizer state, the rest activations), which fits with "
        f"{chance} at most; {memory.usable_bytes / GIB:,.1f} GiB are usable, and up to "
        f"{memory.sure_bytes / GIB:,.1f} GiB are recommended{words_of(change)}.",
        reason="memory" if least > memory.usable_bytes else UNSURE,
        change=change,
    )
