"""The rehearsal's cases on a CPU, small: each row has a time for every way."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from lab.gpu.gaps import MAKERS, SECONDS, Sizes, rehearsal_cases
from lab.gpu.stage import Stage

SMALL = Sizes(tokens=8, hidden=16, inner=4, layers=2, wide=(16, 32))


def test_each_way_has_a_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "rehearsal", 4.0, "h200-sxm", torch.device("cpu"))
    stage.run(rehearsal_cases(stage, SMALL))
    rows = {row["case"]: row for row in stage.rows()}
    assert rows.keys() == MAKERS.keys()
    for row in rows.values():
        ways = [value for name, value in row.items() if name.endswith("_ns")]
        assert len(ways) >= 2
        assert min(ways) > 0
    assert len(MAKERS) * SECONDS <= 240
