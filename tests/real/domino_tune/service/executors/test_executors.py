"""What holds for every executor: a process of this machine for each job, and a task of Dask."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from domino_tune.service.executors import (
    ChildDiedError,
    EndedError,
    JobExecutor,
    Limits,
    NoWorkerError,
    OverLimitError,
    Wanted,
    dask,
)
from domino_tune.service.executors.child import Child, ChildCall
from domino_tune.service.executors.dask import DaskExecutor
from domino_tune.service.executors.registry import LocalExecutor, ProcessPool, open_executor
from domino_tune.service.work import JobStep, Outcome
from simulator.errors import InputError
from tests.real.domino_tune.service.works import odd
from tests.support.dask_cluster import DaskCluster, dask_cluster, other_version, working
from tests.support.processes import PATIENCE_S, wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask"), workers=1) as made:
        yield made


@pytest.fixture(scope="module", params=["local", "dask"])
def executor(request: pytest.FixtureRequest) -> Iterator[JobExecutor]:
    if request.param == "local":
        made: JobExecutor = LocalExecutor(2, odd)
    else:
        there: DaskCluster = request.getfixturevalue("cluster")
        made = DaskExecutor(there.scheduler_address, odd)
    with closing(made):
        yield made


def run(
    executor: JobExecutor,
    work: str,
    wanted: Callable[[], Wanted] = lambda: "go on",
    tell: Callable[[JobStep], None] = lambda step: None,
    **limits: float,
) -> Outcome:
    return executor.run(work.encode(), Limits(**limits), tell, wanted)  # type: ignore[arg-type]


def test_each_job_has_a_process_of_its_own(executor: JobExecutor) -> None:
    first, second = run(executor, "answer"), run(executor, "answer")
    assert first.result != second.result
    assert str(os.getpid()).encode() not in first.result
    assert (executor.lacking, executor.workers > 0) == ("", True)


def test_errors_come_back(executor: JobExecutor) -> None:
    with pytest.raises(InputError, match="cannot be") as caught:
        run(executor, "refuse")
    assert caught.value.place == ("tp",)
    with pytest.raises(RuntimeError, match="secret"):
        run(executor, "bug")


def test_memory_is_limited_by_the_system(executor: JobExecutor) -> None:
    with pytest.raises(OverLimitError, match="1,024 MiB of memory"):
        run(executor, "grow", memory_bytes=1024 * MIB)


def test_a_job_is_stopped_by_its_time_or_fails(executor: JobExecutor) -> None:
    assert run(executor, "wait", seconds=0.5).stopped_by == "time"
    with pytest.raises(OverLimitError, match="longer than"):
        run(executor, "deaf", seconds=0.5, grace_s=0.5)


def test_the_system_ends_a_job_whose_parent_stands_still() -> None:
    child = Child(1024 * MIB, seconds=1e-9)
    try:
        child.send(ChildCall(_forever, ()))
        with pytest.raises(OverLimitError, match="processor time"):
            child.receive(PATIENCE_S)
    finally:
        child.kill()


def test_steps_come_and_a_stop_goes(executor: JobExecutor) -> None:
    steps: list[JobStep] = []
    stopped = run(executor, "wait", lambda: "stop" if len(steps) > 5 else "go on", steps.append)
    assert stopped.stopped_by == "user"
    assert [step.done for step in steps] == list(range(1, len(steps) + 1))


def test_what_is_ended_computes_no_more(executor: JobExecutor, tmp_path: Path) -> None:
    def wanted() -> Wanted:
        return "end" if list(tmp_path.iterdir()) else "go on"

    with pytest.raises(EndedError):
        run(executor, f"wait {tmp_path}", wanted)
    (noted,) = tmp_path.iterdir()
    wait_until(lambda: not psutil.pid_exists(int(noted.name)))


def test_a_death_is_told(executor: JobExecutor, tmp_path: Path) -> None:
    with pytest.raises(ChildDiedError, match="SIGKILL"):
        run(executor, f"die {tmp_path} 1")
    assert run(executor, f"die {tmp_path} 1").result == b"{}"


def test_an_error_of_who_listens_ends_the_job(executor: JobExecutor) -> None:
    def tell(step: JobStep) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        run(executor, "wait", tell=tell)


def test_a_cluster_that_does_not_answer_is_refused() -> None:
    with patch.object(dask, "CONNECT_S", 1), pytest.raises(InputError):
        open_executor("dask://127.0.0.1:9", 1)


def test_a_cluster_says_what_it_lacks(tmp_path: Path) -> None:
    with (
        dask_cluster(tmp_path, workers=0) as cluster,
        closing(DaskExecutor(cluster.scheduler_address, odd)) as executor,
        patch.object(dask, "CONNECT_S", 2),
    ):
        with pytest.raises(NoWorkerError, match="has no workers"):
            run(executor, "answer")
        executor.check()
        assert "has no workers" in executor.lacking
        cluster.kill()

        def is_missed() -> bool:
            with pytest.raises(NoWorkerError) as caught:
                run(executor, "answer")
            return "No Dask scheduler answers" in str(caught.value)

        wait_until(is_missed)
        assert executor.workers == 0


def test_workers_of_another_version_are_refused_by_name(cluster: DaskCluster) -> None:
    with (
        patch.object(dask, "VERSION", "9.9"),
        closing(DaskExecutor(cluster.scheduler_address, odd)) as executor,
        pytest.raises(NoWorkerError, match=r"has domino_tune 9\.9.*tcp://.* has domino_tune 0"),
    ):
        run(executor, "answer")


def test_a_job_whose_workers_came_back_elsewhere_is_given_to_others(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask would keep it for the addresses that it was for."""
    monkeypatch.setattr(dask, "CHECK_S", 0.0)
    with closing(DaskExecutor(cluster.scheduler_address, odd)) as executor:
        look, seen = executor._look, iter([("tcp://127.0.0.1:9",)])
        monkeypatch.setattr(executor, "_look", lambda client: next(seen, None) or look(client))

        def wanted() -> Wanted:
            executor.check()  # as the runner does
            return "go on"

        with pytest.raises(NoWorkerError, match="are gone"):
            run(executor, "answer", wanted)
        assert run(executor, "answer", wanted).result


