"""What a command does: call its service, write what was asked for, print the result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from domino_tune import requests
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


def models(request: requests.ModelsRequest, outputs: JsonOutputs) -> None:
    """List the presets."""
    from domino_tune import services, show

    _answer(services.models(request), outputs.json, show.models)


def _check_places(*paths: str | None) -> None:
    """Refuse a place that cannot be written before, rather than after, a long computation."""
    from domino_tune.store.files import check_writable

    for path in paths:
        if path is not None:
            check_writable(path)


def _answer(result: Any, as_json: bool, table: Callable[[Any], None]) -> None:
    from domino_tune.results import plain

    if as_json:
        json.dump(plain(result), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        table(result)


def simulate(request: requests.SimulateRequest, outputs: PictureOutputs) -> None:
    """Predict one plan."""
    from domino_tune import services, show

    _check_places(outputs.trace, outputs.report)
    result = services.simulate(request)
    _answer(result, outputs.json, show.simulate)


def tune(request: requests.TuneRequest, outputs: TuneOutputs) -> None:
    """Find the best plan."""
    from domino_tune import services, show
    from domino_tune.planfile import save_plan

    _check_places(outputs.out, outputs.trace, outputs.report)
    with show.progress() as progress:
        result = services.tune(request, progress)
    if outputs.out:
        save_plan(result.best.plan_file, outputs.out)
    _answer(result, outputs.json, show.tune)


def whatif(request: Any, outputs: Any) -> None:
    """To come."""
    raise NotImplementedError


def plan_show(request: Any, outputs: Any) -> None:
    """To come."""
    raise NotImplementedError


def plan_export(request: Any, outputs: Any) -> None:
    """To come."""
    raise NotImplementedError


def profiles_list(request: Any, outputs: Any) -> None:
    """To come."""
    raise NotImplementedError


def profiles_show(request: Any, outputs: Any) -> None:
    """To come."""
    raise NotImplementedError


def profiles_check(request: Any, outputs: Any) -> None:
    """To come."""
    raise NotImplementedError


def profiles_import(request: Any, outputs: Any) -> None:
    """To come."""
    raise NotImplementedError


def profiles_diff(request: Any, outputs: Any) -> None:
    """To come."""
    raise NotImplementedError
