"""The fixed orders, token by token, as their papers draw them; two row slices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.issue_order import LayerOrder, is_cut, pieces
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.schedules import fixed_order

PAPER = SlicePlan(order="paper", wgrad="eager")
INTRA = SlicePlan(order="intra", wgrad="eager")


def words(tokens: str) -> list[str]:
    """``mlp.fc2.0:1`` -> ``mlp.fc2.0:1+0``."""
    return [f"{token}+0" for token in tokens.split()]


def texts(order: LayerOrder) -> tuple[list[str], list[str]]:
    return order.forward.to_strings(), order.backward.to_strings()


def test_paper() -> None:
    """Norms of both slices stand together, and so do their residuals; backward begins with 1."""
    forward, backward = texts(fixed_order(PAPER))
    assert forward == words(
        "attn.norm:0 attn.norm:1 "
        "attn.qkv:0 attn.core_attn:0 attn.proj.0:0 attn.qkv:1 attn.core_attn:1 attn.proj.0:1 "
        "attn.residual:0 mlp.norm:0 attn.residual:1 mlp.norm:1 "
        "mlp.fc1:0 mlp.act:0 mlp.fc2.0:0 mlp.fc1:1 mlp.act:1 mlp.fc2.0:1 "
        "mlp.residual:0 mlp.residual:1"
    )
    assert backward == words(
        "mlp.residual_bwd:1 mlp.residual_bwd:0 "
        "mlp.fc2_dgrad:1 mlp.fc2_wgrad:1 mlp.act_bwd:1 mlp.fc1_dgrad.0:1 mlp.fc1_wgrad:1 "
        "mlp.fc2_dgrad:0 mlp.fc2_wgrad:0 mlp.act_bwd:0 mlp.fc1_dgrad.0:0 mlp.fc1_wgrad:0 "
        "mlp.norm_bwd:1 attn.residual_bwd:1 mlp.norm_bwd:0 attn.residual_bwd:0 "
        "attn.proj_dgrad:1 attn.proj_wgrad:1 attn.core_attn_bwd:1 attn.qkv_dgrad.0:1 "
        "attn.qkv_wgrad:1 "
        "attn.proj_dgrad:0 attn.proj_wgrad:0 attn.core_attn_bwd:0 attn.qkv_dgrad.0:0 "
        "attn.qkv_wgrad:0 "
        "attn.norm_bwd:1 attn.norm_bwd:0"
    )


def test_intra() -> None:
    """Slices take turns block by block; cut GEMMs are issued piece by piece."""
    plan = replace(INTRA, attn_col_slices=2, attn_dgrad_slices=1, mlp_dgrad_slices=2)
    forward, backward = texts(fixed_order(plan))
    assert forward == words(
        "attn.norm:0 attn.qkv:0 attn.core_attn:0 attn.proj.0:0 attn.proj.1:0 "
        "attn.norm:1 attn.qkv:1 attn.core_attn:1 attn.proj.0:1 attn.proj.1:1 "
        "attn.residual:0 mlp.norm:0 mlp.fc1:0 mlp.act:0 mlp.fc2.0:0 "
        "attn.residual:1 mlp.norm:1 mlp.fc1:1 mlp.act:1 mlp.fc2.0:1 "
        "mlp.residual:0 mlp.residual:1"
    )
    assert backward == words(
        "mlp.residual_bwd:0 mlp.fc2_dgrad:0 mlp.fc2_wgrad:0 mlp.act_bwd:0 mlp.fc1_dgrad.0:0 "
        "mlp.fc1_dgrad.1:0 mlp.fc1_wgrad:0 "
        "mlp.residual_bwd:1 mlp.fc2_dgrad:1 mlp.fc2_wgrad:1 mlp.act_bwd:1 mlp.fc1_dgrad.0:1 "
        "mlp.fc1_dgrad.1:1 mlp.fc1_wgrad:1 "
        "mlp.norm_bwd:0 attn.residual_bwd:0 attn.proj_dgrad:0 attn.proj_wgrad:0 "
        "attn.core_attn_bwd:0 attn.qkv_dgrad.0:0 attn.qkv_wgrad:0 "
        "mlp.norm_bwd:1 attn.residual_bwd:1 attn.proj_dgrad:1 attn.proj_wgrad:1 "
        "attn.core_attn_bwd:1 attn.qkv_dgrad.0:1 attn.qkv_wgrad:1 "
        "attn.norm_bwd:0 attn.norm_bwd:1"
    )


def backward_mlp(plan: SlicePlan) -> list[str]:
    """The backward tokens of the MLP block up to its norms."""
    tokens = texts(fixed_order(plan))[1]
    return tokens[: tokens.index("mlp.norm_bwd:0+0")]


def test_deferred_and_merged_weight_gradients() -> None:
    """Deferred: after the slice's last dgrad. Merged: one for all, after the block's last."""
    assert backward_mlp(replace(INTRA, wgrad="deferred", mlp_dgrad_slices=2)) == words(
        "mlp.residual_bwd:0 mlp.fc2_dgrad:0 mlp.act_bwd:0 mlp.fc1_dgrad.0:0 mlp.fc1_dgrad.1:0 "
        "mlp.fc2_wgrad:0 mlp.fc1_wgrad:0 "
        "mlp.residual_bwd:1 mlp.fc2_dgrad:1 mlp.act_bwd:1 mlp.fc1_dgrad.0:1 mlp.fc1_dgrad.1:1 "
        "mlp.fc2_wgrad:1 mlp.fc1_wgrad:1"
    )
    assert backward_mlp(replace(INTRA, merge_wgrad=True)) == words(
        "mlp.residual_bwd:0 mlp.fc2_dgrad:0 mlp.act_bwd:0 mlp.fc1_dgrad.0:0 "
        "mlp.residual_bwd:1 mlp.fc2_dgrad:1 mlp.act_bwd:1 mlp.fc1_dgrad.0:1 "
        "mlp.fc2_wgrad:all mlp.fc1_wgrad:all"
    )


@pytest.mark.parametrize("plan", [MEGATRON, NO_COMM, replace(PAPER, row_slices=1)])
def test_an_unsliced_plan_has_megatrons_order(plan: SlicePlan) -> None:
    whole = replace(INTRA, row_slices=1)
    assert fixed_order(plan) == fixed_order(whole)
    assert texts(fixed_order(plan))[0] == words(
        "attn.norm:0 attn.qkv:0 attn.core_attn:0 attn.proj.0:0 "
        "attn.residual:0 mlp.norm:0 mlp.fc1:0 mlp.act:0 mlp.fc2.0:0 mlp.residual:0"
    )


def test_what_may_be_cut() -> None:
    plan = SlicePlan(attn_col_slices=2, mlp_col_slices=4, attn_dgrad_slices=8, mlp_dgrad_slices=16)
    counts = {
        ("attn", "proj"): 2, ("mlp", "fc2"): 4, ("attn", "qkv_dgrad"): 8, ("mlp", "fc1_dgrad"): 16,
    }  # fmt: skip
    assert {key: pieces(plan, *key) for key in counts} == counts
    assert all(is_cut(*key) for key in counts)
    for block, fragment in (
        ("attn", "qkv"),
        ("attn", "proj_dgrad"),
        ("mlp", "fc1"),
        ("mlp", "act"),
    ):
        assert not is_cut(block, fragment)
