"""``profile`` killed and interrupted: the file stays valid, ranks end, the next run continues."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from domino_tune.measure.probe_set import timed_ops
from domino_tune.store.formats.model_file import dump_model
from domino_tune.store.profiles import load_profile
from simulator.profile import Profile
from tests.conftest import REPOSITORY
from tests.support.probing import TINY
from tests.support.processes import PATIENCE_S, children, is_alive, wait_until_gone


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tiny.json").write_text(dump_model(TINY))
    return tmp_path


def command(home: Path, samples: int) -> list[str]:
    return [
        "profile", "--name", "here", "--for-model", str(home / "tiny.json"), "--tp", "2",
        "--seq-length", "16", "--micro-batch-size", "4", "--samples", str(samples),
    ]  # fmt: skip


def start(home: Path, samples: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "domino_tune", *command(home, samples)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
        env={**os.environ, "DOMINO_TUNE_HOME": str(home)}, start_new_session=True,
    )  # fmt: skip


def finish(home: Path, samples: int) -> str:
    process = start(home, samples)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out


def progress(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round "):
            yield line


def load_file(home: Path) -> Profile:
    """Load the file. This checks all of it, also its checksum."""
    return load_profile(home / "profiles" / "here.json")


@pytest.mark.thorough
def test_kill_9_at_any_moment_leaves_a_valid_file_and_the_next_run_continues(home: Path) -> None:
    """Kills come before the first round, right after it, and while the file is written again."""
    path = home / "profiles" / "here.json"
    known = 0
    for rounds, pause_s in ((0, 0.5), (1, 0.0), (3, 0.3), (2, 1.1)):
        process = start(home, samples=1000)
        lines = progress(process)
        for _ in range(rounds):
            next(lines)
        time.sleep(pause_s)
        ranks = children(process.pid)
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        wait_until_gone(ranks)
        if rounds:
            found = len(timed_ops(load_file(home)))
            assert found >= known
            known = found
    assert known > 0
    assert [entry.name for entry in path.parent.iterdir() if entry.suffix == ".json"] == [path.name]
    assert "Complete, in" in finish(home, samples=3)
    assert "nothing was left to measure" in finish(home, samples=3)


@pytest.mark.parametrize("whole_group", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_ctrl_c_ends_ranks_keeps_the_file_and_prints_how_to_continue(
    home: Path, whole_group: bool
) -> None:
    process = start(home, samples=1000)
    next(progress(process))
    ranks = children(process.pid)
    if whole_group:  # as a terminal does
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    resume = shlex.join(["python", "-m", "domino_tune", *command(home, 1000)[:1]])
    assert (
        f"The measurements are in {home / 'profiles' / 'here.json'}. To go on: {resume} --" in err
    )
    assert not any(map(is_alive, ranks))
    assert timed_ops(load_file(home))


@pytest.mark.thorough
def test_a_killed_rank_is_reported_and_what_was_measured_is_kept(home: Path) -> None:
    process = start(home, samples=1000)
    next(progress(process))
    os.kill(children(process.pid)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4
    assert "was killed by SIGKILL" in err
    assert "Traceback" not in err
    assert timed_ops(load_file(home))
