"""The lab: what proves the product, and makes its bundled profiles. Not shipped; may import all."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

Shape = tuple[int, int, int]


def told(module: str) -> dict[str, Any]:
    """Return what the TOML file beside a module's ``__file__`` says."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))


def sizes_of(layout: str, shape: Shape) -> Shape:
    """Return rows, columns and inner size of a GEMM of a linear (tokens, out, in)."""
    tokens, out, wide = shape
    return {"dgrad": (tokens, wide, out), "wgrad": (out, wide, tokens)}.get(layout, shape)
