"""Published pairs of one job with experts: what a change of it gave, beside what is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.measure.importers.tables import Line
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import place
from lab.bench.cases import time_ms
from lab.bench.runs import rows
from lab.verdict import check_table, equal, reported
from simulator.case import Case
from simulator.graphs import GRAPH_SCOPES
from simulator.implementation import IMPLEMENTATIONS
from simulator.overlap import EP_OVERLAP
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.sharding import spread_layers
from simulator.specs import ClusterSpec, Workload

NEAR: Final = 0.10
SEQUENCE: Final = 4096
"""Tokens of a sequence where a source does not tell: that of NVIDIA's recipes."""
TOGETHER: Final = replace(MEGATRON, strategy=EP_OVERLAP)
DELAYED: Final = replace(TOGETHER, wgrad="deferred")
HYBRIDEP_SMS: Final = 32
"""Of the recipes (facts/published/mbridge_cards_moe.csv, dispatcher_sms)."""
ROUTER: Final = ("moe_router", "moe_preprocess")


class Way(NamedTuple):
    """A job's plan and what it replays."""

    plan: SlicePlan
    scopes: tuple[str, ...] = ()


CHANGES: Final[dict[str, tuple[Way, Way]]] = {
    "EP overlap on": (Way(MEGATRON), Way(TOGETHER)),
    "delay_wgrad_compute on": (Way(TOGETHER), Way(DELAYED)),
    "TE graphs attn+moe_router+moe_preprocess (48 layers) against eager": (
        Way(MEGATRON), Way(MEGATRON, ("attn", *ROUTER)),
    ),
    "EP overlap off (host-bound)": (Way(TOGETHER), Way(MEGATRON)),
}  # fmt: skip
"""A change that can be played -> the job without and with it."""
ALIASES: Final = {"Qwen3_30B_a3B": "qwen3-30b-a3b", "Qwen3_235B_a22B": "qwen3-235b-a22b"}
RECIPES: Final = {"BF16": "none", "MXFP8": "mxfp8"}
PROFILES: Final = {"h100": "h100-dgx", "b200": "b200-sxm"}


def pairs() -> list[Table]:
    """Return what each published change gave, and what it gives here."""
    made, right, near, played = [], 0, 0, 0
    for row in rows("moe_overlap_pairs.csv"):
        measured = float(row["without"]) / float(row["with"])
        ways, told = CHANGES.get(row["change"]), "not played"
        if ways:
            before, after = (_ms(row, way) for way in ways)
            gain, played = before / after, played + 1
            right += (gain > 1) == (measured > 1)
            near += abs(gain - measured) <= NEAR
            told = f"{gain:.3f}"
        made.append((
            f"{row['model']} {row['gpu']} {row['precision']}, {row['dispatcher']}",
            row["change"], f"{measured:.3f}", told,
        ))  # fmt: skip
    return [
        Table(
            title="Published pairs: how many times as fast a change made one job",
            columns=("job", "change", ">measured", ">predicted"), rows=made,
        ),
        check_table("Pairs that can be played", [
            equal("right in sign", played, right), reported("of these, within 0.10", str(near)),
        ]),
    ]  # fmt: skip


def _ms(row: Line, way: Way) -> float:
    return time_ms(_case(row, way), way.plan)


def _case(row: Line, way: Way) -> Case:
    profile, model = load_profile(PROFILES[row["gpu"]]), MODELS[ALIASES[row["model"]]]
    pp, vpp = (int(row[name] or 1) for name in (
        "pipeline_model_parallel_size", "num_virtual_stages",
    ))  # fmt: skip
    ranks = ClusterSpec(
        tp=1, pp=pp, vpp=vpp, dp=int(row["gpus"]) // pp,
        ep=int(row["expert_model_parallel_size"]), ranks_per_node=1 << 30,
    )  # fmt: skip
    cluster, size = place(ranks, profile, None), int(row["micro_batch_size"] or 1)
    graphs = ROUTER if "TE graphs moe_router" in row["held_fixed"] else way.scopes
    layers, stages = model.num_hidden_layers, pp * vpp
    told: dict[str, Any] = {
        "moe_dispatcher": row["dispatcher"],
        "moe_dispatcher_sms": HYBRIDEP_SMS if row["dispatcher"] == "hybridep" else 0,
        "fp8_recipe": RECIPES[row["precision"]],
        "cuda_graph_scope": tuple(one for one in graphs if one in GRAPH_SCOPES),
    }  # fmt: skip
    work = Workload(
        seq_length=int(row["seq_length"] or SEQUENCE), micro_batch_size=size,
        grad_accumulation=int(row["global_batch_size"]) // size // cluster.dp,
        data_parallel="distributed-optimizer", overlap_p2p=vpp > 1,
        implementation=IMPLEMENTATIONS["megatron-te"], overlap_param_gather=True,
        pp_layers=spread_layers(layers, stages) if layers % stages else (), **told,
    )  # fmt: skip
    return Case(model=model, profile=profile, cluster=cluster, workload=work)
