"""Frozen results from the JSON that a server sent: ``to_json`` backwards."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any, get_type_hints

from domino_tune.results.simulate import Simulated
from domino_tune.results.tune import Tuned
from domino_tune.store.parsing import parse
from simulator.errors import InputError


def simulated_from_json(value: Any) -> Simulated:
    """Return the result that ``simulate --json`` prints. Raise InputError for anything else."""
    return parse(Simulated, value, source="simulation", error=InputError)


def tuned_from_json(value: Any, *, seconds: float) -> Tuned:
    """Return the result that ``tune --json`` prints, less its seconds, which a server leaves out.

    ``seconds`` is how long the caller waited. Raise InputError for anything else, and where the
    summary is not that of the simulation.
    """
    content = parse(dict[str, Any], value, source="tune result", error=InputError)
    parsed = {
        name: parse(kind, content.get(name), source=name, error=InputError)
        for name, kind in get_type_hints(Tuned, include_extras=True).items()
        if name not in ("best", "seconds")
    }
    best = simulated_from_json(content.get("simulation"))
    tuned = Tuned(best=best, seconds=seconds, **parsed)
    again = tuned.to_json()
    del again["seconds"]
    keys = {**again, **content}
    differing = [key for key in keys if again.get(key, MISSING) != content.get(key, MISSING)]
    if differing:
        raise InputError(f"A tune result contradicts itself in: {', '.join(differing)}.")
    return tuned
