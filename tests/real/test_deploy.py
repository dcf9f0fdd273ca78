"""The batch scripts for Slurm: bash parses them, and the command line takes their options."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from domino_tune.cli.commands import VERBS, build_app
from domino_tune.requests import Request, TuneRequest
from domino_tune.verbs.tune_measured import check_measurable
from simulator.errors import InputError
from tests.conftest import REPOSITORY

SCRIPTS = sorted((REPOSITORY / "deploy" / "slurm").glob("*.sbatch"))


def commands(script: Path) -> list[list[str]]:
    """Return the words after ``python -m domino_tune`` of each command, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", script.read_text())
    return [
        shlex.split(line.partition("python -m domino_tune ")[2])
        for line in text.splitlines()
        if line.startswith(("srun ", "python -m domino_tune "))
    ]


def parsed(words: list[str]) -> Request:
    """Return the request of a command line, parsed by the program's own parser."""
    verb = next(v for v in VERBS if words[: len(v.name.split())] == v.name.split())
    path, command = verb.name.split(), cast(Any, typer.main.get_command(build_app()))
    for name in path:
        command = command.commands[name]
    with command.make_context(verb.name, words[len(path) :]) as context:
        given = {name: value for name, value in context.params.items() if value is not None}
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    names = set(verb.request.__dataclass_fields__)
    verb.outputs(**{k: v for k, v in plain.items() if k not in names})
    return verb.request(**{k: v for k, v in plain.items() if k in names})


def test_each_verb_with_ranks_has_a_script() -> None:
    assert {script.stem for script in SCRIPTS} == {"profile", "tune", "validate"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_bash_parses_it(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_command_line_takes_its_options(script: Path) -> None:
    (words,) = commands(script)
    assert words[0] == script.stem
    parsed(words)


def number(script: Path, option: str) -> int:
    found = re.search(rf"^#SBATCH --{option}=(\d+)", script.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def joins_ranks(script: Path) -> bool:
    """Return whether Slurm starts the verb once for each rank. If not, the verb starts its ranks
    itself."""
    return "\nsrun " in script.read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_one_failing_rank_ends_all_and_each_gpu_has_a_rank(script: Path) -> None:
    tasks, gpus = number(script, "ntasks-per-node"), number(script, "gpus-per-node")
    (given,) = commands(script)
    ranks = int(given[given.index("--tp") + 1]) if "--tp" in given else gpus
    if joins_ranks(script):
        assert "\nsrun --kill-on-bad-exit=1 --cpus-per-task=" in script.read_text()
        assert tasks == gpus == ranks
    else:
        assert (tasks, gpus) == (1, ranks)


def test_measured_tuning_is_allowed_where_its_script_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the environment of a batch script, or of a task that srun started in it."""
    script = next(script for script in SCRIPTS if script.stem == "tune")
    tasks = number(script, "ntasks-per-node") * number(script, "nodes")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", str(tasks))
    if joins_ranks(script):
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", str(tasks))
    else:
        monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
    check_measurable(TuneRequest(objective="measure"))
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    with pytest.raises(InputError, match="cannot run under Slurm"):
        check_measurable(TuneRequest(objective="measure"))


def test_evidence_is_named_as_it_is_by_default() -> None:
    (words,) = commands(next(script for script in SCRIPTS if script.stem == "tune"))
    assert words[words.index("--evidence") + 1].endswith(".jsonl")
