"""Published runs of whole jobs (data/published), as cases that the simulator can be asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from domino_tune.measure.importers.tables import Line, records
from domino_tune.store.profiles import load_profile
from lab.bench.facts import REPOSITORY
from simulator.case import Case
from simulator.cost import Changes
from simulator.implementation import IMPLEMENTATIONS, changed
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, ModelSpec, Workload

PUBLISHED: Final = REPOSITORY / "data" / "published"
LLAMA: Final = {
    "llama3_70b": MODELS["llama3-70b"],
    "llama3_405b": replace(MODELS["llama3-405b"], num_key_value_heads=16),
}
"""Model of SimuMax's runs -> its layers."""
CI_MODEL: Final = ModelSpec(
    name="gpt3-7b-ci", num_hidden_layers=32, hidden_size=4096, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, intermediate_size=16384, vocab_size=131073,
    max_position_embeddings=8192, tie_word_embeddings=False, hidden_dropout=0.1,
    attention_dropout=0.1,
)  # fmt: skip
CI_PROFILES: Final = {"h100": "h100-dgx", "a100": "a100-sxm"}
CI_KEYS: Final = (
    "deterministic_attention=true", "gradient_accumulation_fusion=false", "nccl_algo=ring",
    "log_params_norm=true", "log_num_zeros_in_grad=true", "cross_entropy_loss_fusion=false",
)  # fmt: skip
"""What the run sets otherwise than ``megatron-te`` has it; the last is Megatron's default."""
CI_UNKNOWN: Final = (
    "Of Megatron-LM's CI run these have no source: which attention kernels ran in deterministic "
    "mode (cuDNN's or FlashAttention's); what an H100's and an A100's ops draw: assumed to be as "
    "our H200's; whether biases exist (assumed: Megatron's default, yes)."
)
NEMOTRON: Final = ModelSpec(
    name="nemotron4-15b", num_hidden_layers=32, hidden_size=6144, num_attention_heads=48,
    num_key_value_heads=8, head_dim=128, intermediate_size=24576, vocab_size=256000,
    max_position_embeddings=4096, hidden_act="relu", position_embedding="rope",
    tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
)  # fmt: skip
NVIDIA: Final = {
    "nemotron4-15b": NEMOTRON,
    "gpt3-175b": replace(MODELS["gpt3-175b"], hidden_dropout=0.0, attention_dropout=0.0),
}


class Run(NamedTuple):
    """One measured row. ``gib`` is None where its memory was not published."""

    label: str
    case: Case
    plan: SlicePlan
    measured_ms: float
    gib: float | None = None
    peer_ms: float | None = None

    def error(self, ms: float) -> float:
        """Return the relative error of a predicted iteration."""
        return ms / self.measured_ms - 1


def rows(name: str) -> list[Line]:
    """Return the rows of a table of data/published."""
    return [row for _, row in records((PUBLISHED / name).read_bytes(), ())]


def megatron(*, sequence_parallel: bool) -> SlicePlan:
    """Return Megatron-LM's plan."""
    return replace(MEGATRON, sequence_parallel=sequence_parallel)


def _case(model: ModelSpec, profile: str, cluster: ClusterSpec, **workload: Any) -> Case:
    return Case(
        model=model, workload=Workload(**workload), cluster=cluster, profile=load_profile(profile)
    )


def _ranks(row: Line) -> ClusterSpec:
    """Return the ranks of a row; columns that a table has not are 1."""
    tp, pp, cp, dp = (int(row.get(name) or 1) for name in ("tp", "pp", "cp", "dp"))
    return ClusterSpec(tp=tp, pp=pp, cp=cp, dp=dp, vpp=int(row.get("vpp") or row.get("vp") or 1))


