"""Tree: a copy of the repository, in which faults are made and tests run."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lab.mutants.faults import MUTATED, Fault

NOT_COPIED: Final = shutil.ignore_patterns(".*", "out", "__pycache__", "*.egg-info")
TESTS: Final = {
    "simulator": ("tests/simulator", "tests/contracts"),
    "domino_tune/search": ("tests/domino_tune/search",),
}
"""Folders of the tests that should notice a fault, by the folder of the fault."""
MEMORY_KIB: Final = 8 << 20
"""Most address space of a test run, because a fault may fill the memory."""
MOST_CPU_S: Final = 600
"""Most CPU time of the tests of a folder."""
WALL_PER_CPU: Final = 10
"""A run that takes this many times its CPU time waits for something that never comes."""

BRIEF: Final = ("-q", "-x", "--tb=no", "-p", "no:cacheprovider")
ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


class Tree:
    """A copy of the repository at ``root``. One fault at a time is in it."""

    def __init__(self, repository: Path, root: Path) -> None:
        shutil.copytree(repository, root, ignore=NOT_COPIED)
        self.root = root
        self._edits = 0

    def is_noticed(self, fault: Fault, cpu_s: int) -> bool:
        """Return whether a test fails with ``fault``, or computes for more than ``cpu_s``."""
        path = self.root / fault.path
        source = path.read_text("utf-8")
        self._write(path, fault.applied(source))
        try:
            nearest, others = ordered_tests(self.root, fault.path)
            return not (self.passes(nearest, cpu_s) and self.passes(others, cpu_s))
        finally:
            self._write(path, source)

    def passing_s(self, folder: str) -> float:
        """Return the CPU seconds of a folder's tests. Raise RuntimeError if one fails."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        if not self.passes(TESTS[folder], MOST_CPU_S):
            raise RuntimeError(f"The tests of {folder} fail without any fault; correct them.")
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before

    def passes(self, tests: Sequence[str], cpu_s: int) -> bool:
        """Return whether ``tests`` pass within ``cpu_s``, or True for none.

        The first failure ends the run. Plugins would take longer to load than most faults live.
        """
        if not tests:
            return True
        limited = ("bash", "-c", f'ulimit -v {MEMORY_KIB} -t {cpu_s}; exec "$@"', "-")
        pytest = (sys.executable, "-m", "pytest", "--thorough", *BRIEF)
        run = subprocess.Popen(
            [*limited, *pytest, *tests],
            cwd=self.root,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(self.root)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return run.wait(WALL_PER_CPU * cpu_s) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if run.poll() is None:  # tests start processes, too: end the whole group
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()

    def _write(self, path: Path, source: str) -> None:
        """Write a file with a time of its own, or Python would take an older compiled form."""
        path.write_text(source, "utf-8")
        self._edits += 1
        os.utime(path, (self._edits, self._edits))


def folder_of(path: str) -> str:
    """Return which folder of MUTATED holds the file."""
    return next(folder for folder in MUTATED if Path(path).is_relative_to(folder))


def ordered_tests(root: Path, path: str) -> tuple[list[str], list[str]]:
    """Return the test files for a file of MUTATED: those that have its name or import it, then the
    others."""
    module = Path(path).with_suffix("")
    name = module.parent.name if module.stem == "__init__" else module.stem
    imported = f"from {'.'.join(module.parts).removesuffix('.__init__')} import"
    nearest: list[str] = []
    others: list[str] = []
    for tests in TESTS[folder_of(path)]:
        for file in sorted((root / tests).rglob("test_*.py")):
            is_near = file.stem.startswith(f"test_{name}") or imported in file.read_text("utf-8")
            (nearest if is_near else others).append(file.relative_to(root).as_posix())
    nearest.sort(key=lambda file: not Path(file).stem.startswith(f"test_{name}"))
    return nearest, others
