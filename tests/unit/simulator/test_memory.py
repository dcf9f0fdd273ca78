"""Peak memory from value lifetimes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.build import build_schedule
from simulator.case import Case
from simulator.dtypes import Dtype
from simulator.greedy import order_of
from simulator.implementation import IMPLEMENTATIONS, changed
from simulator.memory import live_peaks, peak_bytes, peak_memory, stage_memory, static_memory
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.schedule import Schedule
from simulator.sharding import padded_vocab_size
from simulator.specs import ClusterSpec, Recompute, Workload
from tests.unit.simulator.cases import bundled_profile, cost_model, with_cost
from tests.unit.simulator.memory_checks import check_peak_is_brute_force


def gpt_case(grad_accumulation: int = 1) -> Case:
    workload = Workload(seq_length=1024, micro_batch_size=8, grad_accumulation=grad_accumulation)
    return with_cost(
        Case(
            model=MODELS["gpt3-13b"],
            workload=workload,
            cluster=ClusterSpec(tp=8),
            profile=bundled_profile(),
        ),
        cost_model(1.0, False),
    )


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("block", range(0, 120, 40))
def test_peak_is_the_brute_force_over_the_whole_stack(block: int) -> None:
    for seed in range(block, block + 40):
        check_peak_is_brute_force(seed)


@pytest.mark.parametrize(("dtype", "per_parameter"), [("bf16", 18), ("fp32", 16), ("fp64", 20)])
def test_static_memory_is_weights_gradients_and_adam(dtype: Dtype, per_parameter: int) -> None:
    case = gpt_case()
    case = replace(case, workload=replace(case.workload, dtype=dtype))
    static = static_memory(case, MEGATRON)
    assert static.buffers == 32 << 20
    parameters = sum(static[:3]) // per_parameter
    assert parameters * per_parameter == sum(static[:3])
    assert parameters == pytest.approx(case.model.parameters / 8, rel=0.02)


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({}, 12), ({"moments_dtype": "bf16"}, 2 + 4), ({"moments_dtype": "fp8"}, 2 + 2),
        ({"moments_dtype": "bf16", "fp8_recipe": "mxfp8"}, 4 + 4),
        ({"moments_dtype": "bf16", "dtype": "fp32"}, 4),
    ],
)  # fmt: skip
def test_what_adam_keeps_of_a_parameter(told: dict[str, Any], state: int) -> None:
    """A main parameter, or the 16 bits that its parameter lacks, and two moments."""
    case = gpt_case()
    case = replace(case, workload=replace(case.workload, **told))
    parameters = case.shapes(MEGATRON).held.whole
    assert static_memory(case, MEGATRON).optimizer == state * parameters


def test_saved_activations_of_a_layer_are_what_its_backward_reads() -> None:
    """Bytes per token and hidden element of one more layer, 2 a value and 1 a dropout mask:
    x, y with masks; two norms; qkv 3/8, core 1/8; fc1 4/8, before and after gelu."""
    case = gpt_case()
    deeper = replace(case, model=replace(case.model, num_hidden_layers=41))
    live = [peak_bytes(c, MEGATRON) - sum(static_memory(c, MEGATRON)) for c in (case, deeper)]
    unit = case.workload.tokens * case.model.hidden_size
    assert live[1] - live[0] == unit * (3 + 3 + 2 + 2 + 3 / 4 + 1 / 4 + 1 + 1)


def test_the_peak_by_category() -> None:
    """In the head all logits of this rank are alive, and what backward will read."""
    found = peak_memory(gpt_case(), MEGATRON)
    tokens, vocab = 8 * 1024, 51_200 // 8
    assert found.logits == tokens * vocab * 2
    assert sum(found) == peak_bytes(gpt_case(), MEGATRON)
    assert found._replace(activations=0, logits=0) == static_memory(gpt_case(), MEGATRON)


def test_accumulation_keeps_no_activations() -> None:
    assert peak_bytes(gpt_case(grad_accumulation=4), MEGATRON) == peak_bytes(gpt_case(), MEGATRON)


@pytest.mark.parametrize("micros", [2, 3, 7])
def test_gradients_made_beside_their_sum_count_from_the_second_micro_batch_on(micros: int) -> None:
    """Of few tokens the head's table takes most: its first gradient is the sum, the next is apart,
    in bf16. Beside it are 41 inputs with their masks, the head's input, and its gradient."""
    case = few_tokens(micros, "torch")
    hidden, table = case.model.hidden_size, padded_vocab_size(case.model, case.cluster) // 8
    found = peak_memory(case, MEGATRON)
    assert found.activations == 2 * table * hidden + 8 * hidden * (41 * 3 + 2 + 2)
    assert found.logits == 2 * table * 8
    assert sum(peak_memory(few_tokens(1, "torch"), MEGATRON)[3:5]) < 8 * hidden * 41 * 4


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("micros", [1, 2, 3])
def test_the_step_counts_after_any_number_of_micro_batches(micros: int, pp: int) -> None:
    """Of few tokens its copies take most, in fp32: of each layer's two norms, with a bias each, and
    of two biases behind sums, of the last norm, and the norm of all gradients."""
    case = few_tokens(micros, "domino-tune", pp=pp)
    found = stage_memory(case, replace(MEGATRON, sequence_parallel=True))
    vectors = [6 * 40 // pp] * pp
    vectors[-1] += 2
    held = [4 * case.model.hidden_size * count + 4 for count in vectors]
    assert [stage.activations for stage in found] == held


def few_tokens(micros: int, implementation: str, pp: int = 1) -> Case:
    """Return a case of 8 tokens, whose layers are computed again."""
    case = gpt_case()
    workload = replace(
        case.workload, seq_length=8, micro_batch_size=1, grad_accumulation=micros,
        recompute="full", implementation=IMPLEMENTATIONS[implementation],
    )  # fmt: skip
    return replace(case, workload=workload, cluster=ClusterSpec(tp=8, pp=pp))


def test_merged_weight_gradients_keep_more_in_backward() -> None:
    plan = SlicePlan(row_slices=4, order="intra", wgrad="eager")
    plain, merged = (backward_peak(each) for each in (plan, replace(plan, merge_wgrad=True)))
    assert merged > plain


def backward_peak(plan: SlicePlan) -> int:
    """Peak of live values after the head, in bytes."""
    case = gpt_case()
    schedule = build_schedule(case.model, case.workload, case.cluster, plan, order_of(case, plan))
    return live_peaks(schedule)[2].whole


@pytest.mark.parametrize(
    ("implementation", "change", "tp", "bytes_each"),
    [
        ("megatron-te", "true", 8, 2),
        ("megatron-te", "false", 8, 6),
        ("torch", "false", 1, 12),
        ("torch", "false", 8, 16),
    ],
)
def test_a_logit_takes_what_the_loss_of_the_implementation_makes_of_it(
    implementation: str, change: str, tp: int, bytes_each: int
) -> None:
    """Fused: the logit alone. Megatron-LM's own: an fp32 copy, overwritten in backward. PyTorch's:
    three tensors in fp32, four where ranks share the vocabulary, without the logits."""
    workload = Workload(
        seq_length=4096, micro_batch_size=1, recompute="full",
        implementation=changed(
            IMPLEMENTATIONS[implementation], (f"cross_entropy_loss_fusion={change}",)
        ),
    )  # fmt: skip
    case = Case(
        model=replace(MODELS["llama3-8b"], num_hidden_layers=2),
        workload=workload,
        cluster=ClusterSpec(tp=tp),
        profile=bundled_profile(),
    )
    logits = 4096 * padded_vocab_size(case.model, case.cluster) // tp
    assert peak_memory(case, MEGATRON).logits == bytes_each * logits


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_torch_gathers_once_and_keeps_all_tokens(recompute: Recompute) -> None:
    """DTensor's wgrads read what forward gathered; Megatron-LM keeps shares and gathers again."""
    kept, gathered = {}, {}
    for name in ("megatron-te", "torch"):
        less, more = (
            gpt_schedule(layers, implementation=IMPLEMENTATIONS[name], recompute=recompute)
            for layers in (40, 41)
        )
        kept[name] = live_peaks(more)[1].whole - live_peaks(less)[1].whole  # at the loss
        gathered[name] = {op.role for op in more.templates() if op.role.endswith(".ag_bwd")}
    assert gathered["torch"] == set()
    assert gathered["megatron-te"] == {"attn.norm.ag_bwd", "mlp.norm.ag_bwd", "head.norm.ag_bwd"}
    whole = gpt_case().workload.tokens * gpt_case().model.hidden_size * 2
    shares = whole // 8
    assert kept["torch"] - kept["megatron-te"] == (
        2 * (whole - shares) if recompute == "none" else 0
    )


def gpt_schedule(layers: int, **changes: Any) -> Schedule:
    """Return the schedule of Megatron-LM's plan with sequence parallelism."""
    case = gpt_case()
    return build_schedule(
        replace(case.model, num_hidden_layers=layers), replace(case.workload, **changes),
        case.cluster, replace(MEGATRON, sequence_parallel=True),
    )  # fmt: skip
