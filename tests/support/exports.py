"""What frameworks are given for plans, which tests/unit/golden/exports.jsonl freezes: a line a job
and framework. Write it anew with ``python -m tests.support.exports``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from domino_tune.requests import SimulateRequest
from domino_tune.verbs.plan import RUNS, export_plan, export_text
from domino_tune.verbs.resolve import plan_of, resolve
from simulator.errors import DominoTuneError
from simulator.plan import MEGATRON, SlicePlan
from tests.conftest import REPOSITORY
from tests.support.golden import RECIPE, cases
from tests.support.plans import USERBUFFERS, plan_file

FILE: Final = REPOSITORY / "tests" / "unit" / "golden" / "exports.jsonl"
DENSE: Final = 8
"""One of this many dense jobs is exported; of those in FP8 or with experts one of two."""


def lines() -> Iterator[str]:
    """Yield the lines as they are now: the export's text, or why there is none."""
    for name, verb, arguments in cases():
        step = 2 if name.startswith(RECIPE) else DENSE
        if verb != "simulate" or int(name.partition("-")[2]) % step:
            continue
        request = SimulateRequest(**arguments)
        try:
            case = resolve(request)
            chosen = plan_of(request, None, case)
        except DominoTuneError:
            continue  # of which the predictions tell
        for to in (*RUNS, "deepspeed"):
            try:
                made = _runs(chosen, to), case.model, case.workload, case.cluster
                told = export_text(export_plan(plan_file(*made, case.profile), to))
            except DominoTuneError as refused:
                told = f"refused: {refused}"
            yield json.dumps({"job": name, "to": to, "text": told.splitlines()}) + "\n"


def _runs(plan: SlicePlan, to: str) -> SlicePlan:
    """The plan, or an unsliced one where the framework does not run its strategy."""
    _, strategies = RUNS.get(to, ("DeepSpeed", (plan.strategy,)))
    if plan.strategy in strategies:
        return plan
    if "megatron" in strategies:
        return replace(MEGATRON, sequence_parallel=plan.sequence_parallel)
    return USERBUFFERS


if __name__ == "__main__":
    FILE.write_text("".join(lines()), encoding="utf-8")
