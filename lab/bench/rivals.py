"""Rivals beside what was published of them, nothing fitted; and the verdict for usual models."""

from __future__ import annotations

import time
from itertools import product
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.requests import TuneRequest
from domino_tune.search.rivals import tuned_rival
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import Chosen, resolve, unsliced
from domino_tune.verbs.verdict import verdict_of
from lab.bench.common import rows, runs
from lab.verdict import Check, at_most, check_table, reported, table
from simulator.case import Case
from simulator.cost import CostModel
from simulator.ops import Collective, Fused, Gemm, Pointwise, Signature
from simulator.ordering import order_of
from simulator.plan import SlicePlan
from simulator.predict import predict
from simulator.units import MS_PER_NS

RANKS: Final = 8
GATHER_N, HIDDEN, SCATTER_K = 7168, 8192, 3584
"""Flux's GEMMs: [m, 8192] · [8192, 7168] behind a gather; [m, 3584] · [3584, 8192] before a
scatter."""
DOMINO: Final = SlicePlan(row_slices=2, merge_wgrad=True, sequence_parallel=True)
JOBS: Final = (
    ("gpt3-13b", 4, 2048, 1), ("llama3-8b", 2, 8192, 1), ("llama3-70b", 2, 8192, 4),
)  # fmt: skip
"""Models at TP 8 as people train them: micro-batch size, sequence length, PP."""
PROFILES: Final = ("h100-dgx", "h200-sxm", "a100-sxm", "b200-sxm")
CONTESTANTS: Final = ("megatron", "domino", "userbuffers", "async-tp", "fused")


def rivals() -> list[Table]:
    """Return each published comparison, and the verdicts."""
    return [_flux(), _async_tp(), _userbuffers(), *_verdicts()]


def _flux() -> Table:
    cost, checks = CostModel(load_profile("h100-dgx")), []
    for row in rows("flux_h100.csv"):
        m = int(row["m"])
        size = m * HIDDEN * 2
        first = Gemm(m, GATHER_N, HIDDEN, "forward", "fp16")
        last = Gemm(m, HIDDEN, SCATTER_K, "forward", "fp16")
        gather = Collective("all_gather", size, 1, RANKS, 0, "fp16")
        scatter = gather._replace(op="reduce_scatter")
        cells: dict[str, tuple[Signature, ...]] = {
            "ag_gemm_torch": (first, gather), "ag_gemm_flux": (Fused(first, gather),),
            "gemm_rs_torch": (last, scatter),
            "gemm_rs_flux": (Fused(last, scatter), Pointwise("add", size, size // RANKS, "fp16")),
        }  # fmt: skip
        for name, signatures in cells.items():
            ms = sum(cost.duration_ns(one) for one in signatures) * MS_PER_NS
            measured = float(row[name])
            what = f"{name}, m = {m}: {measured:.3f} ms, predicted {ms:.3f}"
            checks.append(at_most(what, 0.12, abs(ms / measured - 1), digits=1))
    return check_table("Flux on 8 H100s: one GEMM and its collective, error", checks)


def _async_tp() -> Table:
    (row,), case = rows("asynctp_h100.csv"), runs("torchtitan")[0].case
    measured = [float(row[name]) for name in ("tp_tokens_s", "async_tp_tokens_s")]
    found = [
        1e3 * case.tokens / case.cluster.world_size / _ms(case, unsliced(name, (), True))
        for name in ("megatron", "async-tp")
    ]
    wanted, gain = measured[1] / measured[0], found[1] / found[0]
    what = f"gain {wanted:.3f} measured, predicted {gain:.3f}, off by"
    speeds = [" and ".join(f"{one:,.0f}" for one in some) for some in (measured, found)]
    checks = [
        at_most(what, 0.04, abs(gain - wanted), ""),
        reported(f"  measured {speeds[0]}", f"{speeds[1]} tokens/s a GPU"),
        reported("  iteration without AsyncTP", f"{measured[0] / found[0] - 1:+.1%}"),
    ]
    return check_table(
        "AsyncTP: Llama-3.1-8B on 64 H100s of 500 W and HBM2e, FSDP 8 × TP 8, 12 × 8,192", checks,
        "As PyTorch and torchtitan have it (--recompute per-op), nothing tuned.",
    )  # fmt: skip


def _userbuffers() -> Table:
    checks: list[Check] = []
    for run in runs("nemo"):
        mine = _ms(run.case, unsliced("userbuffers", (), True))
        what = f"{run.label}: {run.measured_ms:,.0f} ms, predicted {mine:,.0f}"
        tuned = _ms(run.case, tuned_rival(run.case, "userbuffers"))
        checks += [
            at_most(what, 0.08, abs(mine / run.measured_ms - 1), digits=1),
            reported("  without userbuffers", f"{_ms(run.case, run.plan):,.0f} ms"),
            reported("  each GEMM's method tuned", f"{tuned:,.0f} ms"),
        ]
    return check_table("TransformerEngine's userbuffers on H100s, usual methods: error", checks)


def _ms(case: Case, plan: SlicePlan) -> float:
    return predict(case, plan, order_of(case, plan)).makespan_ns * MS_PER_NS


def _verdicts() -> list[Table]:
    lines, checks = [], []
    for profile, (model, batch, length, pp) in product(PROFILES, JOBS):
        request = TuneRequest(
            model=model, profile=profile, tp=8, pp=pp, micro_batch_size=batch, seq_length=length,
            grad_accumulation=4 * pp,
        )  # fmt: skip
        case = resolve(request)
        chosen = Chosen.of(case, DOMINO)
        predict(case, DOMINO, chosen.order)
        began = time.process_time()
        contestants = verdict_of(case, chosen).contestants
        seconds = time.process_time() - began
        cells = {one.strategy: f"{one.speedup:.3f}x ({one.chance:.0%})" for one in contestants}
        job = f"{model}, {batch} × {length}, pp {pp}"
        lines.append((profile, job, *(cells.get(name, "") for name in CONTESTANTS)))
        if (profile, model) == ("h100-dgx", "gpt3-13b"):
            checks.append(at_most("verdict of GPT-3 13B, one core", 0.5, seconds, "s of CPU"))
    found = table(
        "Speed-up over Megatron with sequence parallelism at TP 8, and chance to be fastest",
        "profile|job|>Megatron|>Domino|>userbuffers|>async-TP|>fused", lines,
        "Domino: two row slices, merged weight gradients, greedy order. Rivals: each GEMM's "
        "method chosen by simulation. Chances count only what fits the memory.",
    )  # fmt: skip
    return [found, check_table("The verdict's time", checks)]
