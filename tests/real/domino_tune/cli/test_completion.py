"""Completion in real shells, and what an answer imports."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from domino_tune.cli.asking import ASKED
from simulator.presets import MODELS
from tests.real.domino_tune.cli.test_own_process import HEAVY
from tests.support.processes import PATIENCE_S


def test_bash_itself_completes(tmp_path: Path) -> None:
    """The script that bash sources, its function, and the program that it asks."""
    program = tmp_path / "domino-tune"
    program.write_text(f'#!/bin/bash\nexec {shlex.quote(sys.executable)} -m domino_tune "$@"\n')
    program.chmod(0o755)
    script = (
        f'eval "$({ASKED}=source_bash domino-tune)" && complete -p domino-tune\n'
        "COMP_WORDS=(domino-tune simulate --model gpt3-1) COMP_CWORD=3\n"
        '_domino_tune_completion domino-tune; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    registered, *names = done.stdout.splitlines()
    assert registered == "complete -o default -F _domino_tune_completion domino-tune"
    assert names == [name for name in sorted(MODELS) if name.startswith("gpt3-1")]


def test_the_shell_that_asks_is_shown_its_script() -> None:
    command = f"{shlex.quote(sys.executable)} -m domino_tune --show-completion; exit $?"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0
    assert "complete -o default -F _domino_tune_completion domino-tune" in done.stdout


def test_an_answer_imports_nothing_heavy() -> None:
    """Typer itself imports pydantic, where it is installed."""
    heavy = [name for name in HEAVY if name != "pydantic"]
    code = (
        "import sys; from domino_tune.cli.commands import main; rc = main([]);"
        f"print(rc, [m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    asked = {ASKED: "complete_bash", "COMP_WORDS": "domino-tune tune --profile h1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, **asked, "COMP_CWORD": "3"},
    )  # fmt: skip
    assert done.stdout == "h100-dgx\n"
    assert done.stderr.strip() == "0 []"