def b200_runs() -> list[Run]:
    """Return SimuMax's runs of Megatron-LM on one B200 node."""
    runs = []
    for row in rows("b200_megatron_steps.csv"):
        cluster, micros = _ranks(row), int(row["micro_batches"])
        model = replace(LLAMA[row["model"]], num_hidden_layers=int(row["layers"]))
        case = _case(
            model, "b200-sxm", cluster, seq_length=int(row["seq"]),
            micro_batch_size=int(row["mbs"]), grad_accumulation=micros, cp_comm="a2a",
            data_parallel="distributed-optimizer", overlap_grad_reduce=False,
            overlap_param_gather=False, implementation=IMPLEMENTATIONS["megatron-te"],
        )  # fmt: skip
        runs.append(
            Run(
                f"{row['model']} {cluster.levels}, {micros}", case,
                megatron(sequence_parallel=cluster.tp > 1), float(row["measured_ms"]),
                float(row["measured_gib"]), float(row["simumax_ms"]),
            )
        )  # fmt: skip
    return runs


def ci_runs() -> list[Run]:
    """Return Megatron-LM's CI runs of a 7B model at TP 4, on H100s and on A100s."""
    return [_ci_run(row) for row in rows("megatron_ci_7b.csv")]


def _ci_run(row: Line) -> Run:
    gpu = row["gpu"]
    case = _case(
        CI_MODEL, CI_PROFILES[gpu], ClusterSpec(tp=4, dp=2), seq_length=8192, micro_batch_size=2,
        grad_accumulation=2, data_parallel="distributed-optimizer",
        implementation=changed(IMPLEMENTATIONS["megatron-te"], CI_KEYS),
    )  # fmt: skip
    measured, gib = float(row["median_ms"]), float(row["max_allocated_gib"])
    return Run(f"7B on {gpu}", case, megatron(sequence_parallel=False), measured, gib)


def korthikanti_runs() -> list[Run]:
    """Return the runs of arXiv 2205.05198, with full recomputation and with sequence parallelism
    and selective recomputation."""
    runs = []
    for row in rows("korthikanti_a100.csv"):
        cluster, mbs = _ranks(row), int(row["mbs"])
        model = _gpt(row["model"], row, vocab_size=51200)
        for recompute, column in (("full", "full_recompute_s"), ("selective", "sp_selective_s")):
            case = _case(
                model, "a100-sxm", cluster, seq_length=2048, micro_batch_size=mbs, dtype="fp16",
                grad_accumulation=int(row["gbs"]) // (mbs * cluster.dp), recompute=recompute,
                implementation=IMPLEMENTATIONS["megatron-2022"], overlap_p2p=cluster.vpp > 1,
            )  # fmt: skip
            plan = megatron(sequence_parallel=recompute == "selective")
            runs.append(Run(f"{row['model']}, {recompute}", case, plan, 1e3 * float(row[column])))
    return runs


def vtrain_runs() -> list[Run]:
    """Return vTrain's runs of Megatron-DeepSpeed on A100s, with full recomputation."""
    runs = []
    for table in ("single", "multi"):
        for row in rows(f"vtrain_a100_{table}_sample.csv"):
            cluster, mbs = _ranks(row), int(row["micro_batch"])
            model = _gpt("gpt", row, vocab_size=50257)
            case = _case(
                model, "a100-sxm", cluster, seq_length=int(row["seq"]), micro_batch_size=mbs,
                grad_accumulation=int(row["global_batch"]) // (mbs * cluster.dp), dtype="fp16",
                recompute="full", implementation=IMPLEMENTATIONS["megatron-2022"],
            )  # fmt: skip
            label = (
                f"{row['hidden']} x {row['layers']}, {cluster.levels}, micro-batch {mbs}, "
                f"{case.workload.grad_accumulation}"
            )
            plan = megatron(sequence_parallel=False)
            runs.append(Run(label, case, plan, float(row["iteration_ms"])))
    return runs


def _gpt(name: str, row: Line, *, vocab_size: int) -> ModelSpec:
    """Return a GPT with dropout and learned positions of 2,048 tokens."""
    hidden, heads = int(row["hidden"]), int(row["heads"])
    return ModelSpec(
        name=name, num_hidden_layers=int(row["layers"]), hidden_size=hidden,
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=hidden // heads,
        intermediate_size=4 * hidden, vocab_size=vocab_size, max_position_embeddings=2048,
        hidden_dropout=0.1, attention_dropout=0.1,
    )  # fmt: skip


