"""Lanes whose collectives have times, and the same lanes without."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.runtime.lanes.call import all_reduce
from domino_tune.runtime.lanes.silent import SILENT
from domino_tune.runtime.lanes.streams import StreamQueue, untimed
from simulator.schedule import DP, TP


def test_lanes_of_a_host_have_no_events_to_spare() -> None:
    assert untimed(SILENT) == {TP: SILENT[TP], DP: SILENT[DP]}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch sees no CUDA device")
def test_an_untimed_queue_is_the_same_stream() -> None:
    queue, values = StreamQueue(), torch.ones(8, device="cuda")
    plain = queue.untimed()
    assert plain.stream is queue.stream
    for one, timed in ((queue, True), (plain, False)):
        handle = one.launch("sum", all_reduce(values), lambda: values.add_(1))
        handle.wait()
        torch.cuda.synchronize()
        if timed:
            assert handle.start.elapsed_time(handle.end) >= 0
        else:
            with pytest.raises(ValueError, match="enable_timing"):
                handle.start.elapsed_time(handle.end)
    assert values.tolist() == [3.0] * 8
