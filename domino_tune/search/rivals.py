"""The rivals' plans, chosen by simulation: what each GEMM's collective is hidden by, and whether
weight gradients of experts wait where two micro-batches run beside each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.case import Case
from simulator.errors import InfeasiblePlanError
from simulator.overlap import CHOICES, EP_OVERLAP, GEMMS, RIVALS, gemms_of
from simulator.plan import MEGATRON, SlicePlan, check_pairs
from simulator.predict import predict

SHORT_LAYERS: Final = 4
"""Layers of the stack on which methods are compared; all layers are alike."""


def has_rivals(case: Case) -> bool:
    """Return whether the strategies of ``RIVALS`` can run: on GPUs of one NVLink domain, with
    sharded tokens. The baseline's own gathers must be timed, since theirs follow from them."""
    inside = case.cluster.tp > 1 and case.cluster.tp_group[0] == 1
    return inside and True in case.modes and case.profile.machine.backend == "nccl"


def usual_rivals(case: Case) -> tuple[SlicePlan, ...]:
    """Return each rival's plan with the methods that its framework has by default, as
    far as they divide the tokens; of those that hide a GEMM's collective none where ``has_rivals``
    is false."""
    pairs = _pairs(case)[:1]
    if not has_rivals(case):
        return pairs
    tokens = case.workload.tokens // case.cluster.cp
    usual = (
        _usual(strategy)
        for strategy, methods in RIVALS.items()
        if all(tokens % (max(1, how.num_splits) * case.cluster.tp) == 0 for how in methods.values())
    )
    return (*usual, *pairs)


def _usual(strategy: str) -> SlicePlan:
    return replace(MEGATRON, strategy=strategy, sequence_parallel=True)  # type: ignore[arg-type]


def rival_plans(case: Case) -> dict[str, SlicePlan]:
    """Return each rival's best plan by name of its strategy: of those that hide the collectives of
    GEMMs, none where ``has_rivals`` is false."""
    found = dict(zip([EP_OVERLAP], paired_plans(case), strict=False))
    for strategy in RIVALS if has_rivals(case) else ():
        try:
            found[strategy] = tuned_rival(case, strategy)
        except InfeasiblePlanError:  # tokens that no chunks divide
            continue
    return found


def paired_plans(case: Case) -> list[SlicePlan]:
    """Return the plans of two micro-batches beside each other, the fastest first; none where they
    cannot run."""
    return sorted(_pairs(case), key=lambda one: predict(case, one).makespan_ns)


def _pairs(case: Case) -> tuple[SlicePlan, ...]:
    """Return the same, the usual one first."""
    if case.profile.machine.backend != "nccl":
        return ()
    try:
        check_pairs(case.model, case.workload, case.cluster)
    except InfeasiblePlanError:
        return ()
    usual = replace(MEGATRON, strategy=EP_OVERLAP, sequence_parallel=case.modes[0])
    return usual, replace(usual, wgrad="deferred")


def tuned_rival(case: Case, strategy: str) -> SlicePlan:
    """Return the plan of a strategy whose GEMMs each have the fastest method, one after the other,
    until no other one helps: where the host sets the pace, they depend on each other.

    Raise InfeasiblePlanError where the strategy cannot run the workload.
    """
    plan = _usual(strategy)
    short = _short(case)
    best_ns = predict(short, plan).makespan_ns
    told: dict[str, str] = {}
    tried, before_ns = {_texts(told)}, best_ns + 1
    while best_ns < before_ns:
        before_ns = best_ns
        for gemm in GEMMS:
            for how in (one for kind, one in CHOICES[strategy] if gemm in gemms_of(kind)):
                other = {**told, gemm: how.text}
                if how == RIVALS[strategy][gemm]:
                    del other[gemm]
                if _texts(other) in tried:
                    continue
                tried.add(_texts(other))
                try:
                    other_ns = predict(
                        short, replace(plan, tp_comm_overlap=_texts(other))
                    ).makespan_ns
                except InfeasiblePlanError:
                    continue
                if other_ns < best_ns:
                    best_ns, told = other_ns, other
    tuned = replace(plan, tp_comm_overlap=_texts(told))
    # What helps a short stack need not help the whole one: its clock is another.
    return min((plan, tuned), key=lambda one: predict(case, one).makespan_ns)


def _texts(told: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{gemm}={told[gemm]}" for gemm in GEMMS if gemm in told)


def _short(case: Case) -> Case:
    """Return one micro-batch of a few layers of the case, on one replica; experts need all."""
    model, cluster = case.model, case.cluster
    layers = min(SHORT_LAYERS, model.num_hidden_layers)
    dense = min(model.first_k_dense_replace, layers // 2)
    again = min(layers, case.workload.recompute_layers)
    return replace(
        case,
        model=replace(model, num_hidden_layers=layers, first_k_dense_replace=dense),
        workload=replace(
            case.workload, grad_accumulation=1, pp_layers=(), recompute_layers=again,
            overlap_p2p=False, pp_schedule="1f1b", data_parallel="replicas",
            overlap_param_gather=False,
        ),
        cluster=replace(cluster, pp=1, vpp=1, dp=cluster.dp if model.num_experts else 1),
    )  # fmt: skip
