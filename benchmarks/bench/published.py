"""Published communication shares of GPT-3 13B beside the bundled H100 profile; none is fitted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from benchmarks.bench.cases import make_case, with_heads
from benchmarks.bench.verdict import verdict
from domino_tune.base.tables import Table
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
# What facts/README.md says of the tables: training clocks and software 10–15 % slower than the
# GEMM bursts; sites 10–20 % apart at 32 ranks.
SUSTAINED: Final = 1.15
SITES: Final = 1.2


def published() -> list[Table]:
    """Exposed share by TP, and why it is what it is."""
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
        off = share - target
        rows.append((
            str(tp), f"{100 * target:.0f}%", f"{100 * share:.1f}%", f"{100 * off:+.1f} points",
            verdict(abs(off) <= POINTS),
        ))  # fmt: skip
    return Table(
        title="Megatron, GPT-3 13B, seq 1024, micro-batch 16: exposed share of an iteration",
        columns=("tp", ">published", ">simulated", ">off", "within 5 points"),
        rows=rows,
    )


def _explained() -> Table:
    """Where the time goes, and what alone would have to differ to give the published share."""
    rows = []
    for tp, target in PUBLISHED_SHARES.items():
        case = _case(tp)
        broken = simulate(case, MEGATRON).breakdown
        size = case.workload.tokens * MODEL.hidden_size * case.workload.dtype_bytes
        reduce_ns = case.cost.duration_ns(case.shapes(MEGATRON).tp_all_reduce(size))
        link = _needed(lambda x, tp=tp: _share(_case(tp, _links(x))), target)  # type: ignore[misc]
        chip = _needed(lambda x, tp=tp: _share(_case(tp, _chips(x))), target)  # type: ignore[misc]
        rows.append((
            str(tp), f"{broken.makespan_ns * MS_PER_NS:.1f}", f"{broken.comm_ns * MS_PER_NS:.1f}",
            f"{broken.exposed_comm_ns * MS_PER_NS:.1f}",
            f"{(broken.makespan_ns - broken.exposed_comm_ns) * MS_PER_NS:.1f}",
            f"{reduce_ns / 1e3:.0f} us", f"{_busbw_gb_s(size, tp, reduce_ns):.0f}",
            f"{_busbw_gb_s(size, tp, reduce_ns / link):.0f} (×{link:.2f})", f"×{1 / chip:.2f}",
        ))  # fmt: skip
    return Table(
        title="What gives these shares (ms, simulated)",
        columns=("tp", ">iteration", ">comm", ">exposed", ">rest", ">an all-reduce", ">busbw GB/s",
                 ">busbw for published share", ">or compute slower by"),
        rows=rows,
        notes=[
            f"An all-reduce moves {BATCH * SEQ_LENGTH * MODEL.hidden_size * 2 / 2**20:.0f} MiB, "
            f"{4 * MODEL.num_hidden_layers} times an iteration. The two last columns change one "
            "thing alone until the share is the published one.",
        ],
    )  # fmt: skip


def _links(factor: float) -> Changes:
    return Changes(link_bandwidth=factor, link_latency=1 / factor)


def _chips(factor: float) -> Changes:
    return Changes(gpu_flops=factor, memory_bandwidth=factor)


def _needed(share_at: Callable[[float], float], target: float) -> float:
    """The factor, ¼ to 4, at which a share that is monotone in it meets ``target``."""
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
    """The shares under what is known to be uncertain in the tables, one at a time and together."""
    slow = _chips(1 / SUSTAINED)
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
            "GEMM times are bursts at boost clock; the 32-rank all-reduce was timed on virtual "
            "machines, and sites differ by 10–20% there. Upper ends, taken "
            "after the miss was seen: what could explain it, no proof. Either makes the share of "
            "communication too large where compute is small."
        ],
    )
