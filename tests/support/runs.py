"""Runs the command line in this process, on a model small enough to be quick."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from domino_tune import PlanFile, save_plan, tune
from domino_tune.cli.commands import main
from domino_tune.store.shelf import dump_model
from simulator.specs import ModelSpec

TINY = ModelSpec(
    name="tiny",
    num_hidden_layers=6,
    hidden_size=512,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=64,
    intermediate_size=2048,
    vocab_size=1000,
    max_position_embeddings=512,
)
ON_TWO = ("--profile", "a100-sxm", "--tp", "2", "--seq-length", "256", "--micro-batch-size", "2")


@cache
def tuned_plan() -> PlanFile:
    """The best of two plans for the small workload; made once for all tests that need a plan."""
    found = tune(
        model=TINY, profile="a100-sxm", tp=2, seq_length=256, micro_batch_size=2, search="random",
        trials=2,
    )  # fmt: skip
    return found.best.plan_file


def without_progress(stderr: str) -> str:
    """Return what was said without lines of progress, which come where a command takes seconds."""
    return re.sub(r"(?m)^[\d,]+ s: .*\n", "", stderr)


ANSWERS: dict[tuple[str, ...], str] = {}
"""What was printed to questions that were asked already, by their words."""


class Done(NamedTuple):
    """What a command gave: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str


class Runner:
    """Runs commands; ``tiny`` is the path of the small model's file."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.capsys = capsys
        self.folder = folder
        self.tiny = str(folder / "tiny.json")
        Path(self.tiny).write_text(dump_model(TINY))

    @property
    def workload(self) -> tuple[str, ...]:
        """Options of a small workload."""
        return ("--model", self.tiny, *ON_TWO)

    def __call__(self, *arguments: str) -> Done:
        self.capsys.readouterr()
        code = main(arguments)
        out, err = self.capsys.readouterr()
        return Done(code, out, err)

    def answer(self, *arguments: str) -> dict[str, Any]:
        """Return what a command prints as JSON. A question that was asked before, by whichever
        test, is not asked again; one that writes files names a folder of its own."""
        key = tuple(word.replace(self.tiny, "tiny.json") for word in arguments)
        if key not in ANSWERS:
            done = self(*arguments, "--json")
            assert done.code == 0, done.err
            ANSWERS[key] = done.out
        found: dict[str, Any] = json.loads(ANSWERS[key])
        return found

    def refused(self, *arguments: str) -> str:
        """Run a command that must be refused as bad input; return its one-line message."""
        done = self(*arguments)
        assert done.code == 2, done
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert "Traceback" not in done.err
        assert done.err.count("\n") == 1
        return done.err

    def plan(self) -> Path:
        """Write a plan of the small workload, as a tune does."""
        path = self.folder / "plan.json"
        save_plan(tuned_plan(), path)
        return path

    def files(self) -> set[str]:
        """Names in the folder, temporary ones included."""
        return {path.name for path in self.folder.iterdir()}
