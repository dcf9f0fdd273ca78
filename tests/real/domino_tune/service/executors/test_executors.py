"""The contract of every executor: one class, run over all of EXECUTORS, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from domino_tune.service.executors.errors import ExecutorLostError, WorkerDiedError
from domino_tune.service.executors.registry import EXECUTORS, open_executor
from domino_tune.service.executors.slots import NICENESS, STALL_CHECKS, SlotExecutor, _Worker
from simulator.errors import InfeasiblePlanError, InputError
from tests.conftest import REPOSITORY
from tests.support.dask_cluster import dask_cluster
from tests.support.processes import (
    PATIENCE_S,
    children,
    is_alive,
    started,
    wait_until,
    wait_until_gone,
)


@contextmanager
def local(folder: Path) -> Iterator[str]:
    yield "local"


@contextmanager
def dask(folder: Path) -> Iterator[str]:
    with dask_cluster(folder) as cluster:
        yield cluster.address


PLACES = {"local": local, "dask": dask}


@pytest.fixture(scope="module", params=EXECUTORS)
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with PLACES[request.param](tmp_path_factory.mktemp(request.param)) as place:
        yield place


@pytest.fixture(scope="module")
def executor(address: str) -> Iterator[Executor]:
    made = open_executor(address, 2)
    yield made
    made.shutdown(wait=False)


def infeasible() -> None:
    raise InfeasiblePlanError("too large", reason="memory")


def buggy() -> None:
    raise ZeroDivisionError("a bug")


def full() -> None:
    raise OSError(28, "No space left")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def busy(until: Path) -> None:
    """Compute until a file is there."""
    while not until.exists():
        sum(range(10**5))


def wait_for(file: Path) -> int:
    """Wait, without computing, until a file is there."""
    while not file.exists():
        time.sleep(0.01)
    return os.getpid()


def meet(mine: Path, other: Path) -> int:
    """Say that this call runs, and wait until the other one says so too."""
    mine.touch()
    return wait_for(other)


class TestEveryExecutor:
    def test_answers(self, executor: Executor) -> None:
        assert [executor.submit(pow, 2, n).result(PATIENCE_S) for n in range(5)] == [1, 2, 4, 8, 16]

    def test_computes_elsewhere(self, executor: Executor) -> None:
        assert executor.submit(os.getpid).result(PATIENCE_S) != os.getpid()

    def test_calls_run_side_by_side(self, executor: Executor, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        futures = [executor.submit(meet, one, two), executor.submit(meet, two, one)]
        assert len({future.result(PATIENCE_S) for future in futures}) == 2

    def test_the_same_call_is_made_again(self, executor: Executor) -> None:
        first, second = (executor.submit(time.monotonic_ns).result(PATIENCE_S) for _ in range(2))
        assert first != second

    def test_errors_come_whole(self, executor: Executor) -> None:
        with pytest.raises(InfeasiblePlanError, match="too large") as caught:
            executor.submit(infeasible).result(PATIENCE_S)
        assert caught.value.reason == "memory"
        with pytest.raises(ZeroDivisionError, match="a bug"):
            executor.submit(buggy).result(PATIENCE_S)
        with pytest.raises(OSError, match="No space left"):  # no lost cluster: it would come again
            executor.submit(full).result(PATIENCE_S)

    def test_a_death_breaks_no_call_beside_it(self, executor: Executor, tmp_path: Path) -> None:
        beside = executor.submit(wait_for, tmp_path / "file")
        deadly = executor.submit(die)
        with pytest.raises(WorkerDiedError, match="memory"):
            deadly.result(PATIENCE_S)
        (tmp_path / "file").touch()
        assert beside.result(PATIENCE_S) > 0
        assert [executor.submit(pow, 3, n).result(PATIENCE_S) for n in range(3)] == [1, 3, 9]

    def test_one_that_waits_can_be_cancelled(self, executor: Executor, tmp_path: Path) -> None:
        running = [executor.submit(wait_for, tmp_path / "file") for _ in range(4)]
        waiting = executor.submit(pow, 2, 2)
        assert waiting.cancel()
        (tmp_path / "file").touch()
        with pytest.raises(CancelledError):
            waiting.result(PATIENCE_S)
        assert len([future.result(PATIENCE_S) for future in running]) == 4

    def test_takes_nothing_when_it_is_shut_down(self, address: str, tmp_path: Path) -> None:
        made = open_executor(address, 1)
        late = made.submit(wait_for, tmp_path / "file")
        made.shutdown(wait=False)
        with pytest.raises(RuntimeError, match="shutdown"):
            made.submit(pow, 2, 2)
        with pytest.raises((WorkerDiedError, ExecutorLostError, CancelledError)):
            late.result(PATIENCE_S)
        (tmp_path / "file").touch()


class TestSlots:
    @pytest.fixture
    def slots(self) -> Iterator[SlotExecutor]:
        made = SlotExecutor(2)
        yield made
        made.shutdown(wait=False)

    def test_shutdown_finishes_what_was_accepted(self, slots: SlotExecutor) -> None:
        futures = [slots.submit(os.getpid) for _ in range(4)]
        slots.shutdown()
        assert all(future.done() for future in futures)
        wait_until_gone({future.result() for future in futures})

    def test_shutdown_without_waiting_kills(self, slots: SlotExecutor, tmp_path: Path) -> None:
        pids = {slots.submit(os.getpid).result(PATIENCE_S)}
        futures = [slots.submit(wait_for, tmp_path / "never") for _ in range(4)]
        slots.shutdown(wait=False)
        assert not wait(futures, PATIENCE_S).not_done
        wait_until_gone(pids)

    def test_workers_stand_back(self, slots: SlotExecutor) -> None:
        least = 19  # of any process
        assert slots.submit(os.nice, 0).result(PATIENCE_S) == min(os.nice(0) + NICENESS, least)

    def test_a_death_breaks_no_call_behind_it(self, slots: SlotExecutor) -> None:
        deadly = [slots.submit(die) for _ in range(2)]
        behind = [slots.submit(pow, 3, n) for n in range(6)]
        assert [future.result(PATIENCE_S) for future in behind] == [1, 3, 9, 27, 81, 243]
        assert all(isinstance(future.exception(), WorkerDiedError) for future in deadly)

    def test_a_worker_killed_while_idle_breaks_no_call(self, slots: SlotExecutor) -> None:
        for _ in range(3):
            assert slots.submit(pow, 2, 3).result(PATIENCE_S) == 8
            wait_until(lambda: len(slots.pids) == 2)
            for pid in slots.pids:
                with suppress(ProcessLookupError):  # it was found dead, and reaped, meanwhile
                    os.kill(pid, signal.SIGKILL)
            assert [slots.submit(pow, 2, n).result(PATIENCE_S) for n in range(3)] == [1, 2, 4]

    def test_dead_workers_are_replaced(self, slots: SlotExecutor) -> None:
        for future in [slots.submit(die) for _ in range(4)]:
            with pytest.raises(WorkerDiedError, match="SIGKILL"):
                future.result(PATIENCE_S)
        assert slots.submit(pow, 2, 3).result(PATIENCE_S) == 8
        wait_until(lambda: len(slots.pids) == 2)
        assert all(is_alive(pid) for pid in slots.pids)

    def test_a_worker_that_was_stopped_is_ended(self) -> None:
        """Over a call, or before one, even one that does not fit into the pipe."""
        with unwatched() as slots:
            pid = slots.submit(os.getpid).result(PATIENCE_S)
            stopped = slots.submit(stop)
            checked_while_stopped(slots, pid)
            with pytest.raises(WorkerDiedError, match="SIGKILL"):
                stopped.result(PATIENCE_S)
            assert not is_alive(pid)
            pid = slots.submit(os.getpid).result(PATIENCE_S)
            os.kill(pid, signal.SIGSTOP)
            large = slots.submit(len, bytes(4 << 20))
            wait_until(lambda: worker_of(slots)._has_call)
            checked_while_stopped(slots, pid)
            assert large.result(PATIENCE_S) == 4 << 20
            assert not is_alive(pid)

    def test_a_worker_that_computes_is_left_alone(self, tmp_path: Path) -> None:
        with unwatched() as slots:
            pid = slots.submit(os.getpid).result(PATIENCE_S)
            computed = slots.submit(busy, tmp_path / "file")
            used_s = worker_of(slots)._processor_s()
            for _ in range(STALL_CHECKS + 1):
                used_s = wait_until(partial(more_than, used_s, worker_of(slots))) or 0.0
                worker_of(slots).check_stall()
            (tmp_path / "file").touch()
            assert computed.result(PATIENCE_S) is None
            assert is_alive(pid)

    def test_workers_that_cannot_start_are_not_the_calls_fault(self) -> None:
        slots = SlotExecutor(1, niceness=10**30)  # no such number: each ends before it begins
        with pytest.raises(ExecutorLostError, match="No worker process"):
            slots.submit(pow, 2, 3).result(PATIENCE_S)
        slots.shutdown(wait=False)

    def test_workers_end_with_their_parent(self, tmp_path: Path) -> None:
        begun, end = tmp_path / "begun", tmp_path / "end"
        program = (
            "import time\n"
            "from pathlib import Path\n"
            "from domino_tune.service.executors.slots import SlotExecutor\n"
            "from tests.real.domino_tune.service.executors.test_executors import meet\n"
            "if __name__ == '__main__':\n"
            "    slots = SlotExecutor(2)\n"
            "    [slots.submit(pow, 2, n).result() for n in range(4)]\n"
            f"    slots.submit(meet, Path({str(begun)!r}), Path({str(end)!r}))\n"
            "    print('ready', flush=True)\n"
            "    time.sleep(1e6)\n"
        )
        command = [sys.executable, "-c", program]
        with started(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "ready\n"
            pids = children(parent.pid, b"spawn_main")
            assert pids
            wait_until(begun.exists)
            parent.kill()
            end.touch()
            wait_until_gone(pids)


@contextmanager
def unwatched() -> Iterator[SlotExecutor]:
    """One slot, whose worker nobody but the test checks."""
    slots = SlotExecutor(1, stall_s=1e9)
    try:
        yield slots
    finally:
        slots.shutdown(wait=False)


def worker_of(slots: SlotExecutor) -> _Worker:
    (worker,) = (slot.worker for slot in slots._slots)
    assert worker is not None
    return worker


def checked_while_stopped(slots: SlotExecutor, pid: int) -> None:
    """Check the worker often enough to end it, once it stands still."""
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    worker = worker_of(slots)
    for _ in range(STALL_CHECKS + 1):
        worker.check_stall()


def more_than(used_s: float, worker: _Worker) -> float | None:
    now_s = worker._processor_s()
    return now_s if now_s > used_s else None


def test_every_call_ends_when_a_cluster_dies(tmp_path: Path) -> None:
    """Those that wait, those that run, and those whose large results are under way."""
    with dask_cluster(tmp_path) as cluster:
        made = open_executor(cluster.address, 2)
        calls: list[Future[object]] = [made.submit(bytes, 64 << 20) for _ in range(12)]
        calls.extend(made.submit(wait_for, tmp_path / "never") for _ in range(4))
        calls[0].result(PATIENCE_S)
        cluster.kill()
        assert not wait(calls, PATIENCE_S).not_done
        assert {type(call.exception()) for call in calls} == {type(None), ExecutorLostError}
        with pytest.raises(ExecutorLostError, match="No Dask scheduler answers"):
            made.submit(pow, 2, 2)
        made.shutdown()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("ray://somewhere", "Unknown executor 'ray'"),
        ("local://4", "takes no address"),
        ("dask://127.0.0.1:1", "No Dask scheduler answers"),
    ],
)
def test_bad_addresses_are_refused(bad: str, message: str) -> None:
    if bad.startswith("dask"):
        pytest.importorskip("distributed", reason="no Dask: pip install 'domino_tune[dask]'")
    with pytest.raises(InputError, match=message):
        open_executor(bad, 1)
