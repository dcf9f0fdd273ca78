"""Options that only the command line has: where a result goes, and which server computes it."""

from __future__ import annotations

import os
from typing import Annotated, Final

from pydantic import model_validator

from domino_tune.requests.options import FileName, Request, Text, Texts, common, option_of, output
from simulator.errors import InputError
from simulator.plan import Compared

FILE: Final = "FILE"
TokenFile = Annotated[FileName | None, output(
    "File that holds the server's token (default: $DOMINO_TUNE_TOKEN).", metavar="PATH"
        )]  # fmt: skip
"""Its metavar is not FILE, as it is not written."""


class Outputs(Request):
    """Base of the options that say where a result goes."""

    @model_validator(mode="after")
    def _check_files(self) -> Outputs:
        """Raise InputError when two options name one file."""
        flags: dict[str, str] = {}
        for flag, path in self.files().items():
            other = flags.setdefault(os.path.realpath(path), flag)
            if other != flag:
                raise InputError(
                    f"{other} and {flag} both name the file {path!r}; give each a file of its own."
                )
        return self

    def files(self) -> dict[str, str]:
        """Return flag -> path of the files to write."""
        return {
            option_of(type(self), name).flag_of(name): path
            for name, path in self
            if option_of(type(self), name).metavar == FILE and path is not None
        }


class Asking(Outputs):
    """Where a question comes from beside its options, and where it is kept."""

    job: Annotated[FileName | None, common(
        "Read the question from this job file; options given beside it win.",
        metavar="FILE.yaml")] = None  # fmt: skip
    settings: Annotated[Texts, common(
        "Set any field of the job, of its implementation, or of its model by the Hugging Face "
        "name; may be repeated.", metavar="KEY=VALUE", flag="--set")] = ()  # fmt: skip
    save_job: Annotated[FileName | None, output(
        "Write the question to this job file, to ask it again.", metavar=FILE)] = None  # fmt: skip


class JsonOutputs(Outputs):
    """A table or JSON on stdout."""

    as_json: Annotated[bool, output("Print the result as JSON.", flag="--json")] = False


class FileOutputs(JsonOutputs):
    """Also a file."""

    out: Annotated[FileName | None, output(
        "Write the result to this file instead of stdout.", metavar=FILE)] = None  # fmt: skip


class TableOutputs(JsonOutputs):
    """Tables, narrow or with all columns."""

    wide: Annotated[bool, output(
        "Print all columns of tables, however wide; otherwise they fit the terminal, or 100 "
        "characters.")] = False  # fmt: skip


class ReportOutputs(TableOutputs):
    """Also a page."""

    report: Annotated[FileName | None, output(
        "Write a self-contained HTML page.", metavar=FILE)] = None  # fmt: skip


class TraceOutputs(TableOutputs):
    """Also a timeline."""

    trace: Annotated[FileName | None, output(
        "Write a Chrome trace for Perfetto.", metavar=FILE)] = None  # fmt: skip


class PlanOutputs(ReportOutputs, TraceOutputs):
    """Also a plan file."""

    out: Annotated[FileName | None, output(
        "Write the plan to this file: of a search the one that the verdict recommends.",
        metavar=FILE)] = None  # fmt: skip
    out_of: Annotated[Compared | None, output(
        "Write the plan of this strategy instead, which the verdict compares.")] = None  # fmt: skip

    @model_validator(mode="after")
    def _check_out_of(self) -> PlanOutputs:
        if self.out_of and not self.out:
            raise InputError("--out-of says whose plan --out writes; give both, or leave it out.")
        return self


class ServerOutputs(TableOutputs):
    """A result that may come from a server."""

    server: Annotated[Text | None, output(
        "Ask this server, http://HOST:PORT; models and profiles are names that it knows.",
        metavar="URL")] = None  # fmt: skip
    token_file: TokenFile = None

    @model_validator(mode="after")
    def _check_token(self) -> ServerOutputs:
        _only_with("--server", self.server, self.token_file)
        return self


class SearchOutputs(PlanOutputs, ServerOutputs):
    """The best plan's files, which may come from a server."""


class ScaleOutputs(ReportOutputs, ServerOutputs):
    """A page, and a result that may come from a server."""


class SimulateOutputs(SearchOutputs):
    """A plan's files, or a prediction of a server, which has none."""

    @model_validator(mode="after")
    def _check_server(self) -> SimulateOutputs:
        _no_files(self)
        return self


class WhatIfOutputs(ScaleOutputs):
    """A page, or the points of a server, which has none of them."""

    @model_validator(mode="after")
    def _check_server(self) -> WhatIfOutputs:
        _no_files(self)
        return self


class ValidateOutputs(TraceOutputs):
    """Also a timeline; the result may go to the server that tuned."""

    report_to: Annotated[Text | None, output(
        "Send the result to this URL: SERVER/v1/jobs/ID, the tune's job.",
        metavar="URL")] = None  # fmt: skip
    token_file: TokenFile = None

    @model_validator(mode="after")
    def _check_token(self) -> ValidateOutputs:
        _only_with("--report-to", self.report_to, self.token_file)
        return self


def _only_with(flag: str, given: str | None, token_file: str | None) -> None:
    if token_file and not given:
        raise InputError(f"--token-file needs {flag}; give both, or leave --token-file out.")


def _no_files(outputs: ServerOutputs) -> None:
    if outputs.server and (flags := [*outputs.files()]):
        raise InputError(
            f"{' and '.join(flags)} cannot be written of a server's answer; leave --server out, or "
            f"{'it' if len(flags) == 1 else 'them'}."
        )
