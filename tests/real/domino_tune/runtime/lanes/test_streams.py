"""Lanes whose collectives have times, and the same lanes without."""

from __future__ import annotations

import pytest
import torch

from domino_tune.runtime.executor import Executor
from domino_tune.runtime.lanes import ELEMENT_BYTES, Chunks, Pace
from domino_tune.runtime.lanes.groups import SILENT
from domino_tune.runtime.lanes.lane import all_reduce
from domino_tune.runtime.lanes.streams import BUFFER_BYTES, StreamQueue, emulated_lane, untimed
from simulator.build import build_schedule
from simulator.schedule import DP, TP
from tests.real.domino_tune.runtime.cases import SLICED, greedy_order
from tests.real.domino_tune.runtime.jobs import LLAMA, Job, batch
from tests.real.domino_tune.runtime.ranks import new_state

pytest.importorskip("torch")


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


# Emulated collectives -----------------------------------------------------------------------------
# They take their time, in order, and leave tensors as they are.

CPU = torch.device("cpu")


def test_a_collective_takes_at_least_its_time_and_the_next_one_follows_it() -> None:
    lane = emulated_lane(lambda call: Pace(call.size_bytes * 1000), CPU)
    tensors = [torch.full((size,), 7.0) for size in (500, 250)]
    handles = [lane.issue("x", all_reduce(tensor)) for tensor in tensors]
    handles[1].wait()
    lane.close()
    (first, first_end), (second, second_end) = (handle.ticks() for handle in handles)
    assert isinstance(first, int)
    assert isinstance(first_end, int)
    assert isinstance(second, int)
    assert isinstance(second_end, int)
    assert first_end - first >= 2_000_000
    assert second_end - second >= 1_000_000
    assert first_end <= second
    assert all((tensor == 7.0).all() for tensor in tensors)


def test_an_executor_plays_on_it() -> None:
    job = Job(name="", model=LLAMA, tp=4, plan=SLICED, dtype="fp32")
    schedule = build_schedule(job.model, job.workload, job.cluster, job.plan, greedy_order(job))
    lane = emulated_lane(lambda call: Pace(100_000), CPU)
    executor = Executor(schedule, new_state(job), {TP: lane, DP: lane})
    timeline = executor.run_step(*batch(job, 0)).timeline
    lane.close()
    spans = zip(executor.ops, timeline.start_ns, timeline.end_ns, strict=True)
    assert all(end - start >= 100_000 for op, start, end in spans if op.lane == TP)


@pytest.mark.parametrize("ctas", [1, 8, 32])
@pytest.mark.parametrize("size", [4, 1 << 16, 1 << 20, 64 << 20])
def test_chunks_hold_the_bytes_and_the_time(size: int, ctas: int) -> None:
    moved, pace = 3 * size, Pace(200_000, ctas)  # two reads and a write
    chunks = Chunks.of(moved, pace)
    carried = 3 * ELEMENT_BYTES * chunks.block * chunks.count * ctas
    least = 3 * ELEMENT_BYTES * 1024 * ctas
    assert carried == pytest.approx(moved, rel=0.15, abs=least)
    assert chunks.count * chunks.chunk_ns == pytest.approx(pace.duration_ns, rel=0.01)
    assert BUFFER_BYTES % (ELEMENT_BYTES * chunks.block) == 0
