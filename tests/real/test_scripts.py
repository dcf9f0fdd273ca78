"""How the setup scripts find Python: tests with fake interpreters on the path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

NAMES = ("python3.13", "python3.12", "python3.11", "python3")
BROKEN = "#!/bin/bash\nexit 127\n"
OLD = '#!/bin/bash\n[[ "$2" == *version_info* ]] && exit 1\nexit 0\n'
WITHOUT_VENV = f'#!/bin/bash\n[[ "$2" == *ensurepip* ]] && exit 1\nexec {sys.executable} "$@"\n'
COMPLETE = f'#!/bin/bash\nexec {sys.executable} "$@"\n'
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def run_with(pythons: dict[str, str], tmp_path: Path, command: str) -> tuple[int, str, str]:
    """Run ``command`` where only the interpreters in ``pythons`` work."""
    repository, path = tmp_path / "repository", tmp_path / "bin"
    shutil.copytree(REPOSITORY / "scripts", repository / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, repository)
    path.mkdir()
    for name in NAMES:
        (path / name).write_text(pythons.get(name, BROKEN))
        (path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=repository,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test"])
def test_without_venv_says_what_to_install(tmp_path: Path, script: str) -> None:
    code, _, message = run_with({"python3": WITHOUT_VENV}, tmp_path, script)
    assert code == 1
    assert f"apt-get install python{VERSION}-venv" in message
    assert not (tmp_path / "repository" / ".venv").exists()


@pytest.mark.parametrize("pythons", [{}, {"python3": OLD}])
def test_without_a_recent_python_says_so(tmp_path: Path, pythons: dict[str, str]) -> None:
    code, _, message = run_with(pythons, tmp_path, "scripts/demo")
    assert code == 1
    assert "Python 3.11 or newer is needed" in message


@pytest.mark.parametrize(
    ("pythons", "found"),
    [
        ({"python3.12": COMPLETE, "python3": COMPLETE}, "python3.12"),
        ({"python3.13": WITHOUT_VENV, "python3": COMPLETE}, "python3"),
        ({"python3.13": OLD, "python3.11": COMPLETE}, "python3.11"),
    ],
)
def test_takes_the_newest_that_works(tmp_path: Path, pythons: dict[str, str], found: str) -> None:
    code, name, _ = run_with(pythons, tmp_path, "source scripts/lib.sh; find_python")
    assert (code, name) == (0, found)
