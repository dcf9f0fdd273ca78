"""Frozen results from the JSON that a server sent: ``to_json`` backwards."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any, TypeVar, get_type_hints

from domino_tune.results.layouts import Layouts, ScaleResult
from domino_tune.results.profile import CalibrateResult
from domino_tune.results.simulate import Simulated
from domino_tune.results.tune import Tuned
from domino_tune.store.parsing import parse
from simulator.errors import InputError

Found = TypeVar("Found", Tuned, Layouts)


def simulated_from_json(value: Any) -> Simulated:
    """Return the result that ``simulate --json`` prints. Raise InputError for anything else."""
    return parse(Simulated, value, source="simulation", error=InputError)


def tuned_from_json(value: Any, *, seconds: float) -> Tuned:
    """Return the result that ``tune --json`` prints, less its seconds, which a server leaves out.

    ``seconds`` is how long the caller waited. Raise InputError for anything else, and where the
    summary is not that of the simulation.
    """
    return _found(Tuned, value, seconds, "tune result")


def layouts_from_json(value: Any, *, seconds: float) -> Layouts:
    """Return the result that ``layout --json`` prints, as ``tuned_from_json`` does."""
    return _found(Layouts, value, seconds, "result of layouts")


def scale_from_json(value: Any, *, seconds: float) -> ScaleResult:
    """Return the result that ``scale --json`` prints, as ``tuned_from_json`` does. Raise
    InputError for anything else."""
    content = parse(dict[str, Any], value, source="result of a scale", error=InputError)
    whole = {**content, "seconds": seconds}
    return parse(ScaleResult, whole, source="result of a scale", error=InputError)


def calibrated_from_json(value: Any) -> CalibrateResult:
    """Return the result of a calibration at a server. Raise InputError for anything else."""
    return parse(CalibrateResult, value, source="calibration", error=InputError)


def _found(result: type[Found], value: Any, seconds: float, source: str) -> Found:
    """Return what a search found: its fields, and the simulation of the best one."""
    content = parse(dict[str, Any], value, source=source, error=InputError)
    parsed = {
        name: parse(kind, content.get(name), source=name, error=InputError)
        for name, kind in get_type_hints(result, include_extras=True).items()
        if name not in ("best", "seconds")
    }
    best = simulated_from_json(content.get("simulation"))
    found = result(best=best, seconds=seconds, **parsed)
    again = found.to_json()
    del again["seconds"]
    keys = {**again, **content}
    differing = [key for key in keys if again.get(key, MISSING) != content.get(key, MISSING)]
    if differing:
        raise InputError(f"A {source} contradicts itself in: {', '.join(differing)}.")
    return found
