"""The way of a tune, as a request and as a command: few files, and every call goes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from domino_tune.cli.commands import main
from domino_tune.requests import TuneRequest
from domino_tune.verbs.tune import tune
from tests.long.house.way import Step, room, walked
from tests.unit.house.test_house import layers

MOST_FILES = 18
"""Among them those of the rivals (their plans, the verdict), of what would fit, and of the
frameworks that cannot run the best plan: DeepSpeed's export says which layouts it runs."""
PROGRESS = ("cli/progress.py", "cli/show.py", "base/progress.py")
"""Where progress is printed, or not: the only files that are called from below."""
REPORTS = ("verbs/tune.py", "report")
"""The verb's own line about a trial, which it hands to the search as progress."""
REQUEST = TuneRequest(
    model="llama2-7b", profile="h100-dgx", tp=8, seq_length=1024, micro_batch_size=2
)


def is_progress(step: Step) -> bool:
    """Whether a step only reports how far the request is."""
    return step.callee in PROGRESS or (step.callee, step.function) == REPORTS


def climbs(steps: list[Step]) -> list[Step]:
    """Calls that enter a higher package than their caller's, progress left out."""
    heights = layers()
    return [
        step
        for step in steps
        if step.caller
        and heights[room(step.callee)] > heights[room(step.caller)]
        and not is_progress(step)
    ]


def listed(steps: list[Step]) -> str:
    return "\n".join(f"  {s.caller or '(start)'} -> {s.callee}: {s.function}" for s in steps)


def test_the_way_of_a_tune_goes_down(capsys: pytest.CaptureFixture[str]) -> None:
    steps = walked(lambda: tune(REQUEST))
    files = {step.callee for step in steps if not is_progress(step)}
    with capsys.disabled():
        print(f"\nThe way of a tune, {len(files)} files:\n{listed(steps)}")
    assert not climbs(steps), listed(climbs(steps))
    assert len(files) <= MOST_FILES


def test_the_way_of_the_command_goes_down(tmp_path: Path) -> None:
    asked = "--model llama2-7b --profile h100-dgx --tp 8 --seq-length 1024 --micro-batch-size 2"
    out = str(tmp_path / "plan.json")
    steps = walked(lambda: main(["tune", *asked.split(), "--out", out, "--json"]))
    assert steps[0].callee == "cli/commands.py"
    assert not climbs(steps), listed(climbs(steps))
