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
MODULE = (sys.executable, "-m", "domino_tune")
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True, kw_only=True)
class Installation:
    """The wheel, installed by pip under ``target``. It uses the packages of this environment."""

    wheel: Path
    target: Path

    def run(self, *command: str, cwd: Path, before: Path | None = None) -> Done:
        """Run ``command`` in ``cwd`` with the installed wheel, not with the repository; packages in
        the folder ``before`` are found before it."""
        path = os.pathsep.join(str(one) for one in (before, self.target) if one)
        return subprocess.run(
            command, cwd=cwd, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
            text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip

    @property
    def script(self) -> str:
        return str(self.target / "bin" / "domino-tune")


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
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


def test_wheel_holds_every_package_and_data_file(installation: Installation) -> None:
    held = set(zipfile.ZipFile(installation.wheel).namelist())
    wanted = {
        path.relative_to(REPOSITORY).as_posix()
        for package in PACKAGES
        for suffix in (".py", ".typed", ".json", ".toml", ".html", ".css", ".js")
        for path in (REPOSITORY / package).rglob(f"*{suffix}")
    }
    assert wanted <= held
    assert not [name for name in held if name.startswith(("tests/", "lab/", "results/"))]


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def impostor(folder: Path, name: str, package: bool) -> Path:
    """Make a module or package ``name`` in ``folder`` that must not run."""
    path = folder / name / "__init__.py" if package else folder / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"raise SystemExit('the wrong {name} ran')\n")
    return path


def test_the_script_runs_beside_our_names(installation: Installation, tmp_path: Path) -> None:
    impostor(tmp_path, "simulator", package=False)
    done = installation.run(installation.script, "models", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "gpt3-13b" in done.stdout


def test_the_module_runs_beside_a_mere_folder(installation: Installation, tmp_path: Path) -> None:
    """Python prefers an installed package to a ``profiles/`` without ``__init__.py``."""
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "notes.json").write_text("{}\n")
    done = installation.run(*MODULE, "models", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("name", "package"),
    [("simulator", False), ("api", True), ("profiles", True), ("simulator", True)],
)
def test_the_module_refuses_our_names(
    installation: Installation, tmp_path: Path, name: str, package: bool
) -> None:
    path = impostor(tmp_path, name, package)
    done = installation.run(*MODULE, "models", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert str(path.parent if package else path) in done.stderr
    assert "domino-tune" in done.stderr


def test_python_refuses_a_module_with_our_name(installation: Installation, tmp_path: Path) -> None:
    path = impostor(tmp_path, "simulator", package=False)
    done = installation.run(sys.executable, "-c", "from domino_tune import simulate", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: package 'simulator' comes from ")
    assert str(path) in last
    assert str(installation.target) in last
    assert "Rename it" in last
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
    other = impostor(tmp_path / "site-packages", name, package=True).parent
    python = (sys.executable, "-c", "from domino_tune import tune")
    for command, code in (((installation.script, "models"), 2), (python, 1)):
        done = installation.run(*command, cwd=tmp_path, before=other.parent)
        assert done.returncode == code
        expected = f"package {name!r} comes from {other}, not from {installation.target}."
        assert expected in done.stderr


def test_python_runs_beside_another_api(installation: Installation, tmp_path: Path) -> None:
    """Only the command line has use for our ``api``; a program of the user's may have its own."""
    impostor(tmp_path, "api", package=False)
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
