"""Stage ``queues``: processes of their own, and the share that overlaps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from domino_tune.base.errors import RunError
from lab.gpu.admission import BEHIND, LAUNCHES, _in_a_process, overlapped, queue_cases
from lab.gpu.stage import Stage

TINY = (16, 16, 16)


def test_each_number_of_queues_has_its_process(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "queues", 1.0, "mine", torch.device("cpu"))
    stage.run(queue_cases(stage, TINY))
    one, usual = stage.rows()
    assert (one["queues"], usual["queues"]) == ("1", "")
    for row in (one, usual):
        assert row["failed"] == ""
        assert [cell["name"] for cell in row["cells"]] == ["eager, nothing timed"]
        assert all(cell["together_ns"] > 0 for cell in row["cells"])
        assert "eager, nothing timed" in row["told"]


def test_a_process_that_fails_is_told() -> None:
    with pytest.raises(RunError, match=r"queues ended with 1: [\s\S]*nowhere"):
        _in_a_process("1", TINY, "nowhere")


def test_names_of_cells_are_distinct() -> None:
    assert len({cell.name for cell in LAUNCHES}) == len(LAUNCHES)


def test_the_share_that_overlaps() -> None:
    gemms_ns = 4.0 * (1 + BEHIND)
    assert overlapped(gemms_ns, 10.0, gemms_ns + 10.0) == 0.0
    assert overlapped(gemms_ns, 10.0, gemms_ns) == 1.0
    assert overlapped(gemms_ns, 10.0, gemms_ns + 6.0) == pytest.approx(0.4)  # the first GEMM alone
    longer = overlapped(gemms_ns, 50.0, 4.0 + 50.0)
    assert longer == pytest.approx(1.0)
