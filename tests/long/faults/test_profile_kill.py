"""``profile`` killed repeatedly at random moments: its file stays valid, and the next run
continues.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from domino_tune.measure.probe_set import timed_ops
from tests.real.faults.test_profile_kill import home, load_file, profiling, progress
from tests.support.processes import PATIENCE_S, children, wait_until_gone

__all__ = ["home"]


@pytest.mark.parametrize("seed", range(4))
def test_kill_9_at_any_moment_leaves_a_valid_file_and_the_next_run_continues(
    home: Path,
    seed: int,
) -> None:
    path, known, chance = home / "profiles" / "here.json", 0, random.Random(seed)
    for rounds in (0, 1, 3, 2):
        with profiling(home, samples=1000) as process:
            lines = progress(process)
            for _ in range(rounds):
                next(lines)
            time.sleep(chance.uniform(0, 1.2))
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
    for said in ("Complete, in", "nothing was left to measure"):
        with profiling(home, samples=3) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert said in out
