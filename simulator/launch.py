"""Launch: what the host needs to issue ops."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from simulator.estimate import SOURCE_OF, Source
from simulator.host_costs import HOST_ERROR, KERNEL_US, MEAN_HOST, REPLAY_US, Hosts
from simulator.ops import Pointwise, Signature

if TYPE_CHECKING:
    from simulator.profile import LaunchMode, Profile


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Host lane: ``cost_ns`` of a kernel by kind of op; mode ``none`` costs nothing (CUDA graphs).

    ``hosts``: what an implementation spends beside that; None where ``cost_ns`` holds all of it.
    ``pace``: its Python's time, over that of the host that was timed. ``source`` and ``error``
    (relative) say how well the costs are known.
    """

    mode: LaunchMode
    cost_ns: dict[str, int] = field(default_factory=dict)
    queue_depth: int = 1024
    hosts: Hosts | None = None
    pace: float = MEAN_HOST
    source: Source = "measured"
    error: float = 0.0

    def of(self, signature: Signature, *, replayed: bool = False) -> int:
        """Return the ns that the host needs for an op: its Python, and the launches of all its
        kernels, or its share of a graph's replay."""
        if replayed and self.mode == "async":
            return round(1000 * self.pace * REPLAY_US)
        kernel_ns = self.cost_ns.get(signature.kind, 0)
        if self.hosts is None or self.mode != "async":
            kernels = signature.kernels if isinstance(signature, Pointwise) else 1
            return kernels * kernel_ns
        python_us, kernels = self.hosts.of(signature)
        return round(1000 * self.pace * python_us) + kernels * kernel_ns

    def stops(self, signature: Signature) -> bool:
        """Return whether the host issues nothing more until the op is done."""
        return isinstance(signature, Pointwise) and signature.awaited

    @property
    def key(self) -> tuple[object, ...]:
        """All that the costs depend on, to be hashed."""
        return self.mode, tuple(self.cost_ns.items()), self.queue_depth, self.hosts, self.pace

    def off(self, factor: float, error: float) -> Launch:
        """Return the costs of another host, as well known as before or up to ``error``.

        A slower host spends the same more on every kernel, whatever its kind: its framework's share
        of a launch. ``factor`` is that of the cheapest kind, and of Python.
        """
        more_ns = round((factor - 1) * min(self.cost_ns.values(), default=0))
        costs = {kind: cost_ns + more_ns for kind, cost_ns in self.cost_ns.items()}
        return replace(self, cost_ns=costs, pace=self.pace * factor, error=min(error, self.error))


NO_LAUNCH: Final = Launch(mode="none")
"""CUDA graphs of all."""


def launch_of(
    profile: Profile, hosts: Hosts | None, *, compute_speed: float, host_speed: float
) -> Launch:
    """Return the launch costs of an implementation's host; where the host also computes
    (``inline``), they follow its speed.

    A section that was measured has the ops of our runtime, with their Python: another
    implementation's kernels cost what is assumed elsewhere.
    """
    section = profile.launch
    if section is None or section.mode == "none":
        return NO_LAUNCH
    inline, provenance, cost_us = section.mode == "inline", section.provenance, section.cost_us
    source, error = SOURCE_OF[provenance.kind], provenance.error or 0.0
    if hosts is not None and not inline and provenance.kind == "measured":
        cost_us, source, error = dict(KERNEL_US), "assumed", HOST_ERROR
    speed = host_speed * (compute_speed if inline else 1.0)
    return Launch(
        mode=section.mode,
        cost_ns={kind: round(us * 1000 / speed) for kind, us in cost_us.items()},
        queue_depth=section.queue_depth,
        hosts=None if inline else hosts,
        pace=MEAN_HOST / host_speed,
        source=source,
        error=error,
    )
