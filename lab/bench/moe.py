"""Published steps of models with experts beside predictions. Nothing is fitted to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any, Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.measure.importers.tables import Line
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import place
from domino_tune.verbs.simulate import shortened
from lab.bench.cases import interval, recorded, time_ms
from lab.bench.moe_pairs import pairs
from lab.bench.runs import rows
from lab.verdict import Check, at_most, check_table, equal, reported
from simulator.case import Case
from simulator.graphs import GRAPH_SCOPES
from simulator.implementation import IMPLEMENTATIONS
from simulator.overlap import EP_OVERLAP
from simulator.peak import peak_bytes
from simulator.plan import MEGATRON, SlicePlan, WgradPlacement
from simulator.presets import MODELS
from simulator.sharding import spread_layers
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.units import GIB

PROFILES: Final = {
    "h100": "h100-dgx", "b200": "b200-sxm", "b300": "b300-sxm", "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
}  # fmt: skip
PRESETS: Final = {
    "Qwen3_30B_a3B": "qwen3-30b-a3b", "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "DeepSeekV3": "deepseek-v3", "GPT OSS 120B": "gpt-oss-120b",
}  # fmt: skip
RECIPES: Final = {"FP8": "tensorwise", "MXFP8": "mxfp8", "NVFP4": "nvfp4", "BF16": "none"}
LEVELS: Final = ("tensor_model", "pipeline_model", "context")
WHOLE_GRAPHS: Final = ("full_iteration", "local")
FIRST_RELEASE: Final = "26.04"
"""Earlier ones are up to 1.8 times as slow as the next with the same settings."""
NOT_COUNTED: Final = "GPT OSS 120B"
"""It takes 1.4 times as long as its ops on every GPU, by what mechanism nobody knows."""
STEPS: Final = 0.12
HALF_WIDTH: Final = 0.25
ON_B200: Final = 0.08
MEMORY: Final = 0.02
OVERLAPPED: Final = 0.12
NOTES: Final = (
    "Counted: the newest release of a layout, from 26.04 on, whose recipe has the row's layout; "
    "those that overlap the experts' exchange, by two micro-batches beside each other, apart.",
)


class Step(NamedTuple):
    """A published step beside its prediction; ``low``, ``high``: its interval, over that.
    ``alone_ms``: where its micro-batches follow each other."""

    row: Line
    case: Case
    alone_ms: float
    measured_ms: float
    ms: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Relative error of the step."""
        return self.ms / self.measured_ms - 1

    @property
    def inside(self) -> bool:
        """Whether the step lies in its interval."""
        return self.low <= self.measured_ms / self.ms <= self.high

    @property
    def overlaps(self) -> bool:
        """Whether the job hides the experts' exchange by a second micro-batch."""
        return self.row["moe_a2a_overlap"] == "yes"

    @property
    def counts(self) -> bool:
        """Whether the step is one that is asked to be right."""
        return self.row["model"] != NOT_COUNTED and self.row["release"] >= FIRST_RELEASE


def moe() -> list[Table]:
    """Return NVIDIA's steps, SimuMax's on a B200 node, and their checks."""
    steps = [_step(row, _case(row)) for row in rows("mbridge_published_moe_fp8.csv") if _fits(row)]
    return [_each(steps), *_deepseek(), _checks(steps), *pairs()]


def _fits(row: Line) -> bool:
    newest = row["kind"] == "moe" and row["newest"] == "yes" and not row["recipe_differs"]
    return newest and row["model"] in PRESETS


def _step(row: Line, case: Case) -> Step:
    per_gpu = float(row["tokens_per_s_per_gpu"])
    measured_ms = 1e3 * case.tokens / case.cluster.world_size / per_gpu
    plan = overlapping(row["delay_wgrad_compute"]) if row["moe_a2a_overlap"] == "yes" else MEGATRON
    shown = shortened(case)
    found, middle_ns = interval(shown, plan), recorded(shown, plan).makespan_ns
    return Step(
        row, case, time_ms(case, MEGATRON), measured_ms, time_ms(case, plan),
        found.low_ns / middle_ns, found.high_ns / middle_ns,
    )  # fmt: skip


def overlapping(delays_wgrads: str) -> SlicePlan:
    """Return the plan of two micro-batches beside each other."""
    wgrad: WgradPlacement = "deferred" if delays_wgrads == "yes" else "eager"
    return replace(MEGATRON, strategy=EP_OVERLAP, wgrad=wgrad)


def _scopes(text: str) -> tuple[str, ...]:
    return tuple(one for one in text.rstrip("?").split("+") if one in GRAPH_SCOPES)


