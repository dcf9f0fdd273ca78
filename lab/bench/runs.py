"""Published runs of whole jobs (data/published), as cases that the simulator can be asked.

``runs.toml`` says of each table where a job's numbers stand, and what its source says beside them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from domino_tune.measure.importers.tables import Line, records
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import place, unsliced
from lab.bench.facts import REPOSITORY
from simulator.case import Case
from simulator.cost import Changes
from simulator.implementation import IMPLEMENTATIONS, changed
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.sharding import spread_layers
from simulator.specs import ClusterSpec, ModelSpec, Workload

PUBLISHED: Final = REPOSITORY / "data" / "published"
TOLD: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
TABLES: Final[dict[str, dict[str, Any]]] = TOLD["tables"]
NAMES: Final[dict[str, tuple[str, ...]]] = {
    "tp": ("tensor_model_parallel_size",),
    "pp": ("pipeline_model_parallel_size",),
    "cp": ("context_parallel_size",),
    "vpp": ("vp", "num_virtual_stages"),
    "dp": ("data_parallel_size", "fsdp"),
    "seq": ("seq_length",),
    "mbs": ("micro_batch", "micro_batch_size", "local_batch"),
    "gbs": ("global_batch", "global_batch_size"),
}
"""Number of a job -> the names that tables have for it, beside its own."""


class Run(NamedTuple):
    """One measured row of a table. ``measured_ms`` is 0 where only its memory was published, and
    ``gib`` is None where its time alone was."""

    table: str
    label: str
    case: Case
    plan: SlicePlan
    measured_ms: float
    gib: float | None
    peer_ms: float | None
    row: Line

    def error(self, ms: float) -> float:
        """Return the relative error of a predicted iteration."""
        return ms / self.measured_ms - 1


def rows(name: str) -> list[Line]:
    """Return the rows of a table of data/published."""
    return [row for _, row in records((PUBLISHED / name).read_bytes(), ())]


def megatron(*, sequence_parallel: bool) -> SlicePlan:
    """Return Megatron-LM's plan."""
    return replace(MEGATRON, sequence_parallel=sequence_parallel)


@cache
def runs(*names: str) -> tuple[Run, ...]:
    """Return the runs of these tables of runs.toml."""
    return tuple(
        _run(name, told, row)
        for name in names
        for told in (TABLES[name],)
        for row in rows(told["table"])
        if told.get("rows", {}).items() <= row.items()
    )


def _run(name: str, told: Mapping[str, Any], row: Line) -> Run:
    model, workload = _model(told, row), dict(told["workload"])
    if "recipes" in told:
        row = row | _ranks_told(row, model.num_hidden_layers)
        workload |= _of_recipe(told["recipes"], row, model.num_hidden_layers)
    cluster, micros = ranks(row | told.get("job", {})), _micros(told, row)
    if row.get("precision") == "fp8":
        workload["fp8_recipe"] = "delayed"
    if row.get("grad_reduce_dtype"):
        workload["grad_dtype"] = row["grad_reduce_dtype"]
    profile = told["profile"]
    profile = load_profile(profile if isinstance(profile, str) else profile[row["gpu"]])
    if "recipes" in told:
        cluster = replace(cluster, cuda_graph=row["cuda_graph_scope"] == "full_iteration")
        cluster = place(cluster, profile, None)
    case = Case(
        model=model, cluster=cluster, profile=profile,
        workload=Workload(
            seq_length=_number(told, row, "seq"), micro_batch_size=_number(told, row, "mbs"),
            grad_accumulation=micros, overlap_p2p=cluster.vpp > 1, **workload,
            implementation=changed(IMPLEMENTATIONS[told["implementation"]], told.get("keys", ())),
        ),
    )  # fmt: skip
    if "memory_gb_s" in told:
        slower = told["memory_gb_s"] / case.profile.machine.memory_bandwidth_gb_s
        held = replace(cluster, power_cap_w=told["power_cap_w"])
        case = replace(case, changes=Changes(memory_bandwidth=slower), cluster=held)
    sp = told["sp"] == "yes" or (told["sp"] == "where TP > 1" and cluster.tp > 1)
    plan = megatron(sequence_parallel=sp)
    if "plan" in told:  # with the usual methods, as the launcher has them
        overlaps = told.get("tp_comm_overlap", {}).get(row.get("precision"), {})
        plan = unsliced(told["plan"], tuple(overlaps.get(row["model"], ())), True)
    return Run(
        name, told["label"].format(**row, levels=cluster.levels, micros=micros), case, plan,
        _measured_ms(told, row, case), _told(told, row, "gib"), _told(told, row, "peer_ms"), row,
    )  # fmt: skip


