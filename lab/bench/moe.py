"""Published steps of models with experts, and published pairs of one job, beside predictions.
Nothing is fitted to them. And what hides the exchange of experts' tokens, and how much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.measure.importers.tables import Line
from domino_tune.search.simulated import paired_plans
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.machines import machines_of, middle_of
from domino_tune.verbs.resolve import Chosen, place
from lab import told as toml
from lab.bench.common import mean_off, rows, run_of, runs, shown, time_ms
from lab.bench.published import Held
from lab.verdict import Check, at_most, check_table, equal, reported
from simulator.case import Case
from simulator.dtypes import GIB
from simulator.implementation import IMPLEMENTATIONS
from simulator.memory import peak_bytes
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload

TOLD: Final[dict[str, Any]] = toml(__file__)
SEQUENCE: Final = 4096
ROUTER: Final = ("moe_router", "moe_preprocess")
USUAL: Final = {"seq_length": str(SEQUENCE), "micro_batch_size": "1"}
"""Of a pair whose source does not tell, as in NVIDIA's recipes."""
SMS: Final = {"hybridep": {"dispatcher_sms": "32"}}
"""Of a pair's dispatcher, as in the recipes (published/mbridge_cards_moe.csv)."""


def moe() -> list[Table]:
    """Return NVIDIA's steps, SimuMax's on a B200 node, their checks, and the pairs."""
    steps = [Held.of(run) for run in runs("moe")]
    return [_each(steps), *_deepseek(), _checks(steps), *_pairs()]


def _counts(one: Held) -> bool:
    """Return whether the step is one that is asked to be right. Earlier releases are up to 1.8
    times as slow as the next with the same settings; gpt-oss takes 1.2 times as long as its ops on
    every GPU, by what mechanism nobody knows."""
    row = one.run.row
    return row["model"] != "GPT OSS 120B" and row["release"] >= "26.04"


def _each(steps: Sequence[Held]) -> Table:
    return shown("moe", [
        (
            one, row, row["cuda_graph_scope"] or row["cuda_graph_impl"],
            f"{time_ms(one.run.case, MEGATRON):,.0f}" if one.run.plan != MEGATRON else "",
            one.ms * one.plain, "yes" if _counts(one) else "",
        ) for one in steps for row in (one.run.row,)
    ])  # fmt: skip


def _checks(steps: Iterable[Held]) -> Table:
    checks: list[Check] = []
    counted = list(filter(_counts, steps))
    for overlaps, name in enumerate(("one micro-batch after the other", "two beside each other")):
        some = [one for one in counted if (one.run.plan != MEGATRON) == overlaps]
        inside = sum(one.low <= one.ratio <= one.plain for one in some)
        widest = max((one.plain - one.low) / 2 for one in some)
        off = mean_off(one.error for one in some)
        checks += [
            at_most(f"{name}, {len(some)} steps: mean error", 0.12, off),
            equal("  inside their interval", len(some), inside),
            at_most("  largest half-width of an interval", 0.25, widest),
        ]
    return check_table("Experts on H100 to GB300", checks)


def _deepseek() -> list[Table]:
    """Return SimuMax's steps of four layers on a B200 node: times, memory, a micro-batch more."""
    lines, found = [], []
    for run in runs("deepseek"):
        assert run.gib is not None
        assert run.peer_ms is not None
        ms, gib = time_ms(run.case, run.plan), peak_bytes(run.case, run.plan) / GIB
        found.append((int(run.label), run.measured_ms, ms, run.error(ms), gib / run.gib - 1))
        lines.append((run.row, ms, run.error(ms), run.error(run.peer_ms), gib))
    first, last = found[0], found[-1]
    measured, ms = ((last[at] - first[at]) / (last[0] - first[0]) for at in (1, 2))
    checks = [
        at_most("mean error", 0.08, mean_off(one[3] for one in found)),
        at_most("mean error of memory", 0.02, mean_off(one[4] for one in found)),
        reported("a further micro-batch, ms", f"{ms:.1f} for {measured:.1f}"),
    ]
    return [shown("deepseek", lines), check_table("DeepSeek-V3 on B200s", checks)]


