"""Published communication shares of GPT-3 13B beside predictions from the bundled H100 profile.

Nothing is fitted to the published shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from domino_tune.base.tables import Table
from lab.bench.cases import make_case, with_heads
from lab.verdict import verdict
from simulator.case import Case
from simulator.cost import Changes
from simulator.plan import MEGATRON
from simulator.predict import predict, simulate
from simulator.presets import MODELS
from simulator.units import MS_PER_NS

MODEL: Final = with_heads(MODELS["gpt3-13b"], 64)
SEQ_LENGTH: Final = 1024
BATCH: Final = 16
PUBLISHED_SHARES: Final = {8: 0.16, 16: 0.29, 32: 0.43}
POINTS: Final = 0.05
# Uncertainty of the tables (profiles/README.md): training clocks and software are 10–15 % slower
# than the GEMM bursts; all-reduces of 32 ranks differ by 10–20 % between sites.
SUSTAINED: Final = 1.15
SITES: Final = 1.2


def shares() -> list[Table]:
    """Return the exposed share for each TP degree, and what can explain its error."""
    return [_shares(), _explained(), _scenarios()]


def _case(tp: int, changes: Changes | None = None) -> Case:
    return make_case(MODEL, tp, SEQ_LENGTH, BATCH, changes or Changes())


def _share(case: Case) -> float:
    found = predict(case, MEGATRON)
    return found.exposed_ns / found.makespan_ns


def _shares() -> Table:
    rows = []
    for tp, target in PUBLISHED_SHARES.items():
        share = _share(_case(tp))
        gap = share - target
        rows.append((
            str(tp), f"{100 * target:.0f}%", f"{100 * share:.1f}%", f"{100 * gap:+.1f} points",
            verdict(abs(gap) <= POINTS),
        ))  # fmt: skip
    return Table(
        title="Megatron, GPT-3 13B, seq 1024, micro-batch 16: exposed share of an iteration",
        columns=("tp", ">published", ">simulated", ">gap", "within 5 points"),
        rows=rows,
    )


def _explained() -> Table:
    """Return the parts of an iteration, and the one change that gives the published share."""
    rows = []
    for tp, target in PUBLISHED_SHARES.items():
        case = _case(tp)
        parts = simulate(case, MEGATRON).breakdown
        size = case.workload.tokens * MODEL.hidden_size * case.workload.dtype_bytes
        reduce_ns = case.cost.duration_ns(case.shapes(MEGATRON).tp_all_reduce(size))
        link = _factor_for(lambda x, tp=tp: _share(_case(tp, _links(x))), target)  # type: ignore[misc]
        gpu = _factor_for(lambda x, tp=tp: _share(_case(tp, _gpus(x))), target)  # type: ignore[misc]
        rows.append((
            str(tp), f"{parts.makespan_ns * MS_PER_NS:.1f}", f"{parts.comm_ns * MS_PER_NS:.1f}",
            f"{parts.exposed_comm_ns * MS_PER_NS:.1f}",
            f"{(parts.makespan_ns - parts.exposed_comm_ns) * MS_PER_NS:.1f}",
            f"{reduce_ns / 1e3:.0f} us", f"{_busbw_gb_s(size, tp, reduce_ns):.0f}",
            f"{_busbw_gb_s(size, tp, reduce_ns / link):.0f} (×{link:.2f})", f"×{1 / gpu:.2f}",
        ))  # fmt: skip
    return Table(
        title="Causes of these shares (ms, simulated)",
        columns=("tp", ">iteration", ">comm", ">exposed", ">rest", ">an all-reduce", ">busbw GB/s",
                 ">busbw for published share", ">or compute slower by"),
        rows=rows,
        notes=[
            f"An all-reduce moves {BATCH * SEQ_LENGTH * MODEL.hidden_size * 2 / 2**20:.0f} MiB, "
            f"{4 * MODEL.num_hidden_layers} times an iteration. Each of the last two columns "
            "changes one thing alone until the share is the published one.",
        ],
    )  # fmt: skip


def _links(factor: float) -> Changes:
    return Changes(link_bandwidth=factor, link_latency=1 / factor)


def _gpus(factor: float) -> Changes:
    return Changes(gpu_flops=factor, memory_bandwidth=factor)


def _factor_for(share_at: Callable[[float], float], target: float) -> float:
    """Return the factor, 0.25 to 4, at which a monotone share equals ``target``."""
    low, high = 0.25, 4.0
    rising = share_at(high) > share_at(low)
    for _ in range(14):
        middle = math.sqrt(low * high)
        if (share_at(middle) < target) == rising:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def _busbw_gb_s(size_bytes: int, ranks: int, duration_ns: float) -> float:
    return size_bytes * 2 * (ranks - 1) / ranks / duration_ns


def _scenarios() -> Table:
    """Return the shares with each known uncertainty of the tables, alone and together."""
    slow = _gpus(1 / SUSTAINED)
    near = {8: Changes(), 16: Changes(), 32: Changes(link_bandwidth=SITES)}
    both = {tp: replace(slow, link_bandwidth=near[tp].link_bandwidth) for tp in near}
    rows = []
    for what, changes in (
        ("as bundled", dict.fromkeys(near, Changes())),
        (f"compute ×{SUSTAINED:g} slower (training, not bursts)", dict.fromkeys(near, slow)),
        (f"32 ranks ×{SITES:g} faster (another site's network)", near),
        ("both", both),
        ("no contention", dict.fromkeys(near, Changes(contention=0.0))),
    ):
        shares = {tp: _share(_case(tp, changes[tp])) for tp in PUBLISHED_SHARES}
        rows.append((what, *(f"{100 * shares[tp]:.1f}%" for tp in shares)))
    rows.append(("published", *(f"{100 * share:.0f}%" for share in PUBLISHED_SHARES.values())))
    return Table(
        title="Exposed share under the tables' known uncertainty (not fitted)",
        columns=("", *(f">tp {tp}" for tp in PUBLISHED_SHARES)),
        rows=rows,
        notes=[
            "GEMM times are bursts at boost clock. The 32-rank all-reduce was timed on virtual "
            "machines, where sites differ by 10–20%. Both factors are upper ends, chosen after the "
            "miss was seen: they may explain it, they do not prove it. Each makes the share of "
            "communication too large where compute is small."
        ],
    )
