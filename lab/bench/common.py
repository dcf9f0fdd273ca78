"""What benchmarks share: published measurements, the Domino paper's case, times and intervals, and
published runs of whole jobs as cases that the simulator can be asked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from statistics import mean, median
from typing import Any, Final, NamedTuple

from domino_tune.measure.importers import read_table
from domino_tune.measure.importers.imported import ImportedRows
from domino_tune.measure.importers.tables import Line, records
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.machines import interval_of
from domino_tune.verbs.resolve import Chosen, place, unsliced
from lab import told as toml
from lab import verdict
from lab.fits.common import Sources
from lab.verdict import SkippedError
from simulator.case import Case
from simulator.cost import Factors
from simulator.dtypes import MS_PER_NS
from simulator.implementation import IMPLEMENTATIONS, changed
from simulator.modules import GRAPH_SCOPES
from simulator.overlap import EP_OVERLAP
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.sharding import spread_layers
from simulator.specs import ClusterSpec, ModelSpec, Workload

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = Sources(REPOSITORY / "data", REPOSITORY / "measurements")
shown: Final = partial(verdict.shown, toml(str(Path(__file__).with_name("tables.toml"))))
GPT3_13B: Final = replace(
    MODELS["gpt3-13b"], num_attention_heads=64, num_key_value_heads=64, head_dim=80
)
"""With 64 heads, as in the paper: 40 are no multiple of 16 ranks."""


def facts_dir() -> Path:
    """Return the folder of tables not held here (data/NOTICE.md). Raise SkippedError without it."""
    folder = os.environ.get("DOMINO_TUNE_FACTS", "")
    if not (folder and Path(folder).is_dir()):
        raise SkippedError(f"no facts: DOMINO_TUNE_FACTS is {folder!r}; see data/NOTICE.md")
    return Path(folder)


@cache
def read_measured(name: str, importer: str) -> ImportedRows:
    """Read a file of ``data/measured`` with the importer that users call."""
    return read_table(SOURCES.table(name), importer)


def errors(known: Any, rows: Iterable[Any]) -> Iterator[float]:
    """Yield |looked up / measured − 1| of each row of a section in a table of its kind."""
    for row in rows:
        yield abs(known.estimate(row.signature).duration_us / row.median_us - 1)


def paper_case(model: ModelSpec, tp: int) -> Case:
    """Return 16 sequences of 1,024 tokens on H100s, with a new cost model."""
    work, profile = Workload(seq_length=1024, micro_batch_size=16), load_profile("h100-dgx")
    return Case(model=model, workload=work, cluster=ClusterSpec(tp=tp), profile=profile)


def time_ms(case: Case, plan: SlicePlan) -> float:
    """Return the time of an iteration."""
    return predict(case, plan).makespan_ns * MS_PER_NS


def fastest(case: Case, plans: Iterable[SlicePlan]) -> tuple[int, SlicePlan]:
    """Return the time, in ns, and the plan of the first of the fastest."""
    return min(((predict(case, plan).makespan_ns, plan) for plan in plans), key=itemgetter(0))


def half_width(case: Case, plan: SlicePlan) -> float:
    """Return half of the interval of an iteration over its middle."""
    low_ns, high_ns = interval_of(case, Chosen.of(case, plan))
    return (high_ns - low_ns) / (high_ns + low_ns)


def mean_off(errors: Iterable[float]) -> float:
    """Return the mean of absolute errors."""
    return mean(map(abs, errors))


def spread(values: Iterable[float], form: str) -> tuple[str, str, str]:
    """Return the least, the median and the most of ``values`` in ``form``."""
    known = sorted(values)
    return format(known[0], form), format(median(known), form), format(known[-1], form)


# Published runs of whole jobs (data/published) as cases; common.toml says where numbers stand -----

TOLD: Final[dict[str, Any]] = toml(__file__)
TABLES: Final[dict[str, dict[str, Any]]] = TOLD["tables"]
NAMES: Final[dict[str, tuple[str, ...]]] = {
    "tp": ("tensor_model_parallel_size",), "pp": ("pipeline_model_parallel_size",),
    "cp": ("context_parallel_size",), "vpp": ("vp", "num_virtual_stages"),
    "dp": ("data_parallel_size", "fsdp"), "seq": ("seq_length", "tokens"),
    "mbs": ("micro_batch", "micro_batch_size", "local_batch"),
    "gbs": ("global_batch", "global_batch_size"), "ep": ("expert_model_parallel_size",),
    "etp": ("expert_tensor_parallel_size",), "dispatcher": ("moe_dispatcher",),
}  # fmt: skip
"""Number of a job -> the names that tables have for it, beside its own."""


class Run(NamedTuple):
    """One measured row: ``measured_ms`` is 0 without a time, ``gib`` None without a memory."""

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
    return [row for _, row in records((REPOSITORY / "data/published" / name).read_bytes(), ())]


@cache
def runs(*names: str) -> tuple[Run, ...]:
    """Return the runs of these tables of common.toml."""
    return tuple(
        run_of(name, row) for name in names for told in (TABLES[name],)
        for row in rows(told["table"]) if told.get("rows", {}).items() <= row.items()
        and ("rows" not in told or row["model"] in told["presets"])
    )  # fmt: skip


def run_of(name: str, row: Line) -> Run:
    """Return the run of a table's row."""
    told = TABLES[name]
    model, job, factors = _model(told, row), row | told.get("job", {}), Factors()
    levels = ("tp", "pp", "cp", "ep", "dp", "vpp")
    sizes: dict[str, Any] = {one: int(_cell(job, one) or 1) for one in levels}
    seq, mbs, gbs, etp = (int(_cell(job, one) or 0) for one in ("seq", "mbs", "gbs", "etp"))
    named, recipe = told["profile"], dict[str, Any]()
    profile = load_profile(named if isinstance(named, str) else named[row["gpu"]])
    if "recipes" in told:
        sizes["dp"] = int(row["gpus"]) // (sizes["tp"] * sizes["pp"] * sizes["cp"])
        if told.get("halves") and sizes["pp"] * sizes["vpp"] > model.num_hidden_layers:
            sizes["vpp"] //= 2  # NVIDIA leaves some stages empty
        graph = row.get("cuda_graph_impl") in ("full_iteration", "local")
        ranks = ClusterSpec(**sizes, etp=etp, ranks_per_node=1 << 30, cuda_graph=graph)
        cluster, recipe = place(ranks, profile, None), _of_recipe(told, row, model, ranks)
    else:
        cluster = ClusterSpec(**sizes, etp=etp)
    if "memory_gb_s" in told:
        slower = told["memory_gb_s"] / profile.machine.memory_bandwidth_gb_s
        cluster = replace(cluster, power_cap_w=told["power_cap_w"])
        factors = Factors(memory_bandwidth=slower)
    if row.get("precision") == "fp8":
        recipe["fp8_recipe"] = "delayed"
    if row.get("grad_reduce_dtype"):
        recipe["grad_dtype"] = row["grad_reduce_dtype"]
    micros = int(job.get("micro_batches") or (gbs // (mbs * cluster.dp) if gbs else 1))
    work = Workload(
        seq_length=seq, micro_batch_size=mbs, grad_accumulation=micros, overlap_p2p=cluster.vpp > 1,
        implementation=changed(IMPLEMENTATIONS[told["implementation"]], told.get("keys", ())),
        **{**recipe, **told.get("workload", {})},
    )  # fmt: skip
    case = Case(model=model, cluster=cluster, profile=profile, workload=work, factors=factors)
    sharded = told["sp"] == "yes" or (told["sp"] != "no" and cluster.tp > 1)
    plan = replace(MEGATRON, sequence_parallel=sharded)
    if row.get("moe_a2a_overlap") == "yes":  # hides the exchange by a second micro-batch
        deferred = row["delay_wgrad_compute"] == "yes"
        plan = replace(plan, strategy=EP_OVERLAP, wgrad="deferred" if deferred else "eager")
    if "plan" in told:  # with the usual methods, as the launcher has them
        overlaps = told.get("tp_comm_overlap", {}).get(row.get("precision"), {})
        plan = unsliced(told["plan"], tuple(overlaps.get(row["model"], ())), True)
    label = told["label"].format(**row, levels=cluster.levels, micros=micros)
    gib, peer_ms = (float(row[told[one]]) if one in told else None for one in ("gib", "peer_ms"))
    return Run(name, label, case, plan, _measured_ms(told, row, case), gib, peer_ms, row)


def _of_recipe(
    told: Mapping[str, Any], row: Line, model: ModelSpec, ranks: ClusterSpec
) -> dict[str, Any]:
    """Return what a row's recipe sets; of ``Etttt|(tttt)*14|tmL`` layers are those with ``t``."""
    stages, layers = ranks.pp * ranks.vpp, model.num_hidden_layers
    pp_layers = spread_layers(layers, stages) if layers % stages else ()
    if "|" in (layout := row.get("pipeline_layout", "")):
        whole = re.sub(r"\(([^)]*)\)\*(\d+)", lambda m: "|".join([m[1]] * int(m[2])), layout)
        pp_layers = tuple(part.count("t") for part in whole.split("|"))
    scopes, selective = row.get("cuda_graph_scope", "").rstrip("?").split("+"), {}
    if row.get("recompute_granularity") == "selective":
        modules = tuple(filter(None, row["recompute_modules"].split("+")))
        selective = {"recompute": "selective", "recompute_modules": modules}
    return {
        "data_parallel": "distributed-optimizer" if row.get("fsdp", "") in ("", "0") else "fsdp",
        "overlap_param_gather": row.get("overlap_param_gather", "yes") == "yes",
        "fp8_recipe": told["recipes"][row["precision"]], "pp_layers": pp_layers,
        "fp8_param_gather": row.get("fp8_param_gather") == "yes" and row["precision"] != "BF16",
        "grad_dtype": "bf16" if row.get("grad_reduce_in_fp32") == "no" else "fp32",
        "moments_dtype": "bf16" if row.get("moments_dtype") == "bf16+bf16" else "fp32",
        "cuda_graph_scope": tuple(one for one in scopes if one in GRAPH_SCOPES),
        "moe_dispatcher": _cell(row, "dispatcher") or "alltoall",
        "moe_dispatcher_sms": int(row.get("dispatcher_sms") or 0), **selective,
    }  # fmt: skip


def _cell(row: Mapping[str, str], name: str) -> str:
    return next((row[one] for one in (name, *NAMES[name]) if row.get(one)), "")


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
        row = row | told["job"]
        hidden, heads = int(row["hidden"]), int(row["heads"])
        return ModelSpec(
            name=row.get("model", "gpt"), num_hidden_layers=int(row["layers"]), hidden_size=hidden,
            num_attention_heads=heads, num_key_value_heads=heads, head_dim=hidden // heads,
            intermediate_size=4 * hidden, vocab_size=int(row["vocab"]), hidden_dropout=0.1,
            attention_dropout=0.1, max_position_embeddings=2048,
        )  # fmt: skip
    named = told.get("model") or row["model"]
    name = told.get("presets", {}).get(named, named)
    own = TOLD["models"].get(name)
    spec = ModelSpec(name=name, **own) if own else MODELS[name]
    if name in told.get("no_dropout", ()):
        spec = replace(spec, hidden_dropout=0.0, attention_dropout=0.0)
    at = told.get("columns", {}).items()
    columns: dict[str, Any] = {field: int(row[column] or 0) for field, column in at}
    return replace(spec, **columns, **told.get("by_model", {}).get(named, {}))
