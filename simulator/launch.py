"""Launch: what the host needs to issue ops."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from simulator.estimate import SOURCE_OF, Source
from simulator.ops import Pointwise, Signature

if TYPE_CHECKING:
    from simulator.profile import LaunchMode, Profile


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Host lane: ``cost_ns`` by op kind; mode ``none`` costs nothing (CUDA graphs).

    ``source`` and ``error`` (relative) say how well the costs are known.
    """

    mode: LaunchMode
    cost_ns: dict[str, int] = field(default_factory=dict)
    queue_depth: int = 1024
    source: Source = "measured"
    error: float = 0.0

    def of(self, signature: Signature) -> int:
        """Return the ns that the host needs to launch all kernels of an op."""
        kernels = signature.kernels if isinstance(signature, Pointwise) else 1
        return kernels * self.cost_ns.get(signature.kind, 0)

    def off(self, factor: float, error: float) -> Launch:
        """Return the costs of another host, as well known as before or up to ``error``.

        A slower host spends the same more on every kernel, whatever its kind: its framework's share
        of a launch. ``factor`` is that of the cheapest kind.
        """
        more_ns = round((factor - 1) * min(self.cost_ns.values(), default=0))
        costs = {kind: cost_ns + more_ns for kind, cost_ns in self.cost_ns.items()}
        return replace(self, cost_ns=costs, error=min(error, self.error))


def launch_of(profile: Profile, cuda_graph: bool, compute_speed: float) -> Launch:
    """Return the launch costs; where the host also computes (``inline``), they follow its speed."""
    section = profile.launch
    if cuda_graph or section is None or section.mode == "none":
        return Launch(mode="none")
    speed = compute_speed if section.mode == "inline" else 1.0
    provenance = section.provenance
    costs = {kind: round(us * 1000 / speed) for kind, us in section.cost_us.items()}
    return Launch(
        mode=section.mode,
        cost_ns=costs,
        queue_depth=section.queue_depth,
        source=SOURCE_OF[provenance.kind],
        error=provenance.error or 0.0,
    )
