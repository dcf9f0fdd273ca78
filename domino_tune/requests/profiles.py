"""Requests of the profiles verbs: list, show, check, import, diff."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from domino_tune.requests.fields import Request
from domino_tune.requests.options import option
from simulator.specs import DTYPE_BYTES

UNITS: Final[dict[str, float]] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
"""Units of time, in microseconds, shortest first."""


@dataclass(frozen=True, kw_only=True)
class ProfilesListRequest(Request):
    """List the bundled profiles and your own."""


@dataclass(frozen=True, kw_only=True)
class ProfilesShowRequest(Request):
    """Show a profile's machine and the source of each section."""

    profile: str = option("Profile name or file.", metavar="PROFILE")


@dataclass(frozen=True, kw_only=True)
class ProfilesCheckRequest(Request):
    """Validate a profile and report each section's leave-out error."""

    profile: str = option("Profile name or file.", metavar="PROFILE")


@dataclass(frozen=True, kw_only=True)
class ProfilesImportRequest(Request):
    """Add a table of measurements to a copy of a profile, in $DOMINO_TUNE_HOME/profiles.

    Give the same --into and --name for each further table: its rows join those imported before.
    """

    file: str = option("Table to import.", metavar="FILE")
    format: str = option(
        "Format of the table, like nccl-tests or gemm-csv; all stand below.",
        flag="--format", metavar="NAME",
    )  # fmt: skip
    into: str = option("Profile to copy, by name or file.", flag="--into", metavar="NAME|FILE")
    name: str = option("Name of the new profile.", flag="--name", metavar="NAME")
    op: str | None = option(
        "Collective that was timed, if the table does not say.",
        flag="--op", metavar="NAME", default=None,
    )  # fmt: skip
    nodes: int | None = option(
        "Nodes of the group, if the table does not say.",
        flag="--nodes", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    ranks_per_node: int | None = option(
        "Ranks on each node, if the table does not say.",
        flag="--ranks-per-node", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    ctas: int = option(
        "NCCL CTAs of the timings (default 0, NCCL's choice).",
        flag="--ctas", metavar="N", default=0, minimum=0,
    )  # fmt: skip
    dtype: str = option(
        "Type of the elements (default bf16).",
        flag="--dtype", choices=tuple(DTYPE_BYTES), default="bf16",
    )  # fmt: skip
    unit: str | None = option(
        "Unit of the column us (default us).",
        flag="--unit", choices=tuple(UNITS), default=None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProfilesDiffRequest(Request):
    """List what differs between two profiles."""

    first: str = option("Profile name or file.", metavar="PROFILE")
    second: str = option("Profile name or file.", metavar="PROFILE")
