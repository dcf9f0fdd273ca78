"""Random cases: models of both families, workloads, clusters and plans that fit them."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Final

from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.contention import SizeContention
from simulator.cost import CostModel, Factors
from simulator.cpu_hosts import IdleLane, SkewFit, SkewRow
from simulator.dtypes import MOMENTS_DTYPES, MomentsDtype
from simulator.errors import InputError
from simulator.implementation import IMPLEMENTATIONS, KEYS, NAMES, Implementation
from simulator.lookup import Provenance
from simulator.modules import OF_EXPERTS, RECOMPUTE_MODULES
from simulator.plan import MEGATRON, NO_COMM, SLICE_BALANCES, Order, SlicePlan, WgradPlacement
from simulator.profile import Profile, SkewSection
from simulator.specs import (
    CP_COMM,
    DATA_PARALLEL,
    MOE_DISPATCHERS,
    ClusterSpec,
    ModelSpec,
    Workload,
)

KINDS: Final = (
    "megatron", "no_comm", "intra eager", "intra deferred", "inter eager", "inter deferred",
    "paper eager", "paper deferred", "greedy fill",
)  # fmt: skip
"""Every strategy, order and weight-gradient placement there is."""


@cache
def bundled_profile() -> Profile:
    """The profile that random cases are costed with; its power holds nothing."""
    known = load_profile("h100-dgx")
    peaks = {**known.machine.peak_tflops, "mxfp8": 1978.9, "nvfp4": 3957.8}
    return replace(known, power=None, machine=replace(known.machine, peak_tflops=peaks))


@cache
def hot_profile() -> Profile:
    """The bundled profile on GPUs that power holds far below their boost clock."""
    power = load_profile("h100-dgx").power
    assert power is not None
    return replace(bundled_profile(), power=replace(power, cap_w=450.0))


@cache
def uneven_profile() -> Profile:
    """The bundled profile on ranks that are not equally fast, with contention by message size and
    lanes that save and pay something after a pause."""
    known = bundled_profile()
    assert known.contention is not None
    families = ("gemm", "attention", "pointwise")
    by_size = tuple(
        SizeContention(size, dict.fromkeys(families, compute), collective)
        for size, compute, collective in (
            (1 << 12, 1.3, 1.9),
            (1 << 20, 1.1, 1.2),
            (1 << 25, 1.4, 1.1),
        )
    )
    law = replace(known.contention, fit=replace(known.contention.fit, by_size=by_size))
    rows = (SkewRow(20.0, 3.0), SkewRow(300.0, 9.0), SkewRow(5000.0, 50.0))
    beside = (SkewRow(60.0, 20.0), SkewRow(2000.0, 240.0))
    skew = SkewFit(slowest_factor=1.07, rows=rows, beside=beside, error=0.02)
    section = SkewSection(fit=skew, provenance=Provenance(kind="assumed", source="a test"))
    assert known.collectives is not None
    idle = IdleLane(burst_bytes=1 << 20, burst_us=20.0, wake_us=4.0, error=0.1, samples=1)
    collectives = replace(known.collectives, idle_lane=idle)
    return replace(known, contention=law, skew=section, collectives=collectives)


@cache
def cost_model(contention: float, cuda_graph: bool, uneven: bool = False) -> CostModel:
    """Shared cost models, so that look-ups are made once."""
    profile = uneven_profile() if uneven else bundled_profile()
    factors = Factors(contention=contention)
    return CostModel(profile, factors=factors, cuda_graph=cuda_graph)


def with_cost(case: Case, cost: CostModel) -> Case:
    """``case`` on the machine of ``cost``, priced by this very model."""
    made = replace(case, profile=cost.profile, factors=cost.change.factors)
    made.__dict__["cost"] = cost
    return made


def random_model(rng: random.Random, tp: int, layers: int) -> ModelSpec:
    """A GPT or a Llama whose heads and ffn divide by ``tp``; sizes are no powers of two."""
    kv_heads = tp * rng.choice((1, 1, 2, 3))
    gpt = rng.random() < 0.5
    heads = kv_heads if gpt else kv_heads * rng.choice((1, 2, 8))
    hidden = rng.choice((48, 240, 768, 1536, 2304, 5120))
    plain = ModelSpec(
        name="random", num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=rng.choice((8, 64, 80, 128)),
        intermediate_size=tp * rng.choice((7, 96, 500, 1376)),
        vocab_size=rng.choice((11, 1000, 32000, 50257)), max_position_embeddings=4096,
    )  # fmt: skip
    if gpt:
        return with_extras(replace(plain, hidden_dropout=rng.choice((0.0, 0.1))), tp)
    llama = replace(
        plain, hidden_act="silu", gated_mlp=rng.random() < 0.8, norm="rmsnorm",
        position_embedding="rope", tie_word_embeddings=rng.random() < 0.3, attention_bias=False,
        mlp_bias=False,
    )  # fmt: skip
    return with_extras(llama, tp)


def with_extras(model: ModelSpec, tp: int) -> ModelSpec:
    """``model``, sometimes with features of Qwen3 and Gemma 2, or with fewer kv heads than ranks.

    The choice is seeded by the model alone, so the rest of a random case stays the same.
    """
    rng = random.Random(repr(model))
    norms = {name: rng.random() < 0.2 for name in ("qk_norm", "post_norm", "scaled_embeddings")}
    caps = {
        name: 30.0 * (rng.random() < 0.15)
        for name in ("attn_logit_softcapping", "final_logit_softcapping")
    }
    kv_heads = model.num_key_value_heads
    if rng.random() < 0.2:
        kv_heads = rng.choice([n for n in range(1, tp + 1) if tp % n == 0])
    return replace(model, **norms, **caps, num_key_value_heads=kv_heads)  # type: ignore[arg-type]


def random_modules(model: ModelSpec, workload: Workload) -> dict[str, Any]:
    """Modules that are recomputed, for most of the selective workloads and some of the others. The
    choice is seeded by the model alone."""
    rng = random.Random(repr(model) + "recompute_modules")
    if workload.recompute not in ("none", "selective") or rng.random() < 0.3:
        return {}
    absent = set[str]() if model.num_experts else {*OF_EXPERTS}
    if not model.kv_lora_rank:
        absent.add("mla_up_proj")
    if workload.fp8_recipe == "delayed":
        absent |= {"moe_act", "layernorm"}
    if workload.moe_shared_expert_overlap:
        absent.add("shared_experts")
    found = [name for name in RECOMPUTE_MODULES if name not in absent and rng.random() < 0.4]
    if "moe" in found:
        found = [name for name in found if name not in ("moe_act", "shared_experts")]
    return {"recompute": "selective", "recompute_modules": tuple(found)} if found else {}


def random_moments(model: ModelSpec) -> MomentsDtype:
    """A dtype of moments. The choice is seeded by the model alone."""
    return random.Random(repr(model) + "moments_dtype").choice(MOMENTS_DTYPES)


def random_layers(model: ModelSpec) -> int:
    """How many layers are recomputed, 0 (all) for half of the models."""
    rng = random.Random(repr(model) + "recompute_layers")
    return rng.choice((0, rng.randint(1, model.num_hidden_layers)))


def random_implementation(model: ModelSpec) -> Implementation:
    """Our runtime's kernels or another framework's, some keys flipped. The choice is seeded by the
    model alone, so the rest of a random case stays the same."""
    rng = random.Random(repr(model) + "implementation")
    named = IMPLEMENTATIONS[rng.choice(("domino-tune", *NAMES))]
    turned: dict[str, Any] = {
        key: not getattr(named, key)
        for key in KEYS
        if isinstance(getattr(named, key), bool) and rng.random() < 0.1
    }
    algo = rng.choice((named.nccl_algo, "ring"))
    return replace(named, nccl_algo=algo, **turned)


def random_cluster(rng: random.Random) -> ClusterSpec:
    """One node, a part of it, or several; one replica or more."""
    tp, dp = rng.choice(((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (1, 4), (8, 2), (16, 1)))
    return ClusterSpec(tp=tp, dp=dp)


def random_case(rng: random.Random, *, layers: int, micros: int, cost: CostModel) -> Case:
    """A case of at most ``layers`` layers and ``micros`` micro-batches, with ``cost``."""
    cluster = random_cluster(rng)
    workload = Workload(
        seq_length=rng.choice((1, 64, 512, 1024)), micro_batch_size=rng.randint(1, 9),
        grad_accumulation=rng.randint(1, micros),
    )  # fmt: skip
    model = random_model(rng, cluster.tp, rng.randint(1, layers))
    workload = replace(
        workload, data_parallel=rng.choice(DATA_PARALLEL),
        overlap_grad_reduce=rng.random() < 0.7, overlap_param_gather=rng.random() < 0.7,
        recompute=rng.choice(("none", "none", "selective", "full")),
        implementation=random_implementation(model),
    )  # fmt: skip
    workload = replace(workload, moments_dtype=random_moments(model))
    if workload.recompute == "full" and _shards(workload, cluster) and rng.random() < 0.5:
        workload = replace(workload, recompute="per-op")
    if workload.recompute in ("full", "selective"):
        workload = replace(workload, recompute_layers=random_layers(model))
    workload = replace(workload, **random_quantization(model, workload))
    model, workload, cluster = with_experts(model, workload, cluster)
    workload = replace(workload, **random_modules(model, workload))
    case = Case(model=model, workload=workload, cluster=cluster, profile=cost.profile)
    return with_cost(in_context(case), cost)


def with_experts(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec
) -> tuple[ModelSpec, Workload, ClusterSpec]:
    """The job with experts in most of the models that can have some, and then in half of them
    with latent attention. The choice is seeded by the model alone."""
    rng = random.Random(repr(model) + "experts")
    plain = model.gated_mlp and not (model.post_norm or model.attention_bias)
    shards = workload.seq_length % cluster.tp == 0
    other = workload.recompute == "per-op" or workload.data_parallel == "fsdp"
    if rng.random() > 0.7 or not plain or not shards or other:
        return model, workload, cluster
    etp = rng.choice([n for n in (1, 2, 4) if cluster.tp % n == 0])
    ep = rng.choice([n for n in (1, 2, 4, 8) if cluster.stage_ranks % (n * etp) == 0])
    model = replace(
        model, num_experts=ep * rng.choice((1, 2, 6)), num_experts_per_tok=1,
        moe_intermediate_size=etp * rng.choice((32, 96)),
        shared_expert_intermediate_size=cluster.tp * rng.choice((0, 0, 48)),
        first_k_dense_replace=rng.randint(0, min(2, model.num_hidden_layers - 1)),
        num_nextn_predict_layers=rng.choice((0, 0, 1)),
        swiglu_limit=random.Random(repr(model) + "limit").choice((0.0, 0.0, 7.0)),
    )  # fmt: skip
    model = replace(model, num_experts_per_tok=rng.randint(1, min(8, model.num_experts)))
    heads = model.num_attention_heads
    if heads % cluster.tp == 0 and rng.random() < 0.5 and not model.qk_norm:
        model = replace(
            model, num_key_value_heads=heads, head_dim=48, v_head_dim=32,
            qk_rope_head_dim=16, kv_lora_rank=64, q_lora_rank=rng.choice((0, 96)),
        )  # fmt: skip
    workload = replace(
        workload,
        moe_dispatcher=rng.choice(MOE_DISPATCHERS if ep > 1 else MOE_DISPATCHERS[:2]),
        moe_imbalance=rng.choice((1.0, 1.5)) if ep > 1 else 1.0,
        moe_shared_expert_overlap=rng.random() < 0.5 and model.shared_expert_intermediate_size > 0,
    )
    return model, workload, replace(cluster, ep=ep, etp=etp)


def random_quantization(model: ModelSpec, workload: Workload) -> dict[str, Any]:
    """Quantized layers for a fifth of the models, some of them with ends in BF16. The choice is
    seeded by the model alone, so the rest of a random case stays the same."""
    rng = random.Random(repr(model) + "fp8_recipe")
    if rng.random() > 0.2 or workload.recompute == "per-op":
        return {}
    recipe = rng.choice(("delayed", "tensorwise", "blockwise", "mxfp8", "nvfp4"))
    found: dict[str, Any] = {"fp8_recipe": recipe, "fp8_param_gather": rng.random() < 0.5}
    if recipe != "delayed" and rng.random() < 0.5:
        first = rng.choice((0, 1))
        found["num_layers_at_start_in_bf16"] = first
        last = min(rng.choice((0, 1, 2)), model.num_hidden_layers - first)
        found["num_layers_at_end_in_bf16"] = last
    return found


def in_context(case: Case) -> Case:
    """``case``, a fifth of the time with context parallelism, where that fits it."""
    rng = random.Random(repr((case.model, case.workload)) + "context")
    cp, how = rng.choice((2, 4)), rng.choice(CP_COMM)
    if rng.random() > 0.2:
        return case
    with suppress(InputError):
        return replace(
            case, cluster=replace(case.cluster, cp=cp), workload=replace(case.workload, cp_comm=how)
        )
    return case


def random_cost(rng: random.Random) -> CostModel:
    """Eager or under CUDA graphs; contention off, as the profile has it, or twice that; half of
    them with skew and contention by size."""
    return cost_model(rng.choice((0.0, 1.0, 2.0)), rng.random() < 0.5, rng.random() < 0.5)


def random_plan(rng: random.Random, case: Case, kind: str) -> SlicePlan:
    """A plan of ``kind`` that fits the case; unsliced where the batch is one sequence. Half of
    those that can have sequence parallelism."""
    plan = _random_cut(rng, case, kind)
    can = case.workload.seq_length // case.cluster.cp % case.cluster.tp == 0
    needs = case.workload.recompute == "per-op" or case.model.num_experts > 0
    shards = can and case.cluster.tp > 1 and (needs or rng.random() < 0.5)
    return along_sequences(replace(plan, sequence_parallel=shards), case)


def _shards(workload: Workload, cluster: ClusterSpec) -> bool:
    """Whether ranks can share the tokens, as recomputation per op has it."""
    return cluster.tp > 1 and workload.seq_length % cluster.tp == 0


def along_sequences(plan: SlicePlan, case: Case) -> SlicePlan:
    """``plan``, a third of the time with slices of sequences, where these are long enough."""
    rng = random.Random(repr((plan, case.model, case.workload)))
    if case.cluster.cp > 1:
        return plan
    most = case.workload.seq_length // (case.cluster.tp if plan.sequence_parallel else 1)
    if plan.strategy != "domino" or plan.order == "paper" or most < 2 or rng.random() > 1 / 3:
        return plan
    rows = rng.randint(2, min(4, most)) if plan.order != "inter" else 2
    balance = rng.choice(SLICE_BALANCES)
    return replace(plan, row_slices=rows, slice_dim="sequence", slice_balance=balance)


def _random_cut(rng: random.Random, case: Case, kind: str) -> SlicePlan:
    if kind in ("megatron", "no_comm"):
        return MEGATRON if kind == "megatron" else NO_COMM
    order, wgrad = kind.split()
    merged = (rng.random() < 0.3) & (case.workload.fp8_recipe == "none")
    merged &= case.model.num_experts == 0
    most = case.workload.micro_batch_size
    if order in ("inter", "paper"):
        return _plan(order, wgrad, min(2, most), merged)
    pieces = [p for p in (1, 1, 1, 2, 3, 4, 8) if case.model.hidden_size % p == 0]
    plan = _plan(order, wgrad, rng.randint(1, min(4, most)), merged)
    columns = [rng.choice(pieces) for _ in range(4)]
    if case.model.kv_lora_rank:
        columns[2] = 1
    return replace(
        plan, attn_col_slices=columns[0], mlp_col_slices=columns[1],
        attn_dgrad_slices=columns[2], mlp_dgrad_slices=columns[3],
    )  # fmt: skip


def _plan(order: str, wgrad: str, rows: int, merged: bool) -> SlicePlan:
    known_order: Order = order  # type: ignore[assignment]
    placement: WgradPlacement = wgrad  # type: ignore[assignment]
    return SlicePlan(row_slices=rows, order=known_order, wgrad=placement, merge_wgrad=merged)