def _case(row: Line) -> Case:
    """Return a row of NVIDIA's tables as a case, with what its recipe sets."""
    profile, model = load_profile(PROFILES[row["gpu"]]), MODELS[PRESETS[row["model"]]]
    model = replace(model, num_nextn_predict_layers=int(row["mtp_layers"] or 0))
    tp, pp, cp = (int(row[f"{name}_parallel_size"]) for name in LEVELS)
    ranks = ClusterSpec(
        tp=tp, pp=pp, cp=cp, vpp=int(row["recipe_vpp"] or 1),
        dp=int(row["gpus"]) // (tp * pp * cp), ep=int(row["expert_model_parallel_size"]),
        etp=int(row["expert_tensor_parallel_size"]), ranks_per_node=1 << 30,
        cuda_graph=row["cuda_graph_impl"] in WHOLE_GRAPHS,
    )  # fmt: skip
    cluster, size = place(ranks, profile, None), int(row["micro_batch_size"])
    told: dict[str, Any] = {
        "fp8_recipe": RECIPES[row["precision"]],
        "moe_dispatcher": row["moe_dispatcher"],
        "moe_dispatcher_sms": int(row["dispatcher_sms"] or 0),
        "cuda_graph_scope": _scopes(row["cuda_graph_scope"]),
        "fp8_param_gather": row["fp8_param_gather"] == "yes" and row["precision"] != "BF16",
        "grad_dtype": "bf16" if row["grad_reduce_in_fp32"] == "no" else "fp32",
        **_recomputation(row["recompute_granularity"], row["recompute_modules"]),
        "moments_dtype": "bf16" if row["moments_dtype"] == "bf16+bf16" else "fp32",
    }
    work = Workload(
        seq_length=int(row["seq_length"]),
        micro_batch_size=size,
        grad_accumulation=int(row["global_batch_size"]) // size // cluster.dp,
        data_parallel="distributed-optimizer",
        overlap_p2p=cluster.vpp > 1,
        implementation=IMPLEMENTATIONS["megatron-te"],
        overlap_param_gather=row["overlap_param_gather"] == "yes",
        pp_layers=_stages(row["pipeline_layout"], model, cluster),
        **told,
    )
    return Case(model=model, profile=profile, cluster=cluster, workload=work)


def _recomputation(kind: str, modules: str) -> dict[str, Any]:
    if kind != "selective":
        return {}
    return {"recompute": kind, "recompute_modules": tuple(filter(None, modules.split("+")))}


def _stages(layout: str, model: ModelSpec, cluster: ClusterSpec) -> tuple[int, ...]:
    """Return the layers of each virtual stage: of ``Etttt|(tttt)*14|tmL`` those that are ``t``."""
    stages, layers = cluster.pp * cluster.vpp, model.num_hidden_layers
    if "|" not in layout:
        return spread_layers(layers, stages) if layers % stages else ()
    whole = re.sub(r"\(([^)]*)\)\*(\d+)", lambda m: "|".join([m[1]] * int(m[2])), layout)
    return tuple(part.count("t") for part in whole.split("|"))


def _each(steps: Sequence[Step]) -> Table:
    return Table(
        title="NVIDIA's steps of models with experts, ms; nothing fitted",
        columns=(
            "job", "dispatcher", "graphs", "overlap", ">measured", ">alone", ">predicted", ">error",
            ">interval", "counted",
        ),
        rows=[
            (
                f"{one.row['release']} {one.row['gpu']} {one.row['model']} "
                f"{one.row['precision']}, {one.row['gpus']} GPUs",
                one.row["moe_dispatcher"],
                one.row["cuda_graph_scope"] or one.row["cuda_graph_impl"],
                one.row["moe_a2a_overlap"], f"{one.measured_ms:,.0f}",
                f"{one.alone_ms:,.0f}" if one.overlaps else "", f"{one.ms:,.0f}",
                f"{one.error:+.1%}", f"{one.ms * one.low:,.0f}–{one.ms * one.high:,.0f}",
                "yes" if one.counts else "",
            )
            for one in steps
        ],
        notes=NOTES,
    )  # fmt: skip


def _checks(steps: Iterable[Step]) -> Table:
    checks: list[Check] = []
    counted = [one for one in steps if one.counts]
    for name, overlaps, limit in (
        ("one micro-batch after the other", False, STEPS),
        ("two beside each other", True, OVERLAPPED),
    ):
        some = [one for one in counted if one.overlaps == overlaps]
        errors, widths = [one.error for one in some], [(one.high - one.low) / 2 for one in some]
        checks += [
            at_most(f"{name}, {len(some)} steps: mean error", limit, _mean(errors)),
            equal("  inside their interval", len(some), sum(one.inside for one in some)),
            at_most("  largest half-width of an interval", HALF_WIDTH, max(widths)),
        ]
    return check_table("Experts on H100 to GB300", checks)


def _deepseek() -> list[Table]:
    """Return SimuMax's steps of DeepSeek-V3 of four layers on a B200 node: times, and what each
    further micro-batch takes, and memory."""
    found = []
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
        found.append((row, time_ms(case, MEGATRON), peak_bytes(case, MEGATRON) / GIB))
    errors = [ms / float(row["measured_ms"]) - 1 for row, ms, _ in found]
    held = [gib / float(row["measured_gib"]) - 1 for row, _, gib in found]
    (first, first_ms, _), (last, last_ms, _) = found[0], found[-1]
    more = int(last["micro_batches"]) - int(first["micro_batches"])
    slope = (float(last["measured_ms"]) - float(first["measured_ms"])) / more
    return [
        Table(
            title="DeepSeek-V3 of four layers on eight B200s, alltoall, BF16 (SimuMax's runs)",
            columns=(
                ">micro-batches", ">measured ms", ">predicted", ">error", ">SimuMax",
                ">measured GiB", ">predicted", ">SimuMax",
            ),
            rows=[
                (
                    row["micro_batches"], row["measured_ms"], f"{ms:,.1f}", f"{error:+.1%}",
                    f"{float(row['simumax_ms']) / float(row['measured_ms']) - 1:+.1%}",
                    row["measured_gib"], f"{gib:.1f}", row["simumax_gib"],
                )
                for (row, ms, gib), error in zip(found, errors, strict=True)
            ],
        ),
        check_table(
            "DeepSeek-V3 on B200s",
            [
                at_most("mean error", ON_B200, _mean(errors)),
                at_most("mean error of memory", MEMORY, _mean(held)),
                reported(
                    "a further micro-batch, ms",
                    f"{(last_ms - first_ms) / more:.1f} for {slope:.1f}",
                ),
            ],
        ),
    ]  # fmt: skip


def _mean(errors: Iterable[float]) -> float:
    return mean(map(abs, errors))
