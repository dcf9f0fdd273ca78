"""``inter``: DeepSpeed's Domino order at commit edaa722, for two row slices.

The bias + dropout + residual of a slice follows the next GEMM of the other slice, which hides the
all-reduce. This crosses layers: the next layer's first GEMMs hide the MLP's last all-reduce.
"""

from __future__ import annotations

from simulator.issue_order import IssueOrder, LayerOrder, parse_token, place_wgrads
from simulator.plan import SlicePlan

_FORWARD = """
attn.qkv:0+0 attn.core_attn:0+0     mlp.residual:1-1 attn.norm:1+0    attn.proj.0:0+0
attn.qkv:1+0 attn.core_attn:1+0     attn.residual:0+0 mlp.norm:0+0    attn.proj.0:1+0
mlp.fc1:0+0  mlp.act:0+0      attn.residual:1+0 mlp.norm:1+0    mlp.fc2.0:0+0
mlp.fc1:1+0  mlp.act:1+0      mlp.residual:0+0  attn.norm:0+1   mlp.fc2.0:1+0
"""
_BACKWARD = """
mlp.fc2_wgrad:1+0  mlp.fc2_dgrad:1+0   attn.norm_bwd:0-1 mlp.residual_bwd:0+0   mlp.act_bwd:1+0  mlp.fc1_dgrad.0:1+0  mlp.fc1_wgrad:1+0
mlp.fc2_wgrad:0+0  mlp.fc2_dgrad:0+0   mlp.norm_bwd:1+0  attn.residual_bwd:1+0  mlp.act_bwd:0+0  mlp.fc1_dgrad.0:0+0  mlp.fc1_wgrad:0+0
attn.proj_wgrad:1+0 attn.proj_dgrad:1+0  mlp.norm_bwd:0+0  attn.residual_bwd:0+0  attn.core_attn_bwd:1+0 attn.qkv_dgrad.0:1+0 attn.qkv_wgrad:1+0
attn.proj_wgrad:0+0 attn.proj_dgrad:0+0  attn.norm_bwd:1+0 mlp.residual_bwd:1+1   attn.core_attn_bwd:0+0 attn.qkv_dgrad.0:0+0 attn.qkv_wgrad:0+0
"""  # noqa: E501  (one table row per slice and block)


def inter(plan: SlicePlan) -> LayerOrder:
    """Return the order ``inter`` of ``plan``; it needs 2 row slices and 1 column piece."""
    backward = [parse_token(text) for text in _BACKWARD.split()]
    return LayerOrder(
        forward=IssueOrder(tokens=tuple(parse_token(text) for text in _FORWARD.split())),
        backward=IssueOrder(tokens=place_wgrads(backward, plan)),
    )
