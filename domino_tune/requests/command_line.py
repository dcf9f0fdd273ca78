"""From requests back to command lines: how to get a result again."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from typing import Any

from domino_tune.requests import Request, SimulateRequest, WorkloadFields
from domino_tune.requests.options import option_of
from simulator.plan import SlicePlan


def command_line(verb: str, *parts: Request | Any) -> str:
    """Return ``python -m domino_tune verb`` with every option that is not at its default."""
    words = ["python", "-m", "domino_tune", *verb.split()]
    for part in parts:
        for item in fields(part):
            words += _words(option_of(item).flag, getattr(part, item.name), item.default)
    return shlex.join(words)


def simulate_request(
    request: WorkloadFields, plan: SlicePlan, micro_batch_size: int, grad_accumulation: int
) -> SimulateRequest:
    """Return the request that simulates ``plan`` for the workload of ``request``."""
    shared = {item.name: getattr(request, item.name) for item in fields(WorkloadFields)}
    base = SimulateRequest(**shared)
    base = replace(
        base, micro_batch_size=micro_batch_size,
        sequence_parallel=plan.sequence_parallel if (request.tp or 1) > 1 else None,
        grad_accumulation=grad_accumulation if grad_accumulation > 1 else None,
    )  # fmt: skip
    if plan.strategy != "domino":
        return replace(base, strategy=plan.strategy)
    return replace(
        base,
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


def _words(flag: str, value: Any, default: Any) -> list[str]:
    if value is None or value == default:
        return []
    if value is False:
        return [] if default is False else [f"--no-{flag.removeprefix('--')}"]
    if value is True:
        return [flag]
    values = value if isinstance(value, tuple) else (value,)
    return [word for one in values for word in ((flag, str(one)) if flag else (str(one),))]