def async_tp_run() -> Run:
    """Return torchtitan's run of Llama 3.1 8B on 64 H100s of 500 W and 2.4 TB/s."""
    row = rows("asynctp_h100.csv")[0]
    cluster, mbs = ClusterSpec(tp=int(row["tp"]), dp=int(row["fsdp"])), int(row["local_batch"])
    case = _case(
        MODELS["llama3-8b"], "h100-dgx", cluster, seq_length=8192, micro_batch_size=mbs,
        data_parallel="fsdp", recompute="per-op", implementation=IMPLEMENTATIONS["torch"],
    )  # fmt: skip
    slower = replace(
        case,
        changes=Changes(memory_bandwidth=2400 / case.profile.machine.memory_bandwidth_gb_s),
        cluster=replace(case.cluster, power_cap_w=500.0),
    )
    measured = 1e3 * slower.tokens / cluster.world_size / float(row["tp_tokens_s"])
    return Run("llama3-8b, 64 H100s of 500 W", slower, megatron(sequence_parallel=True), measured)


def tokenweave_passes() -> Iterator[tuple[int, Case, float]]:
    """Yield tokens, case and measured ms of forward passes of a prompt through Llama 70B over eight
    H100s, whose all-reduces are multimem."""
    for row in rows("tokenweave_forward_tp8.csv"):
        tokens = int(row["tokens"])
        case = _case(
            MODELS["llama3-70b"], "h100-dgx", ClusterSpec(tp=int(row["tp"])), seq_length=tokens,
            micro_batch_size=1, tp_collectives="multimem",
            implementation=replace(IMPLEMENTATIONS["megatron-te"], zero_grads=False),
        )  # fmt: skip
        yield tokens, case, float(row["baseline_ms"])


def userbuffers_runs() -> list[Run]:
    """Return NVIDIA's steps at TP 4, whose gathers and scatters TransformerEngine overlaps."""
    runs = []
    for row in rows("nvidia_h100_steps.csv"):
        cluster, mbs = _ranks(row), int(row["mbs"])
        case = _case(
            NVIDIA[row["model"]], "h100-dgx", cluster, seq_length=int(row["seq"]),
            micro_batch_size=mbs, grad_accumulation=int(row["gbs"]) // (mbs * cluster.dp),
            data_parallel="distributed-optimizer", overlap_p2p=cluster.vpp > 1,
            implementation=IMPLEMENTATIONS["megatron-te"],
        )  # fmt: skip
        label = f"{row['model']}, {row['case']}"
        seconds = float(row["seconds"])
        runs.append(Run(label, case, megatron(sequence_parallel=True), 1e3 * seconds))
    return runs


def dgxc_runs() -> Iterator[tuple[Line, Run]]:
    """Yield NVIDIA's steps of dense jobs in BF16 and in FP8 with their rows."""
    for row in rows("dgxc_h100_bf16_fp8.csv"):
        tp, pp, cp = (
            int(row[f"{name}_parallel_size"])
            for name in ("tensor_model", "pipeline_model", "context")
        )
        dp, mbs = int(row["data_parallel_size"]), int(row["micro_batch_size"])
        vpp = int(row["num_virtual_stages"] or 1)
        cluster = ClusterSpec(tp=tp, pp=pp, cp=cp, dp=dp, vpp=vpp)
        model = {**NVIDIA, "llama3.1-405b": MODELS["llama3-405b"]}[row["model"]]
        model = replace(
            model, num_hidden_layers=int(row["num_layers"]),
            num_key_value_heads=int(row["num_query_groups"]), vocab_size=int(row["vocab_size"]),
        )  # fmt: skip
        case = _case(
            model, "h100-dgx", cluster, seq_length=int(row["seq_length"]), micro_batch_size=mbs,
            grad_accumulation=int(row["global_batch_size"]) // (mbs * dp),
            data_parallel="distributed-optimizer", overlap_p2p=vpp > 1,
            grad_dtype=row["grad_reduce_dtype"] or "fp32",
            fp8_recipe="delayed" if row["precision"] == "fp8" else "none",
            implementation=IMPLEMENTATIONS["megatron-te"],
        )  # fmt: skip
        label = f"{row['model']}, {row['num_layers']} layers, {row['gpus']} GPUs"
        plan = megatron(sequence_parallel=True)
        yield row, Run(label, case, plan, 1e3 * float(row["seconds_per_step"]))
