"""``inter``: DeepSpeed's Domino order at commit edaa722, for two row slices.

A slice's bias + dropout + residual stands one fragment behind the GEMM whose all-reduce it waits
for, across layers too: the MLP's last all-reduce hides behind the next layer's first GEMMs.
"""

from __future__ import annotations

from simulator.issue_order import LayerOrder, Line, parse_token, place_wgrads
from simulator.plan import SlicePlan

_FORWARD = """
attn.a:0+0 attn.core:0+0     mlp.out:1-1 attn.norm:1+0    attn.b.0:0+0
attn.a:1+0 attn.core:1+0     attn.out:0+0 mlp.norm:0+0    attn.b.0:1+0
mlp.a:0+0  mlp.core:0+0      attn.out:1+0 mlp.norm:1+0    mlp.b.0:0+0
mlp.a:1+0  mlp.core:1+0      mlp.out:0+0  attn.norm:0+1   mlp.b.0:1+0
"""
_BACKWARD = """
mlp.b_wgrad:1+0  mlp.b_dgrad:1+0   attn.norm':0-1 mlp.out':0+0   mlp.core':1+0  mlp.a_dgrad.0:1+0  mlp.a_wgrad:1+0
mlp.b_wgrad:0+0  mlp.b_dgrad:0+0   mlp.norm':1+0  attn.out':1+0  mlp.core':0+0  mlp.a_dgrad.0:0+0  mlp.a_wgrad:0+0
attn.b_wgrad:1+0 attn.b_dgrad:1+0  mlp.norm':0+0  attn.out':0+0  attn.core':1+0 attn.a_dgrad.0:1+0 attn.a_wgrad:1+0
attn.b_wgrad:0+0 attn.b_dgrad:0+0  attn.norm':1+0 mlp.out':1+1   attn.core':0+0 attn.a_dgrad.0:0+0 attn.a_wgrad:0+0
"""  # noqa: E501  (one table row a slice and block)


def inter(plan: SlicePlan) -> LayerOrder:
    """Lines of ``inter``; exists for 2 row slices and 1 column slice."""
    backward = [parse_token(text) for text in _BACKWARD.split()]
    return LayerOrder(
        forward=Line(tokens=tuple(parse_token(text) for text in _FORWARD.split())),
        backward=Line(tokens=place_wgrads(backward, plan)),
    )
