"""Model FLOPs against Megatron-LM's formula, written as it writes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.build import build_schedule
from simulator.case import Case
from simulator.implementation import IMPLEMENTATIONS
from simulator.model_flops import executed_flops, flops_per_gpu, mfu, model_flops
from simulator.ops import Attention, Gemm
from simulator.plan import MEGATRON
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Recompute, Workload
from tests.unit.simulator.cases import bundled_profile


def case_of(name: str, tp: int = 8, dp: int = 1) -> Case:
    workload = Workload(seq_length=2048, micro_batch_size=4, grad_accumulation=3)
    return Case(
        model=MODELS[name], workload=workload, cluster=ClusterSpec(tp=tp, dp=dp),
        profile=bundled_profile(),
    )  # fmt: skip


def long_case(
    name: str, length: int, recompute: Recompute = "none", cp: int = 1, layers: int = 0,
    implementation: str = "megatron-te",
) -> Case:  # fmt: skip
    workload = Workload(
        seq_length=length, micro_batch_size=1, recompute=recompute, recompute_layers=layers,
        implementation=IMPLEMENTATIONS[implementation],
    )  # fmt: skip
    model = replace(MODELS[name], max_position_embeddings=length)
    return Case(
        model=model, workload=workload, cluster=ClusterSpec(tp=8, cp=cp), profile=bundled_profile()
    )


def megatrons(case: Case, padded_vocab: int) -> float:
    """What num_floating_point_operations in Megatron-LM's training.py adds up, term by term."""
    m, length = case.model, case.workload.seq_length
    queries, keys = m.head_dim * m.num_attention_heads, m.head_dim * m.num_key_value_heads
    qkv, core, out = m.hidden_size * (queries + 2 * keys), queries * length / 2 * 2, queries
    mlp = m.hidden_size * m.intermediate_size * (3 if m.gated_mlp else 2)
    layer = qkv + core + out * m.hidden_size + mlp
    return 3 * 2 * case.tokens * (m.num_hidden_layers * layer + m.hidden_size * padded_vocab)


@pytest.mark.parametrize(
    ("name", "vocab"), [("gpt3-13b", 51_200), ("llama3-8b", 129_024), ("llama2-70b", 32_768)]
)
def test_megatrons_formula(name: str, vocab: int) -> None:
    """With the vocabulary padded to a multiple of 128 × tp."""
    case = case_of(name)
    assert model_flops(case) == pytest.approx(megatrons(case, vocab), rel=1e-12)


