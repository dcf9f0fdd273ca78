"""Where a command's result goes: the options that are the command line's alone, not the API's."""

from __future__ import annotations

from dataclasses import dataclass

from domino_tune.options import check_options, option


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Base of the options that say where a result goes."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class JsonOutputs(Outputs):
    """A table, or JSON."""

    json: bool = option("Print the result as JSON.", flag="--json", default=False)


@dataclass(frozen=True, kw_only=True)
class FileOutputs(JsonOutputs):
    """Also into a file."""

    out: str | None = option(
        "Write it to this file instead of stdout.", flag="--out", metavar="FILE", default=None
    )


@dataclass(frozen=True, kw_only=True)
class ReportOutputs(JsonOutputs):
    """Also as a page."""

    report: str | None = option(
        "Write a self-contained HTML page.", flag="--report", metavar="FILE", default=None
    )


@dataclass(frozen=True, kw_only=True)
class PictureOutputs(ReportOutputs):
    """Also as a timeline."""

    trace: str | None = option(
        "Write a Chrome trace for Perfetto.", flag="--trace", metavar="FILE", default=None
    )


@dataclass(frozen=True, kw_only=True)
class TuneOutputs(PictureOutputs):
    """Also as a plan file."""

    out: str | None = option(
        "Write the best plan to this file.", flag="--out", metavar="FILE", default=None
    )
