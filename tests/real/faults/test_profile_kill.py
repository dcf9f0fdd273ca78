"""``profile`` interrupted, and one of its ranks killed: the file stays valid, all ranks end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("torch")

from domino_tune.measure.probe_set import timed_ops
from domino_tune.store.profiles import load_profile
from domino_tune.store.shelf import dump_model
from simulator.profile import Profile
from tests.conftest import REPOSITORY
from tests.support.probing import TINY
from tests.support.processes import PATIENCE_S, children, is_alive, started


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tiny.json").write_text(dump_model(TINY))
    return tmp_path


def command(home: Path, samples: int) -> list[str]:
    return [
        "profile", "--name", "here", "--for-model", str(home / "tiny.json"), "--tp", "2",
        "--seq-length", "16", "--micro-batch-size", "4", "--samples", str(samples),
    ]  # fmt: skip


def profiling(home: Path, samples: int) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(
        [sys.executable, "-m", "domino_tune", *command(home, samples)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY,
        env={**os.environ, "DOMINO_TUNE_HOME": str(home)},
    )  # fmt: skip


def progress(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the lines of progress. Fail with all that was said where the process ends."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("round "):
            yield line
    pytest.fail(f"it ended with code {process.wait()} and said: {''.join(said)}")


def load_file(home: Path) -> Profile:
    """Load the file. This checks all of it, also its checksum."""
    return load_profile(home / "profiles" / "here.json")


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("whole_group", [True, False])
def test_ctrl_c_ends_ranks_keeps_the_file_and_prints_how_to_continue(
    home: Path, whole_group: bool
) -> None:
    with profiling(home, samples=1000) as process:
        next(progress(process))
        ranks = children(process.pid)
        if whole_group:  # as a terminal does
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert not any(map(is_alive, ranks))
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    resume = shlex.join(["python", "-m", "domino_tune", *command(home, 1000)[:1]])
    assert (
        f"The measurements are in {home / 'profiles' / 'here.json'}. To go on: {resume} --" in err
    )
    assert timed_ops(load_file(home))


def test_a_killed_rank_is_reported_and_what_was_measured_is_kept(home: Path) -> None:
    with profiling(home, samples=1000) as process:
        next(progress(process))
        os.kill(children(process.pid)[1], signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4
    assert "was killed by SIGKILL" in err
    assert "Traceback" not in err
    assert timed_ops(load_file(home))
