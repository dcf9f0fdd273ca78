"""The parts of an iteration: GEMMs, attention, pointwise ops, time outside ops; and its MFU."""

from __future__ import annotations

from dataclasses import dataclass

from domino_tune.measure.power_law import COMPUTE


@dataclass(frozen=True, kw_only=True)
class StepBreakdown:
    """One plan's iteration on a rank without communication; times in µs, medians over steps.

    ``by_kind_us``: the ops' own durations, from separate steps. ``eager_us``: the whole step, ops
    launched one by one. ``graph_us``: the step replayed as a CUDA graph; None if it was not
    captured, for the reason ``why_no_graph``. ``flops``: two per multiply-add of GEMMs and
    attention; nothing is recomputed, so these are the model's.
    """

    label: str
    by_kind_us: dict[str, float]
    eager_us: float
    graph_us: float | None
    why_no_graph: str
    flops: int

    @property
    def whole_us(self) -> float:
        """Return the time of the faster way to launch, µs."""
        return min(self.eager_us, self.graph_us or self.eager_us)

    def share(self, kind: str) -> float:
        """Return the share of ops of that kind in the whole."""
        return self.by_kind_us[kind] / self.whole_us

    @property
    def outside(self) -> float:
        """Return the share of the whole outside ops: waits for launches and gaps between ops'
        kernels. Negative where the clock was higher while the whole was timed."""
        return 1 - sum(map(self.share, COMPUTE))

    def mfu(self, peak_tflops: float) -> float:
        """Return model FLOP utilisation (PaLM, arXiv 2204.02311, app. B): FLOPs / (time · peak)."""
        return self.flops / (self.whole_us * 1e6 * peak_tflops)
