"""Everything that users do around ``apply`` runs, or is refused in words: at TP 2 on real ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from tests.real.domino_tune.runtime.huggingface.actions import ACTIONS
from tests.real.domino_tune.runtime.huggingface.rank_actions import acted
from tests.real.domino_tune.runtime.huggingface.ranks import on_ranks


def test_actions_run_or_are_refused_in_words(tmp_path: Path) -> None:
    """All of them, in one launch: an action that spoils the process shows in those after it."""
    for found in on_ranks(tmp_path, 2, acted, tmp_path):
        assert found.keys() == ACTIONS.keys()
        wrong = {name: said for name, (fits, said) in found.items() if not fits}
        assert not wrong, wrong


def test_there_are_actions_of_every_group() -> None:
    counts = Counter(one.group for one in ACTIONS.values())
    assert sum(counts.values()) >= 71
    assert min(counts.values()) >= 2, counts
