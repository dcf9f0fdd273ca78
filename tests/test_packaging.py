"""The built wheel, installed outside the repository, and run beside files with the same names."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("api", "domino_tune", "profiles", "simulator")


@dataclass(frozen=True, kw_only=True)
class Installation:
    """The wheel, installed by pip under ``target``. It uses the packages of this environment."""

    wheel: Path
    target: Path

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run ``command`` in ``cwd`` with the installed wheel, not with the repository."""
        env = {**os.environ, "PYTHONPATH": str(self.target)}
        return subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120
        )

    def run_module(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "domino_tune", *arguments, cwd=cwd)

    def run_script(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.target / "bin" / "domino-tune"), *arguments, cwd=cwd)


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    copy_sources(source)
    no_downloads = ("--no-deps", "--no-index")
    pip("wheel", *no_downloads, "--no-build-isolation", "-w", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    pip("install", *no_downloads, "--target", str(folder / "target"), str(wheel))
    return Installation(wheel=wheel, target=folder / "target")


def copy_sources(to: Path) -> None:
    """Copy the sources of the wheel. A build in the repository would leave files there."""
    for name in ("pyproject.toml", "README.md", "LICENSE", *PACKAGES):
        for path in [REPOSITORY / name, *sorted((REPOSITORY / name).rglob("*"))]:
            if path.is_file() and "__pycache__" not in path.parts:
                copy = to / path.relative_to(REPOSITORY)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """Return a folder with a ``simulator.py`` that must not run, and an unrelated ``profiles/``."""
    (tmp_path / "simulator.py").write_text("raise SystemExit('the wrong simulator ran')\n")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "notes.json").write_text("{}\n")
    return tmp_path


def test_wheel_holds_every_package_and_data_file(installation: Installation) -> None:
    held = set(zipfile.ZipFile(installation.wheel).namelist())
    wanted = {
        path.relative_to(REPOSITORY).as_posix()
        for package in PACKAGES
        for suffix in (".py", ".json", ".html", ".css", ".js")
        for path in (REPOSITORY / package).rglob(f"*{suffix}")
    }
    assert wanted <= held
    assert not [name for name in held if name.startswith("tests/")]


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_console_script_runs_beside_our_names(installation: Installation, trap: Path) -> None:
    done = installation.run_script("models", cwd=trap)
    assert done.returncode == 0, done.stderr
    assert "gpt3-13b" in done.stdout


def test_module_refuses_a_module_with_our_name(installation: Installation, trap: Path) -> None:
    done = installation.run_module("models", cwd=trap)
    assert done.returncode == 2
    assert str(trap / "simulator.py") in done.stderr
    assert "domino-tune" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["api", "profiles", "simulator"])
def test_module_refuses_a_package_with_our_name(
    installation: Installation, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package ran')\n")
    done = installation.run_module("--help", cwd=tmp_path)
    assert done.returncode == 2
    assert repr(name) in done.stderr


def test_module_runs_beside_a_mere_folder(installation: Installation, tmp_path: Path) -> None:
    """Python prefers an installed package to a ``profiles/`` without ``__init__.py``."""
    (tmp_path / "profiles").mkdir()
    for arguments in (["--help"], ["models"]):
        done = installation.run_module(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout
