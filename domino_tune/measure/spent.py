"""What an iteration is made of: GEMMs, attention, pointwise ops, gaps; and its MFU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KINDS: Final = ("gemm", "attention", "pointwise")


@dataclass(frozen=True, kw_only=True)
class Spent:
    """One plan's iteration on a rank without communication; times in µs, medians over steps.

    ``by_kind_us``: the ops' own durations. ``eager_us``: the whole, ops launched one by one;
    ``graph_us``: replayed as a CUDA graph, None where there is none. ``flops``: multiply-adds of
    GEMMs and attention, two each; nothing is recomputed, so these are the model's.
    """

    label: str
    by_kind_us: dict[str, float]
    eager_us: float
    graph_us: float | None
    flops: int

    @property
    def whole_us(self) -> float:
        """The faster way to launch."""
        return min(self.eager_us, self.graph_us or self.eager_us)

    def share(self, kind: str) -> float:
        """Of the whole."""
        return self.by_kind_us[kind] / self.whole_us

    @property
    def gaps(self) -> float:
        """Share of the whole in which no op runs."""
        return max(0.0, 1 - sum(map(self.share, KINDS)))

    def mfu(self, peak_tflops: float) -> float:
        """Model FLOP utilisation: FLOPs over time and peak (PaLM, arXiv 2204.02311, app. B)."""
        return self.flops / (self.whole_us * 1e6 * peak_tflops)
