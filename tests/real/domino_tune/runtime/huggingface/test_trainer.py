"""transformers' Trainer on 1 and 2 ranks: the plain model's losses, checkpoints that resume."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from tests.real.domino_tune.runtime.huggingface.rank_trainers import (
    STEPS,
    on_two_ranks,
    trained,
)
from tests.real.domino_tune.runtime.huggingface.ranks import on_ranks


def test_trainer_gives_the_losses_of_the_plain_model_and_resumes(tmp_path: Path) -> None:
    """In one process; as two replicas, in DDP; and as two shards, which save together."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    (one,) = on_ranks(folders[0], 1, trained, 1, 1, "gpt2", folders[0])
    assert len(one["losses"]) == STEPS
    for shards, replicas, said in on_ranks(folders[1], 2, on_two_ranks, folders[1]):
        assert shards["losses"] == pytest.approx(one["theirs"], rel=1e-4)
        for found in (one, replicas):
            assert found["losses"] == pytest.approx(found["theirs"], rel=1e-4)
        for found in (one, replicas, shards):
            assert found["resumed"] == found["losses"]
        assert "take PlanTrainer" in said
