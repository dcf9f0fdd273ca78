"""Print a result as JSON or as its table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from domino_tune.requests.outputs import JsonOutputs, PlanOutputs

if TYPE_CHECKING:
    from domino_tune.results.simulate import Simulated


def answer(result: Any, as_json: bool, table: Callable[[Any], None]) -> None:
    """Print the result as JSON or as its table."""
    from domino_tune.results import to_json

    if as_json:
        sys.stdout.write(json_text(to_json(result)))
    else:
        table(result)


def tell_written(outputs: PlanOutputs, best: Simulated, strategy: str) -> None:
    """Say whose plan was written, where it is not the chosen one's and nobody asked for it."""
    from domino_tune.base.tables import print_line

    if strategy != best.plan.strategy and not outputs.out_of:
        print_line(
            f"{outputs.out} holds the plan of {strategy}, which the verdict recommends; that of "
            f"{best.plan.strategy} is written with --out-of {best.plan.strategy}.",
            sys.stderr,
        )


def json_text(value: Any) -> str:
    """Return ``value`` as indented JSON with a final newline."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def printed(verb: str, table: str) -> Callable[[Any, JsonOutputs], None]:
    """Return the action of a verb whose result is only printed.

    ``verb`` is a function of domino_tune, ``table`` one of this package that prints its result,
    both as ``module:function``; they are imported when the action runs.
    """

    def action(request: Any, outputs: JsonOutputs) -> None:
        answer(load("domino_tune", verb)(request), outputs.as_json, load("domino_tune.cli", table))

    return action


def load(package: str, place: str) -> Any:
    """Return the function at ``place``, ``module:function``, of a package."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"{package}.{module}"), name)
