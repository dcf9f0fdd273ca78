"""Quanta of every task, each in a worker that knows nothing: the result has the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

from domino_tune.service.tasks import work
from tests.conftest import REPOSITORY
from tests.support.tasks import EVERYTHING, LONG, SWEEPS, paused, paused_everywhere, undisturbed


@pytest.mark.parametrize(
    ("name", "forget"), [*((name, True) for name in EVERYTHING), *((name, False) for name in LONG)]
)
def test_paused_after_every_quantum_it_gives_the_same(name: str, forget: bool) -> None:
    task = EVERYTHING[name]
    expected = undisturbed(task)
    last, before = paused_everywhere(task, work.resume(), forget) if forget else paused(task)
    assert before
    assert last.result == expected.result
    assert last.artifacts == expected.artifacts


@pytest.mark.parametrize("name", ["bayes", "exhaustive", "sweep of retuned", "layouts of two GPUs"])
def test_in_another_process_with_other_hashes_too(name: str) -> None:
    expected = undisturbed(EVERYTHING[name])
    program = (
        "import hashlib\n"
        "from domino_tune.service.tasks import work\n"
        "from tests.support.tasks import EVERYTHING, paused_everywhere\n"
        f"last, _ = paused_everywhere(EVERYTHING[{name!r}], work.resume(), True)\n"
        "for body in (last.result, *last.artifacts.values()):\n"
        "    print(hashlib.sha256(body).hexdigest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    )  # fmt: skip
    assert expected.result is not None
    bodies = (expected.result, *expected.artifacts.values())
    assert done.stdout.split() == [hashlib.sha256(body).hexdigest() for body in bodies]


def test_a_retuned_sweep_is_stopped_within_a_point() -> None:
    task = SWEEPS["retuned"]
    last, before = paused_everywhere(task, work.resume(), forget=False)
    whole = json.loads(last.result or b"")
    for done in (b"base", b"points"):  # stopped while the unchanged case, or the point, is retuned
        begun = [one for one in before if b'"record"' in one.state]
        after = next(one for one in begun if (b'"base"' in one.state) == (done == b"points"))
        quanta, state = 0, after.state
        while (stopped := work.advance(task, state, 0.0, "user")).result is None:
            quanta, state = quanta + 1, stopped.state
        assert quanta <= 3
        result = json.loads(stopped.result)
        assert len(result["points"]) == 1
        assert result["stopped_by"] == "user"
        for name in ("base", "points"):
            found, best = (one[name] if name == "base" else one[name][0] for one in (result, whole))
            assert found["iteration_ms"] >= best["iteration_ms"]
