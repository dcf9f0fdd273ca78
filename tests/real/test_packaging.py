"""The built wheel, installed outside the repository, and run beside files with the same names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S

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
        for suffix in (".py", ".typed", ".json", ".html", ".css", ".js")
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


def test_python_refuses_a_module_with_our_name(installation: Installation, trap: Path) -> None:
    done = installation.run(sys.executable, "-c", "from domino_tune import simulate", cwd=trap)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: package 'simulator' comes from ")
    assert str(trap / "simulator.py") in last
    assert str(installation.target) in last
    assert "Rename it" in last


def test_python_refuses_a_module_that_is_imported_already(
    installation: Installation, tmp_path: Path
) -> None:
    code = (
        "import sys, types; sys.modules['simulator'] = types.ModuleType('simulator');"
        "from domino_tune import load_profile"
    )
    done = installation.run(sys.executable, "-c", code, cwd=tmp_path)
    assert done.returncode == 1
    assert "package 'simulator' comes from the running program" in done.stderr


@pytest.mark.parametrize("name", ["profiles", "simulator"])
def test_script_and_python_refuse_a_package_that_is_installed_before_ours(
    installation: Installation, tmp_path: Path, name: str
) -> None:
    other = tmp_path / "site-packages" / name
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('the wrong package ran')\n")
    before = f"{other.parent}{os.pathsep}{installation.target}"
    script = str(installation.target / "bin" / "domino-tune")
    for command, code in (
        ([script, "models"], 2),
        ([sys.executable, "-c", "from domino_tune import tune"], 1),
    ):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
            env={**os.environ, "PYTHONPATH": before},
        )  # fmt: skip
        assert done.returncode == code
        assert f"package {name!r} comes from {other}, not from {installation.target}." in (
            done.stderr
        )


def test_python_runs_beside_another_api(installation: Installation, tmp_path: Path) -> None:
    """Only the command line has use for our ``api``; a program of the user's may have its own."""
    (tmp_path / "api.py").write_text("raise SystemExit('the wrong api ran')\n")
    code = "from domino_tune import load_profile; print(load_profile('h100-dgx').name)"
    done = installation.run(sys.executable, "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "h100-dgx\n"), done.stderr


def test_every_import_of_the_wheel_is_declared() -> None:
    """Each package that shipped code imports is a dependency, or belongs to an extra."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {k: v for k, v in project["optional-dependencies"].items() if k != "dev"}
    wanted = [*project["dependencies"], *(one for listed in extras.values() for one in listed)]
    declared = {_normal(re.split(r"[^\w.-]", one)[0]) for one in wanted}
    installed = packages_distributions()
    undeclared = {
        f"{place}: {name}"
        for place, name in _foreign_imports()
        if not declared & {_normal(one) for one in [name, *installed.get(name, ())]}
        and name != "pydantic_core"  # pydantic pins it to the version that fits
    }
    assert undeclared == set()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _foreign_imports() -> Iterator[tuple[str, str]]:
    """Yield file and package of each import of another project's in the shipped packages."""
    for path in (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in {name.partition(".")[0] for name in names}:
                if name not in (*PACKAGES, *sys.stdlib_module_names):
                    yield path.relative_to(REPOSITORY).as_posix(), name
