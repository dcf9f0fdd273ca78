"""The frozen command line: each change of it is written down."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from domino_tune.cli.commands import VERBS, Verb, build_app, main
from domino_tune.requests import QUESTIONS
from tests.conftest import REPOSITORY

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "cli.txt"


@cache
def surface() -> list[str]:
    """One line an option: command, option, what it takes, whether it is required or repeats."""
    return sorted(_lines(typer.main.get_command(build_app()), []))


def _lines(command: Any, path: list[str]) -> Iterator[str]:
    for name, child in getattr(command, "commands", {}).items():
        yield from _lines(child, [*path, name])
    if not hasattr(command, "commands"):
        yield " ".join(path)
        for parameter in command.params:
            name = "/".join(parameter.opts) if parameter.param_type_name == "option" else "ARGUMENT"
            takes = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar}"
            extras = " required" * parameter.required + " repeats" * bool(
                getattr(parameter, "multiple", False)
            )
            yield f"{' '.join(path)} {name}{takes}{extras}"


def test_every_change_is_written_down() -> None:
    """To freeze a change, write the lines into tests/unit/golden/cli.txt, sorted."""
    assert surface() == GOLDEN.read_text().splitlines()


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_no_verb_has_more_than_40_options(verb: Verb) -> None:
    assert sum(line.startswith(f"{verb.name} -") for line in surface()) < 40  # and --help


@pytest.mark.parametrize("verb", QUESTIONS)
def test_help_has_the_common_ten_first(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    told = capsys.readouterr().out
    common = told.partition("Common options:")[2].partition("\n\n")[0]
    assert told.index("Common options:") < told.index("Output:")
    assert 4 <= common.count("\n  --") <= 11
    assert "--set KEY=VALUE" in common


def test_the_version_is_the_packages_own(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"domino_tune {project['version']}\n"
