"""The plan files of an answer: of the plan that its verdict recommends, and of each plan
compared.
"""

from __future__ import annotations

from domino_tune.results.simulate import Simulated, SimulateResult
from domino_tune.store.plans import PlanFile, Predicted
from simulator.dtypes import GIB
from simulator.errors import InputError
from simulator.greedy import order_of
from simulator.memory import peak_bytes


def recommended(best: Simulated, target: str | None = None) -> str:
    """Return the strategy that the verdict recommends; that of the chosen plan without a verdict,
    or if only plans for ``target`` were asked for.
    """
    leader = best.verdict.leader if best.verdict and not target else None
    return leader.strategy if leader else best.plan.strategy


def strategies_of(best: Simulated) -> tuple[str, ...]:
    """Return the strategies whose plans an answer has, the chosen plan's first."""
    compared = (one.strategy for one in best.verdict.contestants) if best.verdict else ()
    return tuple(dict.fromkeys((best.plan.strategy, *compared)))


def check_has(best: Simulated, strategy: str) -> None:
    """Raise InputError if the answer has no plan of ``strategy``."""
    if strategy not in strategies_of(best):
        raise InputError(
            f"No plan of strategy {strategy!r} is compared here, so --out-of cannot write one; "
            f"there are those of {', '.join(strategies_of(best))}."
        )


def plan_file_of(result: SimulateResult, strategy: str) -> PlanFile:
    """Return the plan file of a strategy. Raise InputError if it was not compared."""
    check_has(result, strategy)
    if strategy == result.plan.strategy:
        return result.plan_file
    assert result.verdict is not None
    one = next(one for one in result.verdict.contestants if one.strategy == strategy)
    order = order_of(result.case, one.plan)
    return PlanFile(
        model=result.model,
        workload=result.workload,
        cluster=result.cluster,
        profile=result.profile,
        plan=one.plan,
        order=order,
        predicted=Predicted(
            iteration_ms=one.iteration_ms,
            baseline_ms=result.baseline_ms,
            no_comm_ms=result.no_comm_ms,
            peak_memory_gib=peak_bytes(result.case, one.plan, order) / GIB,
        ),
    )