def _pairs() -> list[Table]:
    lines, gains = [], []
    for row in rows("moe_overlap_pairs.csv"):
        seconds, told = [float(row[name]) for name in ("without", "with")], ("not played", "")
        if row["change"] in TOLD["changes"]:
            ways, given = TOLD["changes"][row["change"]], {k: c for k, c in row.items() if c}
            case = run_of("pairs", USUAL | SMS.get(row["dispatcher"], {}) | given).case
            found = [_way_ms(case, row, *way) / 1e3 for way in ways]
            gains.append((found[0] / found[1], seconds[0] / seconds[1]))
            off = (one / s - 1 for one, s in zip(found, seconds, strict=True))
            told = f"{gains[-1][0]:.3f}", "{:+.1%} and {:+.1%}".format(*off)
        job = "{model} {gpu} {precision}, {dispatcher}".format(**row)
        lines.append((job, row["change"], f"{seconds[0] / seconds[1]:.3f}", *told))
    right = sum((gain > 1) == (measured > 1) for gain, measured in gains)
    near = sum(abs(gain - measured) <= 0.10 for gain, measured in gains)
    checks = equal("right in sign", len(gains), right), reported("of these, within 0.10", str(near))
    return [shown("pairs", lines), check_table("Pairs that can be played", checks)]


def _way_ms(case: Case, row: Line, strategy: Any, wgrad: Any, scopes: Sequence[Any]) -> float:
    held = ROUTER if "TE graphs moe_router" in row["held_fixed"] else tuple(scopes)
    how = replace(
        case.workload.implementation,
        moe_permute_fusion="no permute fusion" not in row["held_fixed"],
    )
    work = replace(case.workload, cuda_graph_scope=held, implementation=how)
    return time_ms(replace(case, workload=work), replace(MEGATRON, strategy=strategy, wgrad=wgrad))


# What hides the exchange of experts' tokens: models by profiles by ranks --------------------------

LAYERS: Final = 8  # Layers of each model: a stage's, beside which embedding and head count little
MICROS: Final = 8
SIZE: Final = 2  # Sequences of a micro-batch, so that it can be cut in two


def hiding() -> list[Table]:
    """Return by how much each way speeds up a step, and the middle 80 % of drawn machines."""
    movers = TOLD["hiding"]["dispatchers"]
    jobs = product(TOLD["hiding"]["models"], movers, TOLD["hiding"]["ranks"])
    lines = [(*job, *_ways(*job)) for job in jobs if MODELS[job[0]].num_experts % job[2] == 0]
    by = ", ".join(f"{one} on {profile}" for profile, one in movers.items())
    job = {"layers": LAYERS, "micros": MICROS, "size": SIZE, "tokens": SEQUENCE}
    return [shown("hiding", lines, movers=by, **job)]


def _ways(name: str, profile: str, ranks: int) -> tuple[str, ...]:
    case = _stack(name, profile, ranks)
    alone, cells = predict(case, MEGATRON), []
    plans = {"": MEGATRON, "pairs": paired_plans(case)[0], "domino": SlicePlan(row_slices=2)}
    chosen = {way: Chosen.of(case, plan) for way, plan in plans.items()}
    machines = machines_of(case, chosen)
    for way in ("pairs", "domino"):
        low, high = middle_of(machines.times_ns("") / machines.times_ns(way))
        gain = alone.makespan_ns / predict(case, plans[way], chosen[way].order).makespan_ns
        cells.append(f"{gain:.2f} ({low:.2f}–{high:.2f})")
    shared = ""
    if case.model.shared_expert_intermediate_size:
        beside = replace(case.workload, moe_shared_expert_overlap=True)
        with_it = predict(replace(case, workload=beside), MEGATRON)
        shared = f"{alone.makespan_ns / with_it.makespan_ns:.2f}"
    return f"{alone.exposed_ns / alone.makespan_ns:.0%}", *cells, shared


def _stack(name: str, profile: str, ranks: int) -> Case:
    known, model = load_profile(profile), MODELS[name]
    model = replace(
        model, num_hidden_layers=LAYERS, num_nextn_predict_layers=0,
        first_k_dense_replace=min(1, model.first_k_dense_replace),
    )  # fmt: skip
    cluster = place(ClusterSpec(tp=1, dp=ranks, ep=ranks, ranks_per_node=1 << 30), known, None)
    work = Workload(
        seq_length=SEQUENCE, micro_batch_size=SIZE, grad_accumulation=MICROS,
        moe_dispatcher=TOLD["hiding"]["dispatchers"][profile],
        data_parallel="distributed-optimizer", implementation=IMPLEMENTATIONS["megatron-te"],
    )  # fmt: skip
    return Case(model=model, profile=known, cluster=cluster, workload=work)
