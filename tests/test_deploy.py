"""The batch scripts for Slurm: bash reads them, and the command line knows what they ask for."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from domino_tune.cli import VERBS, build_app
from tests.conftest import REPOSITORY

SCRIPTS = sorted((REPOSITORY / "deploy" / "slurm").glob("*.sbatch"))


def commands(script: Path) -> list[list[str]]:
    """Words behind ``python -m domino_tune``, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", script.read_text())
    return [
        shlex.split(line.partition("python -m domino_tune ")[2])
        for line in text.splitlines()
        if line.startswith("srun ")
    ]


def test_there_is_one_for_each_verb_that_takes_ranks() -> None:
    assert {script.stem for script in SCRIPTS} == {"profile", "tune", "validate"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_bash_reads_it(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_command_line_takes_its_options(script: Path) -> None:
    """Parsed by the very parser, down to a request that checks itself."""
    (words,) = commands(script)
    assert words[0] == script.stem
    verb = next(verb for verb in VERBS if verb.path == (script.stem,))
    command = typer.main.get_command(build_app()).commands[script.stem]  # type: ignore[attr-defined]
    with command.make_context(script.stem, words[1:]) as context:
        given = {name: value for name, value in context.params.items() if value is not None}
    names = set(verb.request.__dataclass_fields__)
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if k in names}
    verb.request(**plain)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_one_failing_rank_ends_all_and_each_gpu_has_a_task(script: Path) -> None:
    text = script.read_text()
    assert "\nsrun --kill-on-bad-exit=1 python" in text
    tasks = re.search(r"^#SBATCH --ntasks-per-node=(\d+)", text, re.MULTILINE)
    gpus = re.search(r"^#SBATCH --gpus-per-node=(\d+)", text, re.MULTILINE)
    assert tasks is not None
    assert gpus is not None
    assert tasks[1] == gpus[1]
