"""A tune from the command line to its plan file: every call goes down the house."""

from __future__ import annotations

from pathlib import Path

from domino_tune.cli.commands import main
from tests.unit.house.test_house import climbs, listed
from tests.unit.house.way import walked


def test_the_way_of_the_command_goes_down(tmp_path: Path) -> None:
    asked = "--model llama2-7b --profile h100-dgx --tp 8 --seq-length 1024 --micro-batch-size 2"
    out = str(tmp_path / "plan.json")
    steps = walked(lambda: main(["tune", *asked.split(), "--out", out, "--json"]))
    assert steps[0].callee == "cli/commands.py"
    assert not climbs(steps), listed(climbs(steps))
