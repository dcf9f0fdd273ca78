"""Tree: a copy of the repository, in which faults are made and tests run."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sysconfig
import time
import venv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

import psutil

from lab.mutants.covered import DATA, SECONDS, SETTINGS, Covering
from lab.mutants.faults import ALL_CASES, MUTATED, TOLD, Fault, area_of, ordered_tests

NOT_COPIED: Final = shutil.ignore_patterns(".*", "out", "__pycache__", "*.egg-info")
STUCK_CPU_S: Final = 200
STUCK_S: Final = 600
"""A test that computes or takes this long is stuck, if it needs at most half without the fault."""
MOST_MEMORY: Final = 6 << 30  # Most memory of a test run, in bytes, because a fault may fill it
POLL_S: Final = 0.2
BRIEF: Final = ("-v", "-x", "--tb=no", "-p", "no:cacheprovider")
ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
OK_OR_NO_TESTS: Final = (0, 5)
ASKED: Final = "COVERAGE_PROCESS_START"
TRACED: Final = (
    f"import os; os.environ.get('{ASKED}') and __import__('coverage').process_startup()\n"
)
"""In a .pth file: each Python is traced where the environment asks for it."""
ENDS: Final = "PASSED|FAILED|ERROR|SKIPPED|XFAIL|Fatal Python error"
BEGUN: Final = re.compile(rf"^(\S+\.py::.+?) *(?:(?:{ENDS})\b.*)?$", re.M)
"""A line of `pytest -v`: a test, and its result where it has one, or how it crashed."""
NOT_COLLECTED: Final = re.compile(r"^ERROR (\S+\.py)\b", re.M)
Fate = Literal["noticed", "survived", "unjudged", "equivalent"]
How = Literal["passed", "failed", "stuck", "limit"]


class Run(NamedTuple):
    """How a run of tests ended: with the ``last`` of them, or a file that cannot be imported."""

    how: How
    last: str
    cpu_s: float


class Tree:
    """A copy of the repository at ``root``, with a Python that imports nothing but the copy and
    installed packages, whatever the environment of a process. One fault at a time is in it.
    ``needed`` holds which share of these limits tests need without any fault, infinite for those
    that fail; trees of one repository may share it."""

    def __init__(self, repository: Path, root: Path, needed: dict[str, float]) -> None:
        shutil.copytree(repository, root, ignore=NOT_COPIED)
        self.root, self.needed, self._temporary, self._edits = root, needed, root / ".tmp", 0
        self.covering = Covering()
        venv.create(root / ".venv", symlinks=True)
        self.python = root / ".venv/bin/python"
        packages = next((root / ".venv/lib").glob("python*/site-packages"))
        # A path in a .pth file is searched for modules, but not for .pth files: an editable
        # install of another tree is not seen.
        paths = f"{root}\n{sysconfig.get_path('purelib')}\n"
        (packages / "tree.pth").write_text(paths + TRACED)

    def trace(self, tests: Sequence[str], into: Path) -> None:
        """Run ``tests`` without any fault, and write which lines they run and what they take to
        the folder ``into``."""
        into.mkdir(parents=True)
        settings = self.root / ".coveragerc"
        folders = ",".join(MUTATED)
        settings.write_text(SETTINGS.format(data=into / DATA, folders=folders), "utf-8")
        environment = self._environment() | {ASKED: str(settings)}
        self._clear()
        done = subprocess.run(
            [self.python, "-m", "pytest", "-q", *BRIEF[2:], "-p", "lab.mutants.covered", *tests],
            cwd=self.root, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if not (self.root / SECONDS).exists():
            raise RuntimeError(f"The tests cannot be traced:\n{done.stdout}")
        shutil.move(self.root / SECONDS, into)

    def judge(self, fault: Fault, most_cpu_s: float) -> tuple[Fate, str]:
        """Return whether the tests of the fault's area notice it, and which one does. One does that
        fails with the fault, again alone, or is stuck with it, and passes without it. A fault
        survives when all have passed, and is unjudged when the CPU time runs out before."""
        left_s, area, flaky = most_cpu_s, area_of(fault.path), set[str]()
        for tests in self._tests(fault):
            while (run := self._run_with(fault, area, tests, left_s, flaky)).how != "passed":
                left_s -= run.cpu_s
                if run.how == "limit" or run.last in {*flaky, *self.broken()}:
                    return "unjudged", run.last
                needed = self._needed(area, run.last)
                if run.how == "stuck" and needed < math.inf:
                    return "noticed" if needed <= 1 / 2 else "unjudged", run.last
                if needed < math.inf:
                    if self._run_with(fault, area, [run.last], math.inf).how != "passed":
                        return "noticed", run.last
                    flaky.add(run.last)
            left_s -= run.cpu_s
        return "survived", ""

    def _tests(self, fault: Fault) -> Iterator[list[str]]:
        """Yield tests that run a fault's line; then files of tests, the nearest of the unit ring,
        its others, and so of the real ring, where tests take longer."""
        where = fault.path, (self.root / fault.path).read_text("utf-8"), fault.line
        yield self.covering.tests(*where)
        near_and_far = ordered_tests(self.root, fault.path)
        for ring in TOLD["rings"]:
            for files in near_and_far:
                of_ring = [file for file in files if file.startswith(f"tests/{ring}/")]
                yield self.covering.first(of_ring, *where)

    def broken(self) -> list[str]:
        """Return the tests that fail without any fault, which are left out."""
        return sorted(test for test, needed in self.needed.items() if needed == math.inf)

    def _needed(self, area: str, test: str) -> float:
        if test not in self.needed:
            begun_s = time.monotonic()
            run = self.run(area, [test], math.inf)
            share = _share(run.cpu_s, time.monotonic() - begun_s)
            self.needed[test] = share if run.how == "passed" else math.inf
        return self.needed[test]

    def _run_with(
        self, fault: Fault, area: str, tests: Sequence[str], cpu_s: float,
        flaky: Iterable[str] = (),
    ) -> Run:  # fmt: skip
        path = self.root / fault.path
        source = path.read_text("utf-8")
        self._write(path, fault.applied(source))
        try:
            return self.run(area, tests, cpu_s, flaky)
        finally:
            self._write(path, source)

    def run(self, area: str, tests: Sequence[str], cpu_s: float, flaky: Iterable[str] = ()) -> Run:
        """Run ``tests`` of an area, without ``flaky`` and broken ones, up to the first failure or
        ``cpu_s``; then end all that they started. Plugins would take longer to load than most
        faults live."""
        left_out = {*flaky, *self.broken()}
        tests = [test for test in tests if test not in left_out]
        if not tests:
            return Run("passed", "", 0)
        self._clear()
        log, cases = self.root / ".log", ["--all"] if area in ALL_CASES else []
        chosen = self.root / ".tests"
        chosen.write_text("\n".join(tests), "utf-8")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self.python, "-m", "pytest", *BRIEF, *cases,
                 *(f"--deselect={test}" for test in sorted(left_out)), f"@{chosen}"],
                cwd=self.root, env=self._environment(), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            how, used_s = _watched(process, log, cpu_s)
        finally:
            self._end_all()
            process.wait()
        text = log.read_text("utf-8", "replace")
        named = BEGUN.findall(text) or NOT_COLLECTED.findall(text) or tests[:1]
        return Run(how, named[-1], used_s)

    def _clear(self) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        self._temporary.chmod(0o777)  # PostgreSQL may run as another user

    def _environment(self) -> dict[str, str]:
        own = {"PYTHONPATH": str(self.root), "TMPDIR": str(self._temporary)}
        return {**os.environ, **ENVIRONMENT, **own}

    def _end_all(self) -> None:
        while found := list(self._processes()):
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=10)

    def _processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                words = [*process.cmdline(), *process.environ().values()]
                if any(f"{self.root}/" in word for word in words):
                    yield process

    def _write(self, path: Path, source: str) -> None:
        """Write a file with a time of its own, or Python would take an older compiled form."""
        path.write_text(source, "utf-8")
        self._edits += 1
        os.utime(path, (self._edits, self._edits))


def _watched(process: subprocess.Popen[bytes], log: Path, cpu_s: float) -> tuple[How, float]:
    used_s, size, at_s, at_cpu_s = 0.0, 0, time.monotonic(), 0.0
    while (code := process.poll()) is None:
        time.sleep(POLL_S)
        cpu_now_s, memory = _usage(process.pid)
        used_s = max(used_s, cpu_now_s)
        if (now := log.stat().st_size) != size:  # a test began or ended
            size, at_s, at_cpu_s = now, time.monotonic(), used_s
        if memory > MOST_MEMORY or _share(used_s - at_cpu_s, time.monotonic() - at_s) > 1:
            return "stuck", used_s
        if used_s > cpu_s:
            return "limit", used_s
    return "passed" if code in OK_OR_NO_TESTS else "failed", used_s


def _share(cpu_s: float, wall_s: float) -> float:
    return max(cpu_s / STUCK_CPU_S, wall_s / STUCK_S)


def _usage(pid: int) -> tuple[float, int]:
    cpu_s, memory = 0.0, 0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                cpu_s += sum(each.cpu_times()[:4])
                memory += each.memory_info().rss
    return cpu_s, memory
