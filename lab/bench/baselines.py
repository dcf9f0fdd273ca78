"""When Domino pays: its best cut over Megatron-LM, on long sequences, in FP8, and under power caps.
Megatron-LM is trained with sequence parallelism, or without where that is faster. Memory is not
looked at: pipelines and replicas decide it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.requests import TuneRequest
from domino_tune.search.simulated import rival_plans, tuned_rival
from domino_tune.store.profiles import list_profiles, load_profile
from domino_tune.verbs.resolve import Chosen, baseline_no_sp, baseline_plan, resolve, unsliced
from domino_tune.verbs.verdict import verdict_of
from lab import told
from lab.bench.common import fastest, half_width, rows, runs, shown, spread, time_ms
from lab.verdict import Check, at_most, check_table, reported
from simulator.case import Case
from simulator.cost import CostModel
from simulator.dtypes import MS_PER_NS, Fp8Recipe
from simulator.greedy import order_of
from simulator.implementation import IMPLEMENTATIONS
from simulator.ops import Collective, Fused, Gemm, Pointwise, Signature
from simulator.plan import SEQUENCE_ROW_SLICES, SLICE_BALANCES, SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload

TOLD: Final[dict[str, Any]] = told(__file__)
JOBS: Final[dict[str, int]] = TOLD["jobs"]
DEGREES: Final = (2, 4, 8)
TP: Final = 8
PROFILES: Final = [found.name for found in list_profiles() if found.origin == "bundled"]
TOKENS: Final = 16_384
"""Of one micro-batch: two sequences of the longest length, which row slices need."""
Gain = tuple[float, SlicePlan, float]
"""The best Domino over the best Megatron-LM, its cut, and how sure its time is."""


def case_of(profile: str, model: str, tp: int, length: int = 0, sequences: int = 0) -> Case:
    """Return the job of one micro-batch, by default of ``TOKENS`` in sequences as in training."""
    length = length or JOBS[model]
    work = Workload(
        seq_length=length, micro_batch_size=sequences or TOKENS // length,
        implementation=IMPLEMENTATIONS["megatron-te"],
    )  # fmt: skip
    ranks, known = ClusterSpec(tp=tp), load_profile(profile)
    return Case(model=MODELS[model], workload=work, cluster=ranks, profile=known)


def long_case(profile: str, model: str, length: int) -> Case:
    """Return the job of one micro-batch of one sequence."""
    case = case_of(profile, model, TP, length, 1)
    positions = max(length, case.model.max_position_embeddings)
    layers = TOLD["long"]["layers"]
    stack = replace(case.model, num_hidden_layers=layers, max_position_embeddings=positions)
    return replace(case, model=stack)


def gain_of(case: Case) -> Gain:
    """Return what the best of the usual cuts gains, with sequence parallelism or without, and half
    of the interval of its iteration."""
    base_ns, _ = fastest(case, [baseline_plan(case), baseline_no_sp(case)])
    best_ns, plan = fastest(case, [*cuts(case, True), *cuts(case, False)])
    return base_ns / best_ns, plan, half_width(case, plan)


def cuts(case: Case, mode: bool) -> list[SlicePlan]:
    """Return the cuts that are worth trying: few slices, in greedy and in DeepSpeed's order."""
    rows = [r for r in (2, 3, 4) if r <= case.workload.micro_batch_size]
    merges = (False, True) if case.workload.merges_wgrads else (False,)
    greedy = [
        SlicePlan(
            row_slices=r, attn_col_slices=columns, mlp_col_slices=columns, attn_dgrad_slices=1,
            mlp_dgrad_slices=1, merge_wgrad=merge, comm_ctas=cta, sequence_parallel=mode,
        ) for r, columns, merge, cta in product(rows, (1, 2), merges, case.comm_ctas_choices)
    ]  # fmt: skip
    inter = SlicePlan(order="inter", wgrad="deferred", sequence_parallel=mode)
    columns = [
        SlicePlan(row_slices=1, attn_col_slices=c, mlp_col_slices=c, sequence_parallel=mode)
        for c in (2, 4)
    ]
    return [*greedy, inter, *columns]


def baselines() -> list[Table]:
    """Return a summary a profile and TP degree, then a row a job."""
    gains = {job: gain_of(case_of(*job)) for job in product(PROFILES, JOBS, DEGREES)}
    groups = {
        (profile, tp): spread((gains[profile, model, tp][0] for model in JOBS), ".2f")
        for profile, tp in product(PROFILES, DEGREES)
    }
    lines = [(*job, *one) for job, one in gains.items()]
    every = [(*group, " … ".join(found)) for group, found in groups.items()]
    return [shown("domino", every), shown("jobs", lines, tokens=TOKENS)]


def sequence_slices() -> list[Table]:
    """Return what slices of one long sequence gain, least, median and most of all jobs."""
    long = TOLD["long"]
    jobs = list(product(long["models"], long["tokens"]))
    gains = {name: [sliced(long_case(name, *job))[0] for job in jobs] for name in PROFILES}
    lines = [(name, *(f"{one}x" for one in spread(gains[name], ".3f"))) for name in gains]
    return [shown("sequences", lines, tp=TP, jobs=len(jobs), layers=long["layers"])]


