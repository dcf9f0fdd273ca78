"""Orders of passes, compared with those of torch.distributed.pipelining."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining.schedules import ScheduleDualPipeV

from simulator.pipeline.orders import dualpipev

KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def order_of_torch(rank: int, pp: int, micros: int) -> list[tuple[Any, ...]]:
    """Return kind, micro-batch, chunk, and whether another pass runs beside it, of each pass."""
    schedule: Any = ScheduleDualPipeV.__new__(ScheduleDualPipeV)  # without stages: they need ranks
    schedule.pp_group_size, schedule._n_microbatches = pp, micros
    return [
        (KINDS[one.computation_type.name], one.microbatch_index, one.stage_index // pp, bool(pair))
        for action in schedule._calculate_single_rank_operations(rank)
        for pair in [action.sub_actions]
        for one in pair or [action]
    ]


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 8, 16])
def test_dualpipev_is_that_of_torch(pp: int) -> None:
    for micros in (2 * pp, 2 * pp + 1, 4 * pp + 3):
        for rank, order in enumerate(dualpipev(pp, 2, micros)):
            own = [(one.kind, one.micro, one.chunk, one.beside is not None) for one in order]
            assert own == order_of_torch(rank, pp, micros)
