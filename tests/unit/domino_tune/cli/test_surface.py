"""The frozen command line: additive changes only, and each of them written down."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from domino_tune.cli.commands import VERBS, build_app, main
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


def test_nothing_was_taken_away() -> None:
    assert [line for line in GOLDEN.read_text().splitlines() if line not in surface()] == []


def test_every_addition_is_written_down() -> None:
    """To freeze an addition, put the new lines into tests/unit/golden/cli.txt, sorted."""
    assert surface() == GOLDEN.read_text().splitlines()


def test_every_verb_of_the_issue_is_there() -> None:
    paths = {verb.name for verb in VERBS}
    wanted = {"simulate", "tune", "whatif", "plan show", "plan export", "models", "profiles list"}
    wanted |= {"profile", "validate"}
    assert wanted <= paths


def test_the_version_is_the_packages_own(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"domino_tune {project['version']}\n"
