"""Quantized layers: casts, copies across, gathers in FP8, layers that stay in BF16."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from domino_tune.store.profiles import load_profile
from simulator.bounds import Bounds
from simulator.build import build_schedule
from simulator.case import Case
from simulator.dtypes import Fp8Recipe
from simulator.errors import InfeasiblePlanError, InputError
from simulator.greedy import order_of
from simulator.implementation import IMPLEMENTATIONS
from simulator.least_memory import KeptBytes, LeastBytes
from simulator.memory import held_parameters, peak_bytes
from simulator.ops import Collective, Gemm, Pointwise, Signature
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict, simulate
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload
from simulator.stack import stack

MODEL = replace(MODELS["llama3-8b"], num_hidden_layers=4)
JOB = Workload(seq_length=2048, micro_batch_size=4, implementation=IMPLEMENTATIONS["megatron-te"])
TP4 = ClusterSpec(tp=4)
SP, WHOLE = replace(MEGATRON, sequence_parallel=True), MEGATRON
HIDDEN = 2048 * 4 * MODEL.hidden_size


def case_of(quantization: Fp8Recipe, **changes: object) -> Case:
    """A case on H100s in this recipe."""
    workload = replace(JOB, fp8_recipe=quantization, **changes)  # type: ignore[arg-type]
    return Case(model=MODEL, workload=workload, cluster=TP4, profile=load_profile("h100-dgx"))


def ops_of(case: Case, plan: SlicePlan) -> Counter[tuple[str, Signature]]:
    """How often each signature occurs in an iteration."""
    schedule = build_schedule(case.model, case.workload, case.cluster, plan, order_of(case, plan))
    found: Counter[tuple[str, Signature]] = Counter()
    for part in schedule.parts:
        for segment in part.segments:
            for op in segment.templates:
                found[op.role, op.signature] += part.count * segment.count
    return found


def of_role(found: Counter[tuple[str, Signature]], role: str) -> list[Signature]:
    """The signatures that ops of a role have."""
    return [signature for name, signature in found if name == role]


def test_linears_multiply_in_fp8_and_nothing_else_does() -> None:
    gemms = Counter(
        {
            (role, signature.dtype): count
            for (role, signature), count in ops_of(case_of("tensorwise"), SP).items()
            if isinstance(signature, Gemm)
        }
    )
    assert {dtype for role, dtype in gemms if role.startswith("head.")} == {"bf16"}
    assert {dtype for role, dtype in gemms if not role.startswith("head.")} == {"fp8_tensor"}


@pytest.mark.parametrize(("recipe", "reads"), [("blockwise", 1), ("tensorwise", 2)])
def test_a_cast_reads_twice_where_it_looks_for_the_largest_number(
    recipe: Fp8Recipe, reads: int
) -> None:
    (cast,) = of_role(ops_of(case_of(recipe), WHOLE), "attn.norm.cast")
    assert isinstance(cast, Pointwise)
    assert cast.bytes_read == reads * 2 * HIDDEN
    assert cast.bytes_written == pytest.approx(2 * HIDDEN, rel=0.04)  # both copies, and scales


def test_with_sequence_parallelism_a_share_is_cast_and_gathered_in_fp8() -> None:
    found = ops_of(case_of("tensorwise"), SP)
    (cast,), (gather,) = (of_role(found, f"attn.norm.{what}") for what in ("cast", "ag"))
    assert isinstance(cast, Pointwise)
    assert isinstance(gather, Collective)
    assert cast.bytes_written == HIDDEN // 4
    assert gather.size_bytes == HIDDEN
    (turned,) = of_role(found, "attn.norm.ag_bwd.transpose")
    assert isinstance(turned, Pointwise)
    assert (turned.bytes_read, turned.bytes_written) == (HIDDEN, HIDDEN)
    (scatter,) = of_role(found, "attn.proj.rs")
    assert isinstance(scatter, Collective)
    assert scatter.size_bytes == 2 * HIDDEN


def test_scales_across_make_both_copies_before_the_gather() -> None:
    case = case_of("mxfp8")
    found = ops_of(case, SP)
    assert of_role(found, "attn.norm.ag_bwd.transpose") == []
    (gather,) = of_role(found, "attn.residual_bwd.ag")
    assert isinstance(gather, Collective)
    assert gather.size_bytes == pytest.approx(2 * HIDDEN * (1 + 1 / 32))


def test_delayed_scaling_lets_the_norm_write_fp8() -> None:
    found = ops_of(case_of("delayed"), SP)
    (norm,) = of_role(found, "attn.norm")
    assert isinstance(norm, Pointwise)
    assert norm.bytes_written * 2 == norm.bytes_read
    assert not of_role(found, "attn.norm.cast")
    own = case_of("delayed", implementation=IMPLEMENTATIONS["torch"])
    assert of_role(ops_of(own, SP), "attn.norm.cast")


def test_layers_at_the_ends_stay_in_bf16() -> None:
    ends = {"num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 2}
    case = case_of("tensorwise", **ends)
    runs = [(run.kind.fp8_recipe, run.layers) for run in stack(MODEL, case.workload)]
    assert runs == [("none", range(1)), ("tensorwise", range(1, 2)), ("none", range(2, 4))]
    found = ops_of(case, SP)
    counts = Counter(
        {
            signature.dtype: count
            for (role, signature), count in found.items()
            if role == "mlp.fc2" and isinstance(signature, Gemm)
        }
    )
    assert counts == {"bf16": 3, "fp8_tensor": 1}
    whole, none = (predict(case_of(one), SP).makespan_ns for one in ("tensorwise", "none"))
    assert whole < predict(case, SP).makespan_ns < none


def test_recomputed_layers_cast_again() -> None:
    case = case_of("tensorwise", recompute="full", recompute_layers=3)
    found = ops_of(case, SP)
    again = sum(count for (role, _), count in found.items() if role == "mlp.act.cast.again")
    assert again == 3


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "blockwise"])
def test_both_engines_agree(recipe: Fp8Recipe) -> None:
    plan = SlicePlan(row_slices=2, sequence_parallel=True, mlp_col_slices=2)
    case = case_of(recipe, grad_accumulation=2, num_layers_at_end_in_bf16=int(recipe != "delayed"))
    order = order_of(case, plan)
    assert predict(case, plan, order).makespan_ns == simulate(case, plan, order).makespan_ns


def test_weights_are_kept_twice_in_fp8_and_gathered_in_half() -> None:
    cluster = ClusterSpec(tp=4, dp=2)
    sizes, gathers = {}, {}
    for gathered in (False, True):
        case = replace(
            case_of("tensorwise", data_parallel="distributed-optimizer", fp8_param_gather=gathered),
            cluster=cluster,
        )
        shapes = case.shapes(SP)
        sizes[gathered] = held_parameters(case, shapes).parameters
        gathers[gathered] = shapes.dp_gather(shapes.layer_parameters).size_bytes
    count = case_of("tensorwise").shapes(SP).quantized_parameters
    assert sizes[False] - sizes[True] == 2 * count
    assert gathers[False] == 2 * gathers[True]


def test_blackwell_takes_operands_as_they_lie_where_a_tensor_has_one_scale() -> None:
    for recipe, copies in (("tensorwise", 1), ("blockwise", 2), ("mxfp8", 2)):
        case = replace(case_of(recipe), profile=load_profile("b200-sxm"))  # type: ignore[arg-type]
        assert case.profile.machine.fp8_any_layout
        shapes = case.shapes(WHOLE)
        schedule = build_schedule(
            case.model, case.workload, case.cluster, WHOLE, order_of(case, WHOLE),
            fp8_any_layout=True,
        )  # fmt: skip
        ops = {op.role: op.signature for op in schedule.ops()}
        cast = ops["mlp.act.cast"]
        assert isinstance(cast, Pointwise)
        element = {"tensorwise": 1, "blockwise": 1 + 4 / 128, "mxfp8": 1 + 1 / 32}[recipe]
        width = shapes.tokens(0) * shapes.width("act")
        assert cast.bytes_written == pytest.approx(copies * element * width)
        assert not any(role.endswith(".transpose") for role in ops)
        kept = held_parameters(case, shapes).parameters
        kept -= shapes.held.whole * case.workload.dtype_bytes
        assert kept == pytest.approx(copies * element * shapes.quantized_parameters)


def test_sharded_parameters_are_cast_a_layer_at_a_time() -> None:
    case = replace(case_of("tensorwise", data_parallel="fsdp"), cluster=ClusterSpec(tp=4, dp=2))
    shapes = case.shapes(SP)
    layers = case.model.num_hidden_layers
    whole = replace(case, workload=replace(case.workload, data_parallel="distributed-optimizer"))
    of_all = held_parameters(whole, whole.shapes(SP)).parameters
    of_all -= shapes.held.whole * case.workload.dtype_bytes
    gathered = shapes.edge_parameters + 2 * shapes.layer_parameters
    of_two = held_parameters(case, shapes).parameters
    of_two -= min(shapes.held.whole, gathered) * case.workload.dtype_bytes
    assert of_two * layers == of_all * 2


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"num_layers_at_start_in_bf16": 1}, "need a recipe"),
        ({"fp8_recipe": "tensorwise", "dtype": "fp16"}, "--dtype bf16"),
        ({"fp8_recipe": "delayed", "num_layers_at_end_in_bf16": 1}, "Delayed scaling"),
        ({"fp8_recipe": "tensorwise", "recompute": "per-op"}, "per-op"),
        ({"fp8_recipe": "e4m3"}, "fp8_recipe"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        replace(JOB, **changes)  # type: ignore[arg-type]


def test_one_gemm_over_all_slices_is_refused() -> None:
    plan = SlicePlan(row_slices=2, merge_wgrad=True, sequence_parallel=True)
    with pytest.raises(InfeasiblePlanError, match="scales of their own"):
        case_of("tensorwise").shapes(plan)


def test_a_stack_of_layers_that_all_stay_in_bf16_is_one_without_a_recipe() -> None:
    whole, plain = case_of("tensorwise", num_layers_at_start_in_bf16=4), case_of("none")
    assert predict(whole, SP) == predict(plain, SP)
    assert Bounds(whole).lower_bound_ns(SP) == Bounds(plain).lower_bound_ns(SP)


@pytest.mark.parametrize("ends", [(4, 0), (3, 0), (0, 4), (0, 3), (4, 4)])
@pytest.mark.parametrize("vpp", [1, 2])
def test_bounds_hold_where_whole_stages_stay_in_bf16(ends: tuple[int, int], vpp: int) -> None:
    case = Case(
        model=replace(MODEL, num_hidden_layers=16 * vpp),
        workload=replace(
            JOB, fp8_recipe="tensorwise", micro_batch_size=2, grad_accumulation=8,
            num_layers_at_start_in_bf16=ends[0], num_layers_at_end_in_bf16=ends[1],
        ),
        cluster=ClusterSpec(tp=4, pp=4, vpp=vpp),
        profile=load_profile("h100-dgx"),
    )  # fmt: skip
    bounds = Bounds(case)
    for plan in (SP, SlicePlan()):
        assert bounds.lower_bound_ns(plan) <= predict(case, plan).makespan_ns
    assert LeastBytes(case, SP, KeptBytes()).of(case.workload) <= peak_bytes(case, SP)
