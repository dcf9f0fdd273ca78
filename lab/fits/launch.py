"""Launch costs: of eager PyTorch, assumed; of our H200's host, measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lab.fits.common import rounded
from simulator.profile import LaunchSection
from simulator.provenance import Provenance

LAUNCH_ERROR: Final = 0.5
"""Launch costs differ by a factor of two from plan to plan and from host to host."""
ONE_KERNEL: Final = ("attn.norm", "mlp.norm", "mlp.act", "mlp.act_bwd")
"""Pointwise ops of a GPT that were one kernel when launches were timed."""
EAGER_US: Final = {"gemm": 6.0, "attention": 10.0, "pointwise": 6.0, "collective": 15.0}
QUEUE_DEPTH: Final = 1024


def launch_section(rows: Sequence[Mapping[str, Any]] = ()) -> LaunchSection:
    """Return the medians of the records of plans; the host costs of eager PyTorch without any."""
    if rows:
        return LaunchSection(
            mode="async",
            cost_us={**_medians(rows), "collective": EAGER_US["collective"]},
            queue_depth=QUEUE_DEPTH,
            assumed=("collective",),
            provenance=Provenance(
                kind="measured",
                source="scripts/gpu-profile on one H200: measurements/h200-sxm",
                error=LAUNCH_ERROR,
                note="Host time of the runtime's own ops, median over nine plans of three models "
                "on a virtual machine; they differ by a factor of two. Of pointwise ops only those "
                "counted that were one kernel then, as most are now. A collective's is assumed.",
            ),
        )
    return LaunchSection(
        mode="async",
        cost_us=EAGER_US,
        queue_depth=QUEUE_DEPTH,
        provenance=Provenance(
            kind="assumed",
            source="eager PyTorch: a kernel costs about 6 us of host time to dispatch and launch",
            error=LAUNCH_ERROR,
            note="Attention adds checks of its arguments, a collective its work object and two "
            "event waits. CUDA graphs make all of them about zero (--cuda-graph).",
        ),
    )


def _medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    costs: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for kind, cost_us in row.get("cost_us", {}).items():
            if kind != "pointwise":
                costs[kind].append(cost_us)
        if row.get("model", "").startswith("gpt3"):
            costs["pointwise"] += [row["cost_us_by_role"][role] for role in ONE_KERNEL]
    return {kind: rounded(statistics.median(found)) for kind, found in costs.items()}
