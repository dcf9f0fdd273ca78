"""Launch costs: of eager PyTorch, assumed; of our H200's host, measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lab.fits.common import Description, Gpu, rounded
from simulator.profile import LaunchSection

ANY: Final = Description("any")


def launch_section(gpu: Gpu | None = None, rows: Sequence[Mapping[str, Any]] = ()) -> LaunchSection:
    """Return the medians of the records of plans; the host costs of eager PyTorch without any."""
    eager = ANY.told["launch"]
    if gpu is None:
        return LaunchSection(
            mode="async", cost_us=eager["cost_us"], queue_depth=eager["queue_depth"],
            provenance=ANY.words("launch"),
        )  # fmt: skip
    costs: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for kind, cost_us in row.get("cost_us", {}).items():
            if kind != "pointwise":
                costs[kind].append(cost_us)
        if row.get("model", "").startswith("gpt3"):
            roles = gpu.told["launch"]["one_kernel"]
            costs["pointwise"] += [row["cost_us_by_role"][role] for role in roles]
    medians = {kind: rounded(statistics.median(found)) for kind, found in costs.items()}
    return LaunchSection(
        mode="async", cost_us={**medians, "collective": eager["cost_us"]["collective"]},
        queue_depth=eager["queue_depth"], assumed=("collective",), provenance=gpu.words("launch"),
    )  # fmt: skip
