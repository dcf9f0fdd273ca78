"""What hosts spend on ops: by implementation, recipe, experts and graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.cost import CostModel, Factors
from simulator.implementation import IMPLEMENTATIONS
from simulator.issue_order import BACKWARD_FRAGMENTS, BLOCKS, FORWARD_FRAGMENTS
from simulator.launch import KERNEL_US, Launch, hosts_of
from simulator.modules import GRAPH_COPY, graph_entry, is_replayed
from simulator.ops import Attention, Collective, Fused, Gemm, Pointwise, Signature
from simulator.plan import MEGATRON
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload

ALL_SCOPES = ("attn", "moe_router", "moe_preprocess")
LINEAR = Gemm(4096, 4096, 4096)
EXPERTS = LINEAR._replace(m=512, groups=8)
SUM = Collective("all_reduce", 1 << 20, 1, 8)
OPS: tuple[Signature, ...] = (
    LINEAR, EXPERTS, LINEAR._replace(layout="wgrad"), Attention(1, 8, 8, 2048, 128), SUM,
    Pointwise("swiglu", 1, 1), Fused(LINEAR, SUM),
)  # fmt: skip


def launch(implementation: str = "megatron-te", **changes: float) -> Launch:
    hosts = hosts_of(implementation)
    return CostModel(load_profile("h100-dgx"), hosts=hosts, factors=Factors(**changes)).launch


@pytest.mark.parametrize("name", ["megatron-te", "megatron-2022", "torch"])
def test_every_op_costs_python_beside_its_launches(name: str) -> None:
    with_python, bare = launch(name), launch("domino-tune")
    assert all(with_python.of(op) > bare.of(op) for op in OPS)
    assert bare.hosts is None


def test_experts_cost_a_product_each_and_their_casts() -> None:
    plain = launch()
    one, eight = plain.of(EXPERTS._replace(groups=1)), plain.of(EXPERTS)
    assert eight - plain.of(EXPERTS._replace(groups=7)) > 6_000
    assert eight > one
    forward, dgrad, wgrad = (
        EXPERTS,
        EXPERTS._replace(layout="dgrad"),
        EXPERTS._replace(layout="wgrad"),
    )
    for gemm, each_us in ((forward, 6), (dgrad, 3), (wgrad, 0)):
        assert plain.of(gemm._replace(dtype="fp8_tensor")) > plain.of(gemm) + 8_000 * each_us
    cast = Pointwise("fp8_cast", 1, 1)
    assert plain.of(cast._replace(kernels=32)) == 32 * plain.of(cast)


def test_layers_of_transformer_engine_cost_what_was_measured() -> None:
    """Python of a call, us, of version 2.11.0: within 12 %."""
    measured = {
        (1, "bf16"): (29, 23), (1, "fp8_tensor"): (64, 51), (2, "bf16"): (38, 32),
        (2, "fp8_tensor"): (80, 71), (16, "bf16"): (74, 101), (16, "fp8_tensor"): (238, 224),
    }  # fmt: skip
    hosts = hosts_of("megatron-te")
    assert hosts is not None
    for (groups, dtype), (forward, backward) in measured.items():
        gemm = LINEAR._replace(groups=groups, dtype=dtype)
        dgrad, wgrad = (hosts.of(gemm._replace(layout=way)) for way in ("dgrad", "wgrad"))
        assert hosts.of(gemm).python_us == pytest.approx(forward, rel=0.12)
        assert dgrad.plus(wgrad).python_us == pytest.approx(backward, rel=0.12)


def test_a_slower_host_spends_more_on_both() -> None:
    usual, slow = launch(), launch(host_speed=0.5)
    for op in OPS:
        assert slow.of(op) == pytest.approx(2 * usual.of(op), abs=2)
    drawn = usual.off(2.0, 1.0)
    assert drawn.of(LINEAR) == pytest.approx(2 * usual.of(LINEAR), abs=2)
    assert drawn.key != usual.key


def test_what_our_runtime_measured_is_not_what_others_launch() -> None:
    """Its costs hold its own Python."""
    ours = load_profile("h200-sxm")
    others = CostModel(ours, hosts=hosts_of("megatron-te")).launch
    assert others.cost_ns == {kind: round(1000 * us) for kind, us in KERNEL_US.items()}
    assert others.source == "assumed"
    assert CostModel(ours).launch.source == "measured"


def test_hosts_that_compute_cost_what_their_profile_says() -> None:
    section = load_profile("h100-dgx").launch
    assert section is not None
    profile = replace(load_profile("h100-dgx"), launch=replace(section, mode="inline"))
    plain, told = (CostModel(profile, hosts=one).launch for one in (None, hosts_of("torch")))
    assert [plain.of(op) for op in OPS[:-1]] == [told.of(op) for op in OPS[:-1]]


def test_graphs_replay_parts_of_layers() -> None:
    assert is_replayed("attn.qkv_dgrad", ("attn",), experts=False)
    assert is_replayed("mlp.topk_bwd", ("moe_router",), experts=True)
    assert not is_replayed("mlp.norm", ("moe_router",), experts=False)
    assert not is_replayed("mlp.fc1", ALL_SCOPES, experts=True)
    assert launch().of(LINEAR, replayed=True) < launch().of(LINEAR) / 10


def test_a_graph_is_entered_once_each_way() -> None:
    def entries(scopes: tuple[str, ...], *, experts: bool) -> dict[str, str]:
        fragments = (
            (block, name) for kinds in (FORWARD_FRAGMENTS, BACKWARD_FRAGMENTS)
            for block in BLOCKS for name in kinds[block]
        )  # fmt: skip
        found = {
            f"{block}.{name}": graph_entry(block, name, scopes, experts=experts)
            for block, name in fragments
        }
        return {name: way for name, way in found.items() if way}

    alone = {"attn.norm": "forward", "attn.residual_bwd": "backward"}
    assert entries(("attn",), experts=True) == entries(ALL_SCOPES, experts=False) == alone
    assert entries(ALL_SCOPES, experts=True) == {"attn.norm": "forward", "mlp.norm_bwd": "backward"}
    router = {"mlp.norm": "forward", "mlp.norm_bwd": "backward"}
    assert entries(("moe_router",), experts=True) == router
    assert entries((), experts=True) == entries(("moe_router",), experts=False) == {}
    assert not is_replayed(f"attn.{GRAPH_COPY}", ("attn",), experts=False)


def case(**changes: object) -> Case:
    work = Workload(
        seq_length=256, micro_batch_size=1, grad_accumulation=8,
        implementation=IMPLEMENTATIONS["megatron-te"],
    )  # fmt: skip
    return Case(
        model=replace(MODELS["gpt3-1.3b"], num_hidden_layers=8),
        cluster=ClusterSpec(tp=1),
        profile=load_profile("h100-dgx"),
        workload=replace(work, **changes),  # type: ignore[arg-type]
    )


def test_small_layers_wait_for_their_host() -> None:
    """And graphs of attention, a faster host or one of a whole iteration take that away."""
    usual = case()
    parts = case(cuda_graph_scope=("attn",))
    fast = replace(usual, factors=Factors(host_speed=4.0))
    graph = replace(usual, cluster=replace(usual.cluster, cuda_graph=True))
    times = [predict(one, MEGATRON).makespan_ns for one in (usual, parts, fast, graph)]
    assert times[0] > times[1] > times[3]
    assert times[0] > times[2] >= times[3]
