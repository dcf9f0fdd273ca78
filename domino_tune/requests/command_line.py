"""From requests back to command lines: how to get a result again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from domino_tune.requests import SimulateRequest, verb_of
from domino_tune.requests.fields import WorkloadFields
from domino_tune.requests.options import Request, option_of
from simulator.overlap import EP_OVERLAP
from simulator.plan import SlicePlan


def command_line(request: Request, *parts: Request) -> str:
    """Return ``python -m domino_tune VERB`` with every option that is not at its default."""
    words = ["python", "-m", "domino_tune", verb_of(request)]
    for part in (request, *parts):
        for name, value in part.given().items():
            words += _words(part, name, value)
    return shlex.join(words)


def simulate_request(
    request: WorkloadFields, plan: SlicePlan, micro_batch_size: int, grad_accumulation: int
) -> SimulateRequest:
    """Return the request that simulates ``plan`` for the workload of ``request``."""
    shared = {name: getattr(request, name) for name in WorkloadFields.model_fields}
    base = SimulateRequest(**shared).but(
        micro_batch_size=micro_batch_size,
        sequence_parallel=plan.sequence_parallel if (request.tp or 1) > 1 else None,
        grad_accumulation=grad_accumulation if grad_accumulation > 1 else None,
    )
    if plan.strategy != "domino":
        waits = plan.strategy == EP_OVERLAP and plan.wgrad == "deferred"
        return base.but(strategy=plan.strategy, wgrad="deferred" if waits else None)
    return base.but(
        row_slices=plan.row_slices,
        slice_dim=plan.slice_dim if plan.slice_dim != "batch" else None,
        slice_balance=plan.slice_balance if plan.slice_balance != "balanced" else None,
        attn_col_slices=_unless(plan.attn_col_slices, 1),
        mlp_col_slices=_unless(plan.mlp_col_slices, 1),
        attn_dgrad_slices=_unless(plan.attn_dgrad_slices, plan.attn_col_slices),
        mlp_dgrad_slices=_unless(plan.mlp_dgrad_slices, plan.mlp_col_slices),
        order=plan.order,
        wgrad=plan.wgrad,
        merge_wgrad=plan.merge_wgrad,
        comm_ctas=_unless(plan.comm_ctas, 0),
    )


def _unless(value: int, default: int) -> int | None:
    return None if value == default else value


def _words(part: Request, name: str, value: Any) -> Iterator[str]:
    told = option_of(type(part), name)
    flag = told.flag_of(name)
    several = value if isinstance(value, tuple) else (value,)
    if name == "gpus":
        several = (",".join(map(str, several)),)
    for one in several:
        if told.argument:
            yield str(one)
        elif told.rare:
            text = str(one).lower() if isinstance(one, bool) else str(one)
            keyed = isinstance(value, tuple) and name != "tp_comm_overlap"
            yield from ("--set", text if keyed else f"{name}={text}")
        elif isinstance(one, bool):
            yield flag if one else f"--no-{flag.removeprefix('--')}"
        else:
            yield from (flag, str(one))
