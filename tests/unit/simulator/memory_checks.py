"""Peak memory, computed again from named ops: every value on its own, no phases, no arrays."""

from __future__ import annotations

import random

from simulator.build import build_schedule
from simulator.case import Case
from simulator.greedy import order_of
from simulator.memory import live_peaks, peak_bytes, static_memory
from simulator.schedule import Schedule
from tests.unit.simulator.cases import KINDS, cost_model, random_case, random_plan


def random_case_and_kind(seed: int) -> tuple[Case, str]:
    """A case of up to 13 layers, and a kind of plan."""
    rng = random.Random(seed)
    case = random_case(rng, layers=13, micros=2, cost=cost_model(1.0, False))
    return case, rng.choice(KINDS)


def check_peak_is_brute_force(seed: int) -> None:
    """A plan's peak equals that of the walk over the names of all micro-batches and of the step."""
    case, kind = random_case_and_kind(seed)
    plan = random_plan(random.Random(seed), case, kind)
    order = order_of(case, plan)
    schedule = build_schedule(case.model, case.workload, case.cluster, plan, order)
    live = peak_bytes(case, plan, order) - sum(static_memory(case, plan))
    assert live == max(live_peaks(schedule)).whole
    assert live == named_peak_bytes(schedule)


def named_peak_bytes(schedule: Schedule) -> int:
    """Largest sum of the buffers that are written and still to be read, op by op, in all
    micro-batches and the step."""
    ops = list(schedule.ops())
    buffer: dict[str, str] = {}
    size: dict[str, int] = {}
    for op, template in zip(ops, schedule.templates(), strict=True):
        for value, own in zip(op.writes, template.sizes, strict=True):
            source = _overwritten(value, op.role, op.reads)
            buffer[value] = buffer[source] if not own and source else value
            size[value] = own
    uses: dict[str, list[int]] = {}
    for index, op in enumerate(ops):
        for value in (*op.reads, *op.writes):
            if value in buffer:
                uses.setdefault(buffer[value], []).append(index)
    change = [0] * (len(ops) + 1)
    for name, indices in uses.items():
        change[min(indices)] += size[name]
        change[max(indices) + 1] -= size[name]
    live, peak = 0, 0
    for step in change:
        live += step
        peak = max(peak, live)
    return peak


def _overwritten(value: str, role: str, reads: tuple[str, ...]) -> str | None:
    """What an op without memory of its own writes into: collectives, rope, backward of the norms of
    queries and keys, sums of their gradients, and gradients of logits work in place, mostly on the
    first value they read; gradients of weights are counted elsewhere, and later sums of the
    gradients of keys and values are in the first one, which all of them read."""
    role = role.removesuffix(".again").removeprefix("mtp1.")
    if role == "loss.grad":  # of the logits, not of their copy in fp32
        return value.replace(".d.", ".")
    in_place = role.endswith(".ar") or role in (
        "attn.rope", "attn.rope_bwd", "attn.qk_norm_bwd", "attn.kv_bwd", "loss.grad",
        "head.softcap_bwd",
    )  # fmt: skip
    is_gradient = ".grad." in value or value.endswith(("step.dp", "step.tp", "step.kv", ".kv_grad"))
    return reads[0] if in_place and not is_gradient else None
