"""The request of calibrate."""

from __future__ import annotations

from dataclasses import dataclass

from domino_tune.requests.fields import Request
from domino_tune.requests.options import option


@dataclass(frozen=True, kw_only=True)
class CalibrateRequest(Request):
    """Fit few physical factors of a profile to measured iterations of your own jobs."""

    profile: str = option("Profile to start from, by name or file.", flag="--profile",
                          metavar="NAME|FILE")  # fmt: skip
    runs: str | None = option(
        "Table of runs: columns are options of simulate, and measured_ms; a run without a strategy "
        "is Megatron's.",
        flag="--runs", metavar="FILE.csv", default=None,
    )  # fmt: skip
    megatron_log: tuple[str, ...] = option(
        "Output of a Megatron-LM run, which prints its arguments and iteration times; may be "
        "repeated.",
        flag="--megatron-log", metavar="FILE", default=(),
    )  # fmt: skip
    name: str = option("Name of the new profile.", flag="--name", metavar="NAME")
