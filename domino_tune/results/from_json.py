"""Frozen results from the JSON that a server sent: ``to_json`` backwards."""

from __future__ import annotations

from typing import Any, Final

from domino_tune.results import to_json
from domino_tune.results.layouts import Layouts, ScaleResult
from domino_tune.results.profile import CalibrateResult
from domino_tune.results.simulate import Simulated
from domino_tune.results.tune import WORTH, Tuned
from domino_tune.results.whatif import WhatIf
from domino_tune.store.parsing import parse
from simulator.errors import InputError

READABLE: Final[dict[str, tuple[type, str]]] = {
    "tune": (Tuned, "tune result"),
    "layout": (Layouts, "result of layouts"),
    "scale": (ScaleResult, "result of a scale"),
    "calibrate": (CalibrateResult, "calibration"),
    "whatif": (WhatIf, "what-if"),
}
"""Verb -> its result, and what messages call that."""


def simulated_from_json(value: Any) -> Simulated:
    """Return the result that ``simulate --json`` prints. Raise InputError for anything else."""
    return parse(Simulated, value, source="simulation", error=InputError)


def result_from_json(verb: str, value: Any, *, seconds: float) -> Any:
    """Return the result that a ``READABLE`` verb prints with ``--json``, less its seconds, which a
    server leaves out.

    ``seconds`` is how long the caller waited. Raise InputError for anything else, and where it
    contradicts itself.
    """
    result: Any
    result, source = READABLE[verb]
    content = parse(dict[str, Any], value, source=source, error=InputError)
    if result is CalibrateResult:
        return parse(result, content, source=source, error=InputError)
    if result is WhatIf:
        points = parse(list[dict[str, Any]], content.get("points"), source=source, error=InputError)
        content |= {"base": _point(content.get("base")), "points": [*map(_point, points)]}
        found = parse(WhatIf, content, source=source, error=InputError)
        whole = found.base.prediction and all(
            (one.prediction is None) == bool(one.error)
            and (found.sweep is None or found.sweep in one.changes)
            for one in found.points
        )
        if not whole:
            raise InputError("A what-if lacks a prediction, or what is changed at a point.")
        return found
    given = {name: held for name, held in content.items() if name not in WORTH}
    answer = parse(result, {**given, "seconds": seconds}, source=source, error=InputError)
    again = {name: held for name, held in to_json(answer).items() if name != "seconds"}
    differing = [key for key in again | content if again.get(key, ()) != content.get(key, ())]
    if differing:
        raise InputError(f"A {source} contradicts itself in: {', '.join(differing)}.")
    return answer


def _point(value: Any) -> dict[str, Any]:
    """Return a point of a what-if as its class has it: ``WhatIfPoint.to_json`` backwards."""
    told = parse(dict[str, Any], value, source="point of a what-if", error=InputError)
    own = {name: told.pop(name, None) for name in ("changes", "error")}
    return {**own, "prediction": told or None}
