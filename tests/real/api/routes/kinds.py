"""The kinds of jobs: what tests ask of each, and what its verb returns in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from domino_tune.requests import TuneRequest, WhatIfRequest
from domino_tune.results.json_form import to_json
from domino_tune.verbs.layouts import tune_layouts
from domino_tune.verbs.scale import tune_scale
from domino_tune.verbs.tune import tune
from domino_tune.verbs.whatif import whatif
from tests.support.asked import CELL, LAYOUTS, LONG, SMALL, TUNE
from tests.support.door.measurements import RUNS

SWEEP: Final = {**CELL, "sweep": "link_bandwidth=0.5x,1x,2x"}
SCALE: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "seq_length": 512, "global_batch_size": 4,
    "overrides": ["num_hidden_layers=4"], "tp": 2, "sweep": "gpus=2,3,4",
}  # fmt: skip
SEARCHED: Final[dict[str, Any]] = {
    "model": "llama3-8b", "profile": "h100-dgx", "seq_length": 4096, "global_batch_size": 256,
}  # fmt: skip
CALIBRATION: Final = {"profile": "h100-dgx", "name": "fitted", "runs": RUNS}
DEEP: Final = [
    {
        **one, "overrides": [f"num_hidden_layers={96 + number}"],
        "measured_ms": 100 * one["measured_ms"],
    }
    for number, one in enumerate(RUNS * 20)
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Kind:
    """``small`` ends within a few seconds, ``long`` takes long; ``links``: those other than the job
    itself and its events; ``local``: the verb's result, if it is the same. ``files``: links that
    exist at the end.
    """

    small: dict[str, Any]
    long: dict[str, Any]
    links: tuple[str, ...]
    local: Callable[[], Any] | None = None
    files: tuple[str, ...] = ()


def _request(asked: dict[str, Any]) -> TuneRequest:
    return TuneRequest(**{**asked, "overrides": tuple(asked["overrides"])})


FILES: Final = ("plan", "report", "trace")
WIDE: Final = ",".join(f"{1 + n / 100:g}x" for n in range(40))
KINDS: Final = {
    "tune": Kind(
        small=SMALL, long=LONG, links=(*FILES, "validations"), files=FILES,
        local=lambda: tune(TUNE),
    ),
    "layout": Kind(
        small=LAYOUTS, long={**SEARCHED, "gpus": 16}, links=FILES, files=FILES,
        local=lambda: tune_layouts(_request(LAYOUTS)),
    ),
    "scale": Kind(
        small=SCALE, long={**SEARCHED, "sweep": "gpus=8,16,32,64"}, links=("points",),
        local=lambda: tune_scale(_request(SCALE)),
    ),
    "sweep": Kind(
        small=SWEEP, links=("points",),
        long={**CELL, "micro_batch_size": 16, "row_slices": 8, "sweep": f"gpu_flops={WIDE}"},
        local=lambda: whatif(WhatIfRequest(**SWEEP)),
    ),
    "calibration": Kind(
        small=CALIBRATION, links=("profile",), files=("profile",),
        long={**CALIBRATION, "name": "long", "runs": DEEP},
    ),
}  # fmt: skip


def as_json(result: Any) -> Any:
    """Return a result as an answer shows it, without the time it took."""
    plain = json.loads(json.dumps(to_json(result)))
    plain.pop("seconds", None)
    return plain
