"""Jobs of tests that misbehave, computed in real child processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from domino_tune.service.work import JobStep, Outcome, Reporter
from simulator.errors import InputError


def odd(task: bytes, reporter: Reporter) -> Outcome:
    """Do what the task's first word says; the others are its arguments."""
    name, *words = task.decode().split()
    return WORKS[name](reporter, *words)


def result(text: str = "{}", **more: Any) -> Outcome:
    return Outcome(result=text.encode(), last=JobStep(done=1, text="done"), **more)


def _answer(reporter: Reporter) -> Outcome:
    return result(f'{{"pid": {os.getpid()}}}')


def _refuse(reporter: Reporter) -> Outcome:
    raise InputError("It cannot be.").at("tp")


def _bug(reporter: Reporter) -> Outcome:
    raise RuntimeError("a secret of the code")


def _grow(reporter: Reporter) -> Outcome:
    kept = []
    while True:
        kept.append(bytearray(16 << 20))


def _wait(reporter: Reporter, folder: str = "") -> Outcome:
    """Count until told to stop; note that it lives in ``folder``."""
    done = 0
    while not reporter.stop:
        done += 1
        if folder:
            (Path(folder) / str(os.getpid())).touch()
        reporter.tell(JobStep(done=done, text=f"step {done}", points=((done, b"1"),)))
        time.sleep(0.02)
    return result(stopped_by=reporter.stop)


def _deaf(reporter: Reporter) -> Outcome:
    while True:
        time.sleep(0.05)


def _die(reporter: Reporter, folder: str, times: str) -> Outcome:
    """Die as often; each time after half as many steps as the time before."""
    lives = len(list(Path(folder).iterdir()))
    (Path(folder) / str(lives)).touch()
    if lives < int(times):
        reporter.tell(JobStep(done=8 >> lives, text="far", best={"iteration_ms": 8 >> lives}))
        time.sleep(0.6)
        os.kill(os.getpid(), signal.SIGKILL)
    return result()


WORKS: dict[str, Callable[..., Outcome]] = {
    "answer": _answer, "refuse": _refuse, "bug": _bug, "grow": _grow, "wait": _wait,
    "deaf": _deaf, "die": _die,
}  # fmt: skip
