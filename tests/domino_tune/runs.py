"""Runs the command line in this process, on a model small enough to be quick."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from domino_tune.cli.commands import main
from domino_tune.store.formats.model_file import dump_model
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
ON_TWO = ("--profile", "h100-dgx", "--tp", "2", "--seq-length", "256", "--micro-batch-size", "2")


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

    def refused(self, *arguments: str) -> str:
        """Run a command that must be refused as bad input; return its one-line message."""
        done = self(*arguments)
        assert done.code == 2, done
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert "Traceback" not in done.err
        assert done.err.count("\n") == 1
        return done.err

    def files(self) -> set[str]:
        """Names in the folder, temporary ones included."""
        return {path.name for path in self.folder.iterdir()}
