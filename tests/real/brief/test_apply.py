"""A plan applied to a Hugging Face model on two real ranks gives what ``transformers`` gives."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.real.domino_tune.runtime.huggingface.agreed import Job, expected, worst
from tests.real.domino_tune.runtime.huggingface.ranks import agreement, on_ranks


def test_two_ranks_give_what_transformers_gives(tmp_path: Path) -> None:
    jobs: list[Job] = [("llama", "rows sp", {})]
    for found in on_ranks(tmp_path, 2, agreement, 2, jobs):
        off = worst(found[0], expected(jobs[0]))
        assert max(off.values()) <= 1e-5, (max(off, key=off.__getitem__), off)