def sliced(case: Case) -> tuple[float, SlicePlan]:
    """Return what slices of the sequence gain, over the profile's CTA counts, and the best cut."""
    ways = product(SEQUENCE_ROW_SLICES, SLICE_BALANCES, (False, True), case.comm_ctas_choices)
    plans = [
        SlicePlan(
            row_slices=rows, merge_wgrad=merge, sequence_parallel=True, slice_dim="sequence",
            slice_balance=balance, comm_ctas=ctas,
        ) for rows, balance, merge, ctas in ways
    ]  # fmt: skip
    best_ns, plan = fastest(case, plans)
    return predict(case, baseline_plan(case)).makespan_ns / best_ns, plan


def formats() -> list[Table]:
    """Return what Domino and the best rival gain for eight models on H100s, in BF16 and in FP8."""
    recipes: tuple[Fp8Recipe, ...] = ("none", "tensorwise")
    lines = [
        (model, tp, *(cell for recipe in recipes for cell in _format(model, tp, recipe)))
        for model, tp in product(JOBS, (4, 8))
    ]
    return [shown("formats", lines, tokens=TOKENS)]


def _format(model: str, tp: int, recipe: Fp8Recipe) -> tuple[str, str]:
    plain = case_of("h100-dgx", model, tp)
    case = replace(plain, workload=replace(plain.workload, fp8_recipe=recipe))
    (gain, _, half), base = gain_of(case), predict(case, baseline_plan(case)).makespan_ns
    plans = rival_plans(case).items()
    rivals = {name: base / predict(case, plan).makespan_ns for name, plan in plans}
    best = max(rivals, key=rivals.__getitem__)
    return f"{gain:.2f} ±{half:.0%}", f"{rivals[best]:.2f} {best}"


def power() -> list[Table]:
    """Return what the power cap takes: as much energy in less time lowers the clock."""
    taken = [_capped(*job) for job in product(PROFILES, JOBS)]
    lines = [_caps(*job) for job in product(PROFILES, TOLD["caps"]["models"])]
    caps = "|>".join(f"{share:.0%}" for share in TOLD["caps"]["shares"])
    return [shown("power", taken, tp=TP), shown("caps", lines, caps=caps)]


def _gains(case: Case, others: Iterable[Case]) -> list[float]:
    """Return what the best cut of ``case`` gains in other cases."""
    plans = baseline_plan(case), fastest(case, cuts(case, True))[1]
    return [time_ms(one, plans[0]) / time_ms(one, plans[1]) for one in others]


def _capped(profile: str, model: str) -> tuple[str, ...]:
    case = case_of(profile, model, TP)
    free, gain = _gains(case, (replace(case, profile=replace(case.profile, power=None)), case))
    taken = f"{(free - gain) / (free - 1):.0%}" if free > 1 else "–"
    return profile, model, f"{free:.3f}x", f"{gain:.3f}x", taken


def _caps(profile: str, model: str) -> tuple[str, ...]:
    case = case_of(profile, model, TP)
    shares, own_w = TOLD["caps"]["shares"], case.profile.section("power").cap_w
    caps = (float(round(share * own_w)) for share in shares)
    held = (replace(case, cluster=replace(case.cluster, power_cap_w=cap)) for cap in caps)
    return profile, model, *(f"{gain:.3f}x" for gain in _gains(case, held))


# Rivals beside what was published of them, nothing fitted; the verdict for usual models -----------

RANKS: Final = 8
GATHER_N, HIDDEN, SCATTER_K = 7168, 8192, 3584
"""Flux's GEMMs: [m, 8192] · [8192, 7168] after a gather; [m, 3584] · [3584, 8192], scattered."""
DOMINO: Final = SlicePlan(row_slices=2, merge_wgrad=True, sequence_parallel=True)


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
        1e3 * case.tokens / case.cluster.world_size / _plan_ms(case, unsliced(name, (), True))
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
    return shown("async-tp", checks)


def _userbuffers() -> Table:
    checks: list[Check] = []
    for run in runs("nemo"):
        mine = _plan_ms(run.case, unsliced("userbuffers", (), True))
        what = f"{run.label}: {run.measured_ms:,.0f} ms, predicted {mine:,.0f}"
        tuned = _plan_ms(run.case, tuned_rival(run.case, "userbuffers"))
        checks += [
            at_most(what, 0.08, abs(mine / run.measured_ms - 1), digits=1),
            reported("  without userbuffers", f"{_plan_ms(run.case, run.plan):,.0f} ms"),
            reported("  each GEMM's method tuned", f"{tuned:,.0f} ms"),
        ]
    return check_table("TransformerEngine's userbuffers on H100s, usual methods: error", checks)


def _plan_ms(case: Case, plan: SlicePlan) -> float:
    return predict(case, plan, order_of(case, plan)).makespan_ns * MS_PER_NS


def _verdicts() -> list[Table]:
    lines, checks, asked = [], [], TOLD["verdicts"]
    for profile, (model, batch, length, pp) in product(asked["profiles"], asked["jobs"]):
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
        lines.append((profile, job, *(cells.get(name, "") for name in asked["contestants"])))
        if (profile, model) == ("h100-dgx", "gpt3-13b"):
            checks.append(at_most("verdict of GPT-3 13B, one core", 0.5, seconds, "s of CPU"))
    return [shown("verdicts", lines), check_table("The verdict's time", checks)]
