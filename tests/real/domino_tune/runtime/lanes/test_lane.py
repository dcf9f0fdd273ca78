"""A gloo lane: first in, first out, on a thread of its own; its errors reach the reader."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from domino_tune.runtime.lanes.lane import (
    PATIENCE_S,
    THREAD_NAME,
    ThreadLane,
    all_gather,
    all_reduce,
    into_one,
    perform,
    pretend,
    reduce_scatter,
    settle,
)
from tests.conftest import REPOSITORY
from tests.real.domino_tune.runtime.huggingface.ranks import on_ranks

# Collectives of one tensor, as NCCL gets them, are those that gloo's ranks exchange ---------------

pytest.importorskip("torch")
pytest.importorskip("transformers")


def both_ways(rank: int, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what a rank has of slices of a sequence-parallel plan, by parts and in one call."""
    found = []
    for tokens in (4, 6):  # slices of different heights
        part = torch.arange(tokens * 3.0).view(tokens, 3) + 100 * rank
        for make, source in ((all_gather, part), (reduce_scatter, part.repeat(ranks, 1) ** 2)):
            targets = []
            for work in (perform, into_one):
                call = make(source.clone(), ranks)
                work(call, dist.group.WORLD)  # type: ignore[arg-type]
                targets.append(call.target)
            found.append((targets[0], targets[1]))
    return found


def test_one_tensor_has_the_layout_of_its_parts(tmp_path: Path) -> None:
    for found in on_ranks(tmp_path, 2, both_ways, 2):
        assert len(found) == 4
        for parts, at_once in found:
            assert torch.equal(parts, at_once)


def test_collectives_that_do_not_run_leave_what_equal_ranks_would_give() -> None:
    part = torch.arange(12.0).view(4, 3)
    for make, rows in ((all_gather, [part, part]), (reduce_scatter, [part[:2]])):
        call = make(part.clone(), 2)
        pretend(call)
        assert torch.equal(call.target, torch.cat(rows))
    call = all_reduce(part.clone())
    pretend(call)
    assert torch.equal(call.target, part)


# An orderly end -----------------------------------------------------------------------------------
# Gloo's threads are waited for, lanes are closed.

pytest.importorskip("torch")

PR_SET_NAME = 15
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counts are Linux's")


def named_as_gloos(work: Callable[[], object]) -> threading.Thread:
    """Start a thread that the kernel knows under the name of gloo's."""
    named = threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, THREAD_NAME.encode())
        named.set()
        work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    named.wait()
    return thread


@on_linux
def test_a_thread_at_work_is_waited_for() -> None:
    done, stop = threading.Event(), threading.Event()

    def work() -> None:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        done.set()
        stop.wait()

    thread = named_as_gloos(work)
    settle()
    assert done.is_set()
    stop.set()
    thread.join()


@on_linux
def test_a_thread_that_never_rests_is_not_waited_for_beyond_patience() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pass

    thread = named_as_gloos(work)
    settle(patience_s=0.2)
    assert thread.is_alive()
    stop.set()
    thread.join()


def test_lanes_are_closed_when_a_process_ends() -> None:
    """Also one whose collective never ends, as after an error on another rank."""
    script = (
        "import atexit, threading, torch\n"
        "from domino_tune.runtime.lanes.lane import all_reduce\n"
        "from domino_tune.runtime.lanes.lane import HostLane\n"
        "atexit.register(lambda: print([t.name for t in threading.enumerate()]))\n"
        "lane = HostLane('idle', lambda call: None)\n"
        "lane.issue('x', all_reduce(torch.ones(1))).wait()\n"
        "never = threading.Event()\n"
        "HostLane('stuck', lambda call: never.wait()).issue('x', all_reduce(torch.ones(1)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        cwd=REPOSITORY, timeout=60 + PATIENCE_S,
    )  # fmt: skip
    assert ended.stdout.strip() == "['MainThread', 'comm-stuck']"


# A gloo lane --------------------------------------------------------------------------------------


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[ThreadLane]:
    """A lane over a group of one: all that is tested here is ours, not gloo's."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    lane = ThreadLane(dist.new_group([0]), "test")
    yield lane
    lane.close()
    dist.destroy_process_group()


def test_spans_follow_each_other(lane: ThreadLane) -> None:
    tensors = [torch.full((1000,), float(i)) for i in range(20)]
    handles = [lane.issue(str(i), all_reduce(tensor)) for i, tensor in enumerate(tensors)]
    handles[-1].wait()
    ends = 0
    for handle in handles:
        assert ends <= handle.span_ns[0] <= handle.span_ns[1]
        ends = handle.span_ns[1]
    assert all((tensor == i).all() for i, tensor in enumerate(tensors))


def test_an_error_is_raised_where_the_result_is_read(lane: ThreadLane) -> None:
    bad = lane.issue("bad", all_reduce(torch.ones(2, dtype=torch.int16)))
    good = lane.issue("good", all_reduce(torch.ones(2)))
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        bad.wait()
    good.wait()


def test_column_views_are_refused(lane: ThreadLane) -> None:
    with pytest.raises(AssertionError, match="piece: collectives take contiguous tensors"):
        lane.issue("piece", all_reduce(torch.ones(4, 4)[:, :2]))
