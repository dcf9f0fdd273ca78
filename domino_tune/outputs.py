"""Where a command's result goes: the options that are the command line's alone, not the API's."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Final

from domino_tune.options import check_options, option, option_of
from simulator.errors import InputError

FILE: Final = "FILE"


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Base of the options that say where a result goes."""

    def __post_init__(self) -> None:
        """Check each option, and that no two of them name one file; raises InputError."""
        check_options(self)
        flags: dict[str, str] = {}
        for flag, path in self.files().items():
            other = flags.setdefault(os.path.realpath(path), flag)
            if other != flag:
                raise InputError(
                    f"{other} and {flag} both name the file {path!r}; give each a file of its own."
                )

    def files(self) -> dict[str, str]:
        """The files to write: flag -> path, of the options that were given."""
        said = {option_of(item): getattr(self, item.name) for item in fields(self)}
        return {
            option.flag: path
            for option, path in said.items()
            if option.metavar == FILE and path is not None
        }


@dataclass(frozen=True, kw_only=True)
class JsonOutputs(Outputs):
    """A table, or JSON."""

    json: bool = option("Print the result as JSON.", flag="--json", default=False)


@dataclass(frozen=True, kw_only=True)
class FileOutputs(JsonOutputs):
    """Also into a file."""

    out: str | None = option(
        "Write it to this file instead of stdout.", flag="--out", metavar=FILE, default=None
    )


@dataclass(frozen=True, kw_only=True)
class TraceOutputs(JsonOutputs):
    """Also as a timeline."""

    trace: str | None = option(
        "Write a Chrome trace for Perfetto.", flag="--trace", metavar=FILE, default=None
    )


@dataclass(frozen=True, kw_only=True)
class ReportOutputs(JsonOutputs):
    """Also as a page."""

    report: str | None = option(
        "Write a self-contained HTML page.", flag="--report", metavar=FILE, default=None
    )


@dataclass(frozen=True, kw_only=True)
class PictureOutputs(ReportOutputs):
    """Also as a timeline."""

    trace: str | None = option(
        "Write a Chrome trace for Perfetto.", flag="--trace", metavar=FILE, default=None
    )


@dataclass(frozen=True, kw_only=True)
class TuneOutputs(PictureOutputs):
    """Also as a plan file."""

    out: str | None = option(
        "Write the best plan to this file.", flag="--out", metavar=FILE, default=None
    )
