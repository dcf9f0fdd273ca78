"""Requests of the profiles verbs: list, show, check, import, diff."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from domino_tune.requests.options import Count, FileName, Request, Text, Whole, option
from simulator.dtypes import Dtype

UNITS: Final[dict[str, float]] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
"""Units of time, in microseconds, shortest first."""
Unit = Literal["ns", "us", "ms", "s"]


class ProfilesListRequest(Request):
    """List the bundled profiles and your own."""


class ProfilesShowRequest(Request):
    """Show a profile's machine and the source of each section."""

    profile: Annotated[FileName, option("Profile name or file.", argument=True, metavar="PROFILE")]


class ProfilesCheckRequest(Request):
    """Validate a profile and report each section's leave-out error."""

    profile: Annotated[FileName, option("Profile name or file.", argument=True, metavar="PROFILE")]


class ProfilesImportRequest(Request):
    """Add a table of measurements to a copy of a profile, in $DOMINO_TUNE_HOME/profiles.

    Give the same --into and --name for each further table: its rows join those imported before.
    """

    file: Annotated[FileName, option("Table to import.", argument=True, metavar="FILE")]
    format: Annotated[Text, option(
        "Format of the table, like nccl-tests or gemm-csv; all stand below.",
        metavar="NAME")]  # fmt: skip
    into: Annotated[FileName, option("Profile to copy, by name or file.", metavar="NAME|FILE")]
    name: Annotated[Text, option("Name of the new profile.", metavar="NAME")]
    op: Annotated[Text | None, option(
        "Collective that was timed, if the table does not say.",
        metavar="NAME")] = None  # fmt: skip
    nodes: Annotated[Count | None, option(
        "Nodes of the group, if the table does not say.")] = None  # fmt: skip
    ranks_per_node: Annotated[Count | None, option(
        "Ranks on each node, if the table does not say.")] = None  # fmt: skip
    ctas: Annotated[Whole, option(
        "NCCL CTAs of the timings (default 0, NCCL's choice).")] = 0  # fmt: skip
    dtype: Annotated[Dtype, option("Type of the elements (default bf16).")] = "bf16"
    unit: Annotated[Unit | None, option("Unit of the column us (default us).")] = None


class ProfilesDiffRequest(Request):
    """List what differs between two profiles."""

    first: Annotated[FileName, option("Profile name or file.", argument=True, metavar="PROFILE")]
    second: Annotated[FileName, option("Profile name or file.", argument=True, metavar="PROFILE")]
