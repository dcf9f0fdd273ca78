"""Options that only the command line has: where a result goes, and which server computes it."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any, Final

from domino_tune.requests.options import check_options, option, option_of
from simulator.errors import InputError
from simulator.plan import STRATEGIES

FILE: Final = "FILE"
COMPARED: Final = tuple(name for name in STRATEGIES if name != "no_comm")
"""Strategies that a verdict compares."""


def server_option(help_text: str) -> Any:
    """Return the option of the server that does the work."""
    return option(help_text, flag="--server", metavar="URL", default=None)


def token_option() -> Any:
    """Return the option of a token's file. Its metavar is not FILE, as it is not written."""
    return option(
        "File that holds the server's token (default: $DOMINO_TUNE_TOKEN).",
        flag="--token-file", metavar="PATH", default=None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Base of the options that say where a result goes."""

    def __post_init__(self) -> None:
        """Raise InputError for a wrong value, or when two options name one file."""
        check_options(self)
        flags: dict[str, str] = {}
        for flag, path in self.files().items():
            other = flags.setdefault(os.path.realpath(path), flag)
            if other != flag:
                raise InputError(
                    f"{other} and {flag} both name the file {path!r}; give each a file of its own."
                )

    def files(self) -> dict[str, str]:
        """Return flag -> path of the files to write."""
        given = {option_of(item): getattr(self, item.name) for item in fields(self)}
        return {
            option.flag: path
            for option, path in given.items()
            if option.metavar == FILE and path is not None
        }


@dataclass(frozen=True, kw_only=True)
class JsonOutputs(Outputs):
    """A table or JSON on stdout."""

    json: bool = option("Print the result as JSON.", flag="--json", default=False)


@dataclass(frozen=True, kw_only=True)
class FileOutputs(JsonOutputs):
    """Also a file."""

    out: str | None = option(
        "Write the result to this file instead of stdout.", flag="--out", metavar=FILE, default=None
    )


@dataclass(frozen=True, kw_only=True)
class TraceOutputs(JsonOutputs):
    """Also a timeline."""

    trace: str | None = option(
        "Write a Chrome trace for Perfetto.", flag="--trace", metavar=FILE, default=None
    )


@dataclass(frozen=True, kw_only=True)
class ReportOutputs(JsonOutputs):
    """Also a page."""

    report: str | None = option(
        "Write a self-contained HTML page.", flag="--report", metavar=FILE, default=None
    )


@dataclass(frozen=True, kw_only=True)
class PictureOutputs(TraceOutputs, ReportOutputs):
    """Also a timeline and a page."""


@dataclass(frozen=True, kw_only=True)
class PlanOutputs(PictureOutputs):
    """Also a plan file."""

    out: str | None = option(
        "Write the plan to this file; of tune the one that the verdict recommends.",
        flag="--out", metavar=FILE, default=None,
    )  # fmt: skip
    out_of: str | None = option(
        "Write the plan of this strategy instead, which the verdict compares.",
        flag="--out-of", choices=COMPARED, default=None,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out_of and not self.out:
            raise InputError("--out-of says whose plan --out writes; give both, or leave it out.")


@dataclass(frozen=True, kw_only=True)
class TuneOutputs(PlanOutputs):
    """The best plan's files, which may come from a server."""

    server: str | None = server_option(
        "Tune at this server: http://HOST:PORT; model and profile are names that it knows."
    )
    token_file: str | None = token_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        _only_with("--server", self.server, self.token_file)


@dataclass(frozen=True, kw_only=True)
class CalibrateOutputs(JsonOutputs):
    """The result, which may come from a server."""

    server: str | None = server_option(
        "Calibrate at this server, which keeps the profile: http://HOST:PORT; models and profile "
        "are names that it knows."
    )
    token_file: str | None = token_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        _only_with("--server", self.server, self.token_file)


@dataclass(frozen=True, kw_only=True)
class ValidateOutputs(TraceOutputs):
    """Also a timeline; the result may go to the server that tuned."""

    report_to: str | None = option(
        "Send the result to this URL: SERVER/v1/jobs/ID, the tune's job.",
        flag="--report-to", metavar="URL", default=None,
    )  # fmt: skip
    token_file: str | None = token_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        _only_with("--report-to", self.report_to, self.token_file)


def _only_with(flag: str, given: str | None, token_file: str | None) -> None:
    if token_file and not given:
        raise InputError(f"--token-file needs {flag}; give both, or leave --token-file out.")
