"""Environments of frameworks: packages of PyPI beside the project's own, kept between runs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import REPOSITORY

SLOWEST_S: Final = 300


def environment(cache: pytest.Cache, *requirements: str) -> Path:
    """Return the Python of an environment with just these packages, none of their dependencies, and
    behind them all that this one has, torch too.

    It lies in pytest's cache. Where packages cannot be had, skip, which CI counts as a failure.
    """
    told = repr((sys.version, sys.prefix, requirements))
    folder = cache.mkdir("frameworks") / hashlib.sha256(told.encode()).hexdigest()[:16]
    python, whole = folder / "bin" / "python", folder / "whole"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            venv.EnvBuilder(clear=True, symlinks=True, with_pip=False).create(folder)
            own = sysconfig.get_path("purelib")
            (site_packages(python) / "project.pth").write_text(f"{own}\n")
            _install(python, requirements)
            whole.touch()
    return python


def site_packages(python: Path) -> Path:
    """Return where the packages of such an environment lie."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(python.parent.parent)}))


def answers(python: Path, job: str, cases: Mapping[str, Any]) -> Any:
    """Return what the module ``job`` of this package prints for the cases, which it gets as JSON,
    in its last line."""
    done = subprocess.run(
        [python, "-m", f"{__package__}.{job}"], input=json.dumps(dict(cases)), capture_output=True,
        text=True, check=False, timeout=SLOWEST_S, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _install(python: Path, requirements: tuple[str, ...]) -> None:
    """Install with pip. DeepSpeed comes as source: it is not to compile its kernels."""
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python),
        "install", "--quiet", "--no-deps", "--no-build-isolation", *requirements,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=SLOWEST_S,
        env={**os.environ, "DS_BUILD_OPS": "0"},
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"pip cannot install {' '.join(requirements)}: {done.stderr[-2000:]}")
