"""The three GEMMs of a linear layer."""

from __future__ import annotations

Shape = tuple[int, int, int]


def sizes_of(layout: str, shape: Shape) -> Shape:
    """Return rows, columns and inner size of a linear's GEMM."""
    tokens, out, wide = shape
    return {
        "forward": (tokens, out, wide), "dgrad": (tokens, wide, out), "wgrad": (out, wide, tokens),
    }[layout]  # fmt: skip