def _ranks_told(row: Line, layers: int) -> Line:
    """Return replicas and virtual stages of a row that tells its GPUs. Of a model with fewer layers
    than virtual stages NVIDIA leaves some stages empty; here it has half as many."""
    tp, pp, cp = (int(_cell(row, name)) for name in ("tp", "pp", "cp"))
    vpp = int(row["recipe_vpp"] or 1)
    vpp = vpp if pp * vpp <= layers else vpp // 2
    return {"dp": str(int(row["gpus"]) // (tp * pp * cp)), "vpp": str(vpp)}


def _of_recipe(recipes: Mapping[str, str], row: Line, layers: int) -> dict[str, Any]:
    """Return what the recipe of a row sets of the workload."""
    stages = int(_cell(row, "pp")) * int(row["vpp"])
    return {
        "data_parallel": "distributed-optimizer" if row["fsdp"] in ("", "0") else "fsdp",
        "overlap_param_gather": row["overlap_param_gather"] == "yes",
        "fp8_recipe": recipes[row["precision"]],
        "fp8_param_gather": row["fp8_param_gather"] == "yes",
        "pp_layers": spread_layers(layers, stages) if layers % stages else (),
    }


def ranks(row: Mapping[str, str]) -> ClusterSpec:
    """Return the ranks of a row; columns that a table has not are 1."""
    tp, pp, cp, dp, vpp = (int(_cell(row, name) or 1) for name in ("tp", "pp", "cp", "dp", "vpp"))
    return ClusterSpec(tp=tp, pp=pp, cp=cp, dp=dp, vpp=vpp)


def _micros(told: Mapping[str, Any], row: Line) -> int:
    job = row | told.get("job", {})
    if "micro_batches" in job:
        return int(job["micro_batches"])
    if not (gbs := _cell(job, "gbs")):
        return 1
    return int(gbs) // (_number(told, row, "mbs") * ranks(job).dp)


def _cell(row: Mapping[str, str], name: str) -> str:
    return next((row[one] for one in (name, *NAMES[name]) if row.get(one)), "")


def _number(told: Mapping[str, Any], row: Line, name: str) -> int:
    return int(_cell(row | told.get("job", {}), name))


def _told(told: Mapping[str, Any], row: Line, name: str) -> float | None:
    return float(row[told[name]]) if name in told else None


def _measured_ms(told: Mapping[str, Any], row: Line, case: Case) -> float:
    if "ms" in told:
        return float(row[told["ms"]])
    if "s" in told:
        return 1e3 * float(row[told["s"]])
    if "tokens_per_s" in told:
        return 1e3 * case.tokens / case.cluster.world_size / float(row[told["tokens_per_s"]])
    return 0.0


def _model(told: Mapping[str, Any], row: Line) -> ModelSpec:
    if told.get("gpt"):
        return _gpt(row | told["job"])
    named = told.get("model") or row["model"]
    name = told.get("presets", {}).get(named, named)
    own = TOLD["models"].get(name)
    spec = ModelSpec(name=name, **own) if own else MODELS[name]
    if name in told.get("no_dropout", ()):
        spec = replace(spec, hidden_dropout=0.0, attention_dropout=0.0)
    columns: dict[str, Any] = {
        field: int(row[column]) for field, column in told.get("columns", {}).items()
    }
    return replace(spec, **columns, **told.get("by_model", {}).get(named, {}))


def _gpt(row: Mapping[str, str]) -> ModelSpec:
    """Return a GPT with dropout and learned positions of 2,048 tokens."""
    hidden, heads = int(row["hidden"]), int(row["heads"])
    return ModelSpec(
        name=row.get("model", "gpt"), num_hidden_layers=int(row["layers"]), hidden_size=hidden,
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=hidden // heads,
        intermediate_size=4 * hidden, vocab_size=int(row["vocab"]), max_position_embeddings=2048,
        hidden_dropout=0.1, attention_dropout=0.1,
    )  # fmt: skip
