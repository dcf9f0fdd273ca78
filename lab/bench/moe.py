"""Published steps of models with experts, and published pairs of one job, beside predictions.
Nothing is fitted to them. And what hides the exchange of experts' tokens, and how much."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.measure.importers.tables import Line
from domino_tune.search.rivals import paired_plans
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import Chosen, place
from domino_tune.verbs.simulate import shortened
from domino_tune.verbs.verdict import drawn_times_ns, middle_of
from lab import told as toml
from lab.bench.common import interval, recorded, rows, shown, time_ms
from lab.verdict import Check, at_most, check_table, equal, reported
from simulator.case import Case
from simulator.graphs import GRAPH_SCOPES
from simulator.implementation import IMPLEMENTATIONS
from simulator.overlap import EP_OVERLAP
from simulator.peak import peak_bytes
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.sharding import spread_layers
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.units import GIB

TOLD: Final[dict[str, Any]] = toml(__file__)
PRESETS: Final[dict[str, str]] = TOLD["presets"]
SEQUENCE: Final = 4096
"""Tokens of a sequence, as in NVIDIA's recipes, where a pair's source does not tell."""
ROUTER: Final = ("moe_router", "moe_preprocess")


@dataclass(frozen=True)
class Step:
    """A published step; ``low``, ``high``: its interval over ``ms``; ``alone_ms``: not
    overlapped."""

    row: Line
    alone_ms: float
    measured_ms: float
    ms: float
    low: float
    high: float

    error = property(lambda self: self.ms / self.measured_ms - 1)
    overlaps = property(lambda self: self.row["moe_a2a_overlap"] == "yes")

    @property
    def counts(self) -> bool:
        """Whether the step is one that is asked to be right. Earlier releases are up to 1.8 times
        as slow as the next with the same settings; gpt-oss takes 1.4 times as long as its ops on
        every GPU, by what mechanism nobody knows."""
        return self.row["model"] != "GPT OSS 120B" and self.row["release"] >= "26.04"


def moe() -> list[Table]:
    """Return NVIDIA's steps, SimuMax's on a B200 node, their checks, and the pairs."""
    steps = [
        _step(row) for row in rows("mbridge_published_moe_fp8.csv")
        if (row["kind"], row["newest"], row["recipe_differs"]) == ("moe", "yes", "")
        and row["model"] in PRESETS
    ]  # fmt: skip
    return [_each(steps), *_deepseek(), _checks(steps), *_pairs()]


def _step(row: Line) -> Step:
    case, plan = _case(row), MEGATRON
    if row["moe_a2a_overlap"] == "yes":  # hides the exchange by a second micro-batch
        plan = _plan(EP_OVERLAP, "deferred" if row["delay_wgrad_compute"] == "yes" else "eager")
    per_gpu, shown = float(row["tokens_per_s_per_gpu"]), shortened(case)
    found, middle_ns = interval(shown, plan), recorded(shown, plan).makespan_ns
    return Step(
        row, time_ms(case, MEGATRON), 1e3 * case.tokens / case.cluster.world_size / per_gpu,
        time_ms(case, plan), found.low_ns / middle_ns, found.high_ns / middle_ns,
    )  # fmt: skip


def _plan(strategy: str, wgrad: str) -> SlicePlan:
    return replace(MEGATRON, strategy=strategy, wgrad=wgrad)  # type: ignore[arg-type]  # it checks


def _case(row: Line) -> Case:
    tp, pp, cp = (
        int(row[f"{one}_parallel_size"]) for one in ("tensor_model", "pipeline_model", "context")
    )
    model = replace(
        MODELS[PRESETS[row["model"]]], num_nextn_predict_layers=int(row["mtp_layers"] or 0)
    )
    ranks = ClusterSpec(
        tp=tp, pp=pp, cp=cp, vpp=int(row["recipe_vpp"] or 1),
        dp=int(row["gpus"]) // (tp * pp * cp), ep=int(row["expert_model_parallel_size"]),
        etp=int(row["expert_tensor_parallel_size"]), ranks_per_node=1 << 30,
        cuda_graph=row["cuda_graph_impl"] in ("full_iteration", "local"),
    )  # fmt: skip
    told: dict[str, Any] = {
        "dispatcher": row["moe_dispatcher"], "seq_length": int(row["seq_length"]),
        "micro_batch_size": int(row["micro_batch_size"]),
        "cuda_graph_scope": row["cuda_graph_scope"].rstrip("?").split("+"),
        "fp8_param_gather": row["fp8_param_gather"] == "yes" and row["precision"] != "BF16",
        "grad_dtype": "bf16" if row["grad_reduce_in_fp32"] == "no" else "fp32",
        "moments_dtype": "bf16" if row["moments_dtype"] == "bf16+bf16" else "fp32",
        "overlap_param_gather": row["overlap_param_gather"] == "yes",
        "pp_layers": _stages(row["pipeline_layout"], model, ranks),
    }  # fmt: skip
    if row["recompute_granularity"] == "selective":
        modules = tuple(filter(None, row["recompute_modules"].split("+")))
        told |= {"recompute": "selective", "recompute_modules": modules}
    return _job(row, model, ranks, told)


def _job(row: Line, model: ModelSpec, ranks: ClusterSpec, told: Mapping[str, Any]) -> Case:
    profile, rest = load_profile(TOLD["profiles"][row["gpu"]]), dict(told)
    cluster, size = place(ranks, profile, None), told["micro_batch_size"]
    scopes = tuple(one for one in rest.pop("cuda_graph_scope") if one in GRAPH_SCOPES)
    work = Workload(
        grad_accumulation=int(row["global_batch_size"]) // size // cluster.dp,
        data_parallel="distributed-optimizer", overlap_p2p=cluster.vpp > 1,
        implementation=IMPLEMENTATIONS["megatron-te"], cuda_graph_scope=scopes,
        moe_dispatcher=rest.pop("dispatcher"), fp8_recipe=TOLD["recipes"][row["precision"]], **rest,
    )  # fmt: skip
    return Case(model=model, profile=profile, cluster=cluster, workload=work)


def _stages(layout: str, model: ModelSpec, ranks: ClusterSpec) -> tuple[int, ...]:
    """Return the layers of each virtual stage: of ``Etttt|(tttt)*14|tmL`` those that are ``t``."""
    stages, layers = ranks.pp * ranks.vpp, model.num_hidden_layers
    if "|" not in layout:
        return spread_layers(layers, stages) if layers % stages else ()
    whole = re.sub(r"\(([^)]*)\)\*(\d+)", lambda m: "|".join([m[1]] * int(m[2])), layout)
    return tuple(part.count("t") for part in whole.split("|"))


def _each(steps: Sequence[Step]) -> Table:
    return shown("moe", [
        (
            "{release} {gpu} {model} {precision}, {gpus} GPUs".format(**one.row),
            one.row["moe_dispatcher"], one.row["cuda_graph_scope"] or one.row["cuda_graph_impl"],
            one.row["moe_a2a_overlap"], f"{one.measured_ms:,.0f}",
            f"{one.alone_ms:,.0f}" if one.overlaps else "", f"{one.ms:,.0f}", f"{one.error:+.1%}",
            f"{one.ms * one.low:,.0f}–{one.ms * one.high:,.0f}", "yes" if one.counts else "",
        ) for one in steps
    ])  # fmt: skip


def _checks(steps: Iterable[Step]) -> Table:
    checks: list[Check] = []
    counted = [one for one in steps if one.counts]
    for overlaps, name in enumerate(("one micro-batch after the other", "two beside each other")):
        some = [one for one in counted if one.overlaps == bool(overlaps)]
        inside = sum(one.low <= one.measured_ms / one.ms <= one.high for one in some)
        widest = max((one.high - one.low) / 2 for one in some)
        off = _mean(one.error for one in some)
        checks += [
            at_most(f"{name}, {len(some)} steps: mean error", 0.12, off),
            equal("  inside their interval", len(some), inside),
            at_most("  largest half-width of an interval", 0.25, widest),
        ]
    return check_table("Experts on H100 to GB300", checks)


def _deepseek() -> list[Table]:
    """Return SimuMax's steps of four layers on a B200 node: times, memory, a further micro-
    batch."""
    lines, found = [], []
    for row in rows("b200_deepseek_steps.csv"):
        model = replace(
            MODELS["deepseek-v3"], num_hidden_layers=int(row["layers"]), first_k_dense_replace=1,
            num_nextn_predict_layers=0,
        )  # fmt: skip
        work = Workload(
            seq_length=int(row["seq"]), micro_batch_size=int(row["mbs"]),
            grad_accumulation=int(row["micro_batches"]), data_parallel="distributed-optimizer",
            overlap_grad_reduce=False, overlap_param_gather=False,
            implementation=IMPLEMENTATIONS["megatron-te"],
        )  # fmt: skip
        cluster = ClusterSpec(tp=int(row["tp"]), dp=int(row["dp"]), ep=int(row["ep"]))
        case = Case(model=model, workload=work, cluster=cluster, profile=load_profile("b200-sxm"))
        ms, gib = time_ms(case, MEGATRON), peak_bytes(case, MEGATRON) / GIB
        measured, peer = float(row["measured_ms"]), float(row["simumax_ms"])
        error, held = ms / measured - 1, gib / float(row["measured_gib"]) - 1
        found.append((int(row["micro_batches"]), measured, ms, error, held))
        lines.append((
            row["micro_batches"], row["measured_ms"], f"{ms:,.1f}", f"{error:+.1%}",
            f"{peer / measured - 1:+.1%}", row["measured_gib"], f"{gib:.1f}", row["simumax_gib"],
        ))  # fmt: skip
    first, last = found[0], found[-1]
    measured, ms = ((last[at] - first[at]) / (last[0] - first[0]) for at in (1, 2))
    checks = [
        at_most("mean error", 0.08, _mean(one[3] for one in found)),
        at_most("mean error of memory", 0.02, _mean(one[4] for one in found)),
        reported("a further micro-batch, ms", f"{ms:.1f} for {measured:.1f}"),
    ]
    return [shown("deepseek", lines), check_table("DeepSeek-V3 on B200s", checks)]


def _pairs() -> list[Table]:
    lines, gains = [], []
    for row in rows("moe_overlap_pairs.csv"):
        measured, told = float(row["without"]) / float(row["with"]), "not played"
        if row["change"] in TOLD["changes"]:
            ways = TOLD["changes"][row["change"]]
            before, after = (
                time_ms(_paired(row, way.pop()), _plan(*way)) for way in map(list, ways)
            )
            gains.append((before / after, measured))
            told = f"{before / after:.3f}"
        job = "{model} {gpu} {precision}, {dispatcher}".format(**row)
        lines.append((job, row["change"], f"{measured:.3f}", told))
    right = sum((gain > 1) == (measured > 1) for gain, measured in gains)
    near = sum(abs(gain - measured) <= 0.10 for gain, measured in gains)
    checks = equal("right in sign", len(gains), right), reported("of these, within 0.10", str(near))
    return [shown("pairs", lines), check_table("Pairs that can be played", checks)]


def _paired(row: Line, scopes: Sequence[str]) -> Case:
    pp, vpp = (
        int(row[name] or 1) for name in ("pipeline_model_parallel_size", "num_virtual_stages")
    )
    ranks = ClusterSpec(
        tp=1, pp=pp, vpp=vpp, dp=int(row["gpus"]) // pp,
        ep=int(row["expert_model_parallel_size"]), ranks_per_node=1 << 30,
    )  # fmt: skip
    model, fixed = MODELS[PRESETS[row["model"]]], "TE graphs moe_router" in row["held_fixed"]
    told = {
        "dispatcher": row["dispatcher"], "seq_length": int(row["seq_length"] or SEQUENCE),
        "micro_batch_size": int(row["micro_batch_size"] or 1), "overlap_param_gather": True,
        "cuda_graph_scope": ROUTER if fixed else scopes, "pp_layers": _stages("", model, ranks),
    }  # fmt: skip
    return _job(row, model, ranks, told)


def _mean(errors: Iterable[float]) -> float:
    return mean(map(abs, errors))


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
    drawn = drawn_times_ns(case, chosen)
    for way in ("pairs", "domino"):
        low, high = middle_of(drawn[""] / drawn[way])
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