@pytest.mark.filterwarnings("ignore::distributed.versions.VersionMismatchWarning")
def test_workers_of_another_distributed_are_refused_by_name(tmp_path: Path) -> None:
    with (
        dask_cluster(tmp_path, workers=0) as cluster,
        working(cluster, "other", other_version(tmp_path, "distributed")),
        closing(DaskExecutor(cluster.scheduler_address, odd)) as executor,
    ):
        cluster.wait_for_workers(1)
        with pytest.raises(NoWorkerError, match=r"tcp://.* has domino_tune .*, distributed 9\.9"):
            run(executor, "answer")
        with working(cluster, "fitting"):
            cluster.wait_for_workers(2)
            assert run(executor, "answer").result
        assert executor.workers == 1


def test_a_pool_ends_what_takes_too_long_and_goes_on() -> None:
    with closing(ProcessPool(1, 1024 * MIB)) as pool:
        assert pool.submit(sorted, [2, 1], seconds=PATIENCE_S).result() == [1, 2]
        with pytest.raises(OverLimitError, match="longer than"):
            pool.submit(_forever, seconds=0.3).result()
        with pytest.raises(OverLimitError, match="MiB of memory"):
            pool.submit(bytearray, 2048 * MIB, seconds=PATIENCE_S).result()
        with pytest.raises(ChildDiedError, match="exit 3"):
            pool.submit(os._exit, 3, seconds=PATIENCE_S).result()
        assert pool.submit(abs, -1, seconds=PATIENCE_S).result() == 1


def test_a_pool_that_is_closed_ends_what_it_computes() -> None:
    pool = ProcessPool(1, 1024 * MIB)
    endless = pool.submit(_forever, seconds=PATIENCE_S)
    wait_until(endless.running)
    pool.close()
    with pytest.raises(NoWorkerError, match="stops"):
        endless.result()


def _forever() -> None:
    while True:
        pass
