"""What an iteration is made of: GEMMs, attention, pointwise ops, time outside them; its MFU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KINDS: Final = ("gemm", "attention", "pointwise")


@dataclass(frozen=True, kw_only=True)
class Spent:
    """One plan's iteration on a rank without communication; times in µs, medians over steps.

    ``by_kind_us``: the ops' own durations, in steps of their own. ``eager_us``: the whole, ops
    launched one by one; ``graph_us``: replayed as a CUDA graph, None where there is none, and why
    in ``why_no_graph``. ``flops``: multiply-adds of GEMMs and attention, two each; nothing is
    recomputed, so these are the model's.
    """

    label: str
    by_kind_us: dict[str, float]
    eager_us: float
    graph_us: float | None
    why_no_graph: str
    flops: int

    @property
    def whole_us(self) -> float:
        """The faster way to launch."""
        return min(self.eager_us, self.graph_us or self.eager_us)

    def share(self, kind: str) -> float:
        """Of the whole."""
        return self.by_kind_us[kind] / self.whole_us

    @property
    def outside(self) -> float:
        """Share of the whole outside ops: waits for launches, gaps between one op's last kernel and
        the next one's first. Below 0 where the clock was higher while the whole was timed."""
        return 1 - sum(map(self.share, KINDS))

    def mfu(self, peak_tflops: float) -> float:
        """Model FLOP utilisation: FLOPs over time and peak (PaLM, arXiv 2204.02311, app. B)."""
        return self.flops / (self.whole_us * 1e6 * peak_tflops)