def experts_of_megatron(case: Case, padded_vocab: int) -> float:
    """The same of a model with experts, latent attention and further predictions."""
    m, length, heads = case.model, case.workload.seq_length, case.model.num_attention_heads
    h, further, nope = m.hidden_size, m.num_nextn_predict_layers, m.head_dim - m.qk_rope_head_dim
    dense, experts = m.first_k_dense_replace, m.num_hidden_layers - m.first_k_dense_replace
    layers, experts = dense + experts + further, experts + further
    mlp = dense * m.intermediate_size
    mlp += experts * (m.moe_intermediate_size * m.num_experts_per_tok)
    mlp += experts * m.shared_expert_intermediate_size
    queries = m.q_lora_rank * (h + heads * m.head_dim + 1) if m.q_lora_rank else 0
    attention = (
        (queries or h * heads * m.head_dim)
        + m.kv_lora_rank * (h + heads * (nope + m.v_head_dim) + 1)
        + h * m.qk_rope_head_dim
        + heads * m.v_head_dim * h
        + length * heads * m.head_dim / 2
        + length * heads * m.v_head_dim / 2
    )
    edges = further * (3 * h + 2 * h * h) + h * padded_vocab * (further + 1)
    return case.tokens * (12 * h * mlp * 3 / 2 + 6 * layers * attention + 6 * edges)


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
@pytest.mark.parametrize("q_lora_rank", [1536, 0])
def test_megatrons_formula_of_active_experts(name: str, q_lora_rank: int) -> None:
    case = case_of(name)
    case = replace(case, model=replace(case.model, q_lora_rank=q_lora_rank))
    vocab = -(-case.model.vocab_size // 1024) * 1024
    assert model_flops(case) == pytest.approx(experts_of_megatron(case, vocab), rel=1e-12)


def test_experts_of_plain_attention_count_as_a_dense_mlp_of_their_width() -> None:
    case = case_of("mixtral-8x7b")
    wide = replace(case.model, num_experts=0, num_experts_per_tok=0, moe_intermediate_size=0)
    dense = replace(case, model=replace(wide, intermediate_size=2 * 14336))
    assert model_flops(case) == model_flops(dense) == megatrons(dense, 32_768)
    assert executed_flops(case) == executed_flops(dense)


@pytest.mark.parametrize(("layers", "dense", "experts"), [(0, 3, 6), (1, 2, 2), (4, 3, 5)])
def test_what_is_computed_again_is_of_the_layers_that_are(
    layers: int, dense: int, experts: int
) -> None:
    """Four stages of two layers, of which three are dense; one of each first, or all, again."""
    case = case_of("deepseek-v3")
    model = replace(case.model, num_hidden_layers=8)
    work = replace(case.workload, grad_accumulation=4)
    plain = replace(case, model=model, workload=work, cluster=ClusterSpec(tp=8, pp=4))
    full = replace(work, recompute="full", recompute_layers=layers)
    again = replace(plain, workload=full)
    core = 128 * (192 + 128) * 2048 / 2
    forward = dense * (model.linear_parameters + core)
    forward += experts * (model.active_linear_parameters + core)
    more = executed_flops(again) - executed_flops(plain)
    assert more == pytest.approx(2 * forward * plain.tokens)


@pytest.mark.parametrize(
    ("length", "cp", "by_hand"),
    # 32·(h·(6,144 + 4,096 + 3·14,336) + 4,096·length) + h·129,024, six times, times the tokens
    [(8_192, 1, 4.2180e14), (32_768, 2, 2.3206e15), (131_072, 8, 1.9415e16)],
)
def test_long_sequences_count_half_of_their_scores(length: int, cp: int, by_hand: float) -> None:
    case = long_case("llama3-8b", length, cp=cp)
    assert model_flops(case) == pytest.approx(by_hand, rel=1e-4)
    assert model_flops(case) == pytest.approx(megatrons(case, 129_024), rel=1e-12)


def test_what_is_executed_has_what_is_computed_again_and_unfused_scores() -> None:
    plain = long_case("gpt3-13b", 8_192)
    core = 2 * 40 * plain.model.hidden_size * 8_192 * plain.tokens  # half of the scores, forward
    forward = 2 * 40 * plain.model.linear_parameters * plain.tokens + core
    flops = model_flops(plain)

    def executed(recompute: Recompute, layers: int = 0, kernels: str = "megatron-te") -> float:
        return executed_flops(long_case("gpt3-13b", 8_192, recompute, 1, layers, kernels))

    assert executed("none") == pytest.approx(flops + core / 2)  # queries by keys in backward
    assert executed("full") == pytest.approx(flops + core / 2 + forward)
    assert executed("full", 10) == pytest.approx(flops + core / 2 + forward / 4)
    assert executed("selective") == pytest.approx(flops + 3 * core / 2)
    assert executed("none", kernels="megatron-2022") == pytest.approx(flops + 3 * core)
    assert model_flops(long_case("gpt3-13b", 8_192, "full")) == flops


@pytest.mark.parametrize("implementation", ["domino-tune", "megatron-2022"])
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_what_is_executed_is_what_the_schedule_holds(
    recompute: Recompute, implementation: str
) -> None:
    workload = Workload(
        seq_length=256, micro_batch_size=2, recompute=recompute,
        implementation=IMPLEMENTATIONS[implementation],
    )  # fmt: skip
    model, cluster = replace(MODELS["gpt3-1.3b"], num_hidden_layers=4), ClusterSpec(tp=4)
    case = Case(model=model, workload=workload, cluster=cluster, profile=bundled_profile())
    ops = build_schedule(model, workload, cluster, MEGATRON).ops()
    tensor_cores = [op.signature for op in ops if isinstance(op.signature, Gemm | Attention)]
    assert executed_flops(case) == pytest.approx(
        cluster.tp * sum(one.flops for one in tensor_cores), rel=1e-6
    )


def test_replicas_add_and_ranks_share() -> None:
    one, two = case_of("gpt3-13b"), case_of("gpt3-13b", dp=2)
    assert model_flops(two) == 2 * model_flops(one)
    assert flops_per_gpu(one, 10**9) == flops_per_gpu(two, 10**9) == model_flops(one) / 8


def test_mfu_is_over_the_dense_peak_of_the_dtype() -> None:
    case = case_of("gpt3-13b")
    second = 10**9
    peak = bundled_profile().machine.peak_tflops["bf16"] * 1e12
    assert mfu(case, second) == pytest.approx(model_flops(case) / 8 / peak)
    machine = replace(case.profile.machine, peak_tflops={})
    assert mfu(replace(case, profile=replace(case.profile, machine=machine)), second) is None
