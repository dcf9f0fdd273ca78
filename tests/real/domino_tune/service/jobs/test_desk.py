"""Jobs are handed in, looked up, listed, stopped and deleted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from domino_tune.base.errors import NotFoundError, PreconditionError, QueueFullError
from domino_tune.service.jobs import JobFilter, JobProgress, NewJob, Point, new_id
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.sql.database import Database
from simulator.errors import InputError
from tests.real.domino_tune.service.made import key, new_job, submit


def test_a_new_job(desk: JobDesk) -> None:
    job, created = desk.submit(
        NewJob(kind="whatif", owner="ann", request={"tp": 8, "set": ["é\0"]}, task=b"all of it")
    )
    assert created
    assert (job.kind, job.owner, job.state) == ("whatif", "ann", "queued")
    assert job.request == {"tp": 8, "set": ["é\0"]}
    assert (job.attempts, job.fence, job.version) == (0, 0, 1)
    assert job.progress == JobProgress()
    assert (job.best, job.error, job.started_s, job.finished_s) == (None, None, None, None)
    assert not job.ended
    assert desk.get(job.id, "ann") == job


def test_created_by_the_databases_clock(desk: JobDesk) -> None:
    first, second = submit(desk), submit(desk)
    assert 1.7e9 < first.created_s <= second.created_s


def test_ids_sort_by_time() -> None:
    ids = [new_id() for _ in range(1000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000


def test_no_id_at_all(desk: JobDesk) -> None:
    for identity in ("", "job_", "job_1", "job_" + "g" * 32, "val_" + "0" * 32, "job_\0", "ü/.."):
        with pytest.raises(NotFoundError):
            desk.get(identity, None)


def test_pages_are_newest_first(desk: JobDesk) -> None:
    made = [submit(desk, number=number).id for number in range(5)]
    submit(desk, "bob")
    submit(desk, kind="whatif")
    found, cursor = desk.page("ann", limit=5, wanted=JobFilter(kind="tune"))
    assert [job.id for job in found] == made[::-1]
    assert cursor is None
    assert len(desk.page(None)[0]) == 7
    assert [job.kind for job in desk.page("ann")[0]] == ["whatif", *["tune"] * 5]


def test_labels_and_search(desk: JobDesk) -> None:
    request = {"model": "llama2-7b", "profile": "h100-dgx", "tp": 8, "overrides": ["a_b=50%"]}
    job = desk.submit(NewJob(kind="layout", owner="ann", request=request, task=b"t"))[0]
    submit(desk)
    assert job.label is None
    named = desk.set_label(job.id, "ann", "Größer als ÉTÉ")
    assert (named.label, named.version) == ("Größer als ÉTÉ", job.version + 1)

    def found(words: str) -> bool:
        listed = [one.id for one in desk.page("ann", wanted=JobFilter(words=words))[0]]
        assert set(listed) <= {job.id} or not words
        return job.id in listed

    for words in ("LLAMA2", "h100 7B", "tp 8", "größER", "GRÖSSER été", job.id, "a_b=50%", ""):
        assert found(words), words
    others = ("llama2-70b", "h100 sweep", "a%b", "axb=50%", "gr_sser", '"model":', job.id[1:], "\0")
    for words in others:
        assert not found(words), words
    assert desk.set_label(job.id, "ann", None).label is None
    assert not found("été")
    with pytest.raises(NotFoundError):
        desk.set_label(job.id, "bob", "mine")


def test_cursors_are_stable_while_jobs_come_in(desk: JobDesk) -> None:
    made = [submit(desk, number=number).id for number in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        found, cursor = desk.page("ann", cursor, limit=3)
        seen += [job.id for job in found]
        submit(desk)
        if cursor is None:
            break
    assert seen == made[::-1]


def test_bad_cursors(desk: JobDesk) -> None:
    for cursor in ("", "1", "job_x", "job_\0", "zzz" * 999):
        with pytest.raises(InputError, match="no cursor"):
            desk.page("ann", cursor)


def test_results_and_artifacts(desk: JobDesk, database: Database) -> None:
    job = submit(desk)
    with pytest.raises(NotFoundError, match="no result; it is queued"):
        desk.result(job.id)
    leases = Leases(database, "worker")
    claimed = leases.claim()
    assert claimed
    leases.finish(claimed, b"\x00result\xff", {"plan": b"a plan", "trace": b"x" * 100_000})
    assert desk.result(job.id) == b"\x00result\xff"
    assert desk.artifact(job.id, "plan") == b"a plan"
    assert desk.artifact(job.id, "trace") == b"x" * 100_000
    with pytest.raises(NotFoundError, match="no report; it is done"):
        desk.artifact(job.id, "report")
    with pytest.raises(NotFoundError):
        desk.result("job_" + "0" * 32)


def test_counts(desk: JobDesk, database: Database) -> None:
    jobs = [submit(desk, number=number) for number in range(4)]
    submit(desk, "bob")
    leases = Leases(database, "worker")
    claimed = leases.claim()
    assert claimed
    leases.finish(claimed, b"{}", {})
    leases.claim()
    desk.delete(jobs[2].id, "ann")
    assert desk.counts() == {"queued": 2, "running": 1, "done": 1}


def test_an_owners_queue_is_bounded(desk: JobDesk) -> None:
    first, _ = desk.submit(new_job(number=1), key(), most_open=2)
    desk.submit(new_job(number=2), most_open=2)
    with pytest.raises(QueueFullError, match="2 is the most"):
        desk.submit(new_job(number=3), key("other"), most_open=2)
    assert desk.submit(new_job(number=1), key(), most_open=2) == (first, False)
    assert desk.submit(new_job("bob"), most_open=2)[1]
    desk.delete(first.id, "ann")
    assert desk.submit(new_job(number=3), key("other"), most_open=2)[1]


def test_many_at_one_moment_do_not_exceed_it(desk: JobDesk) -> None:
    barrier = Barrier(8)

    def hand_in(number: int) -> bool:
        barrier.wait()
        try:
            return desk.submit(new_job(number=number), most_open=3)[1]
        except QueueFullError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(hand_in, range(8))) == 3


def test_equal_tasks_are_kept_once(desk: JobDesk, database: Database) -> None:
    first, second = submit(desk, number=7), submit(desk, "bob", number=7)
    assert first.task_digest == second.task_digest == new_job(number=7).task_digest
    leases = Leases(database, "worker")
    for _ in range(2):
        claimed = leases.claim()
        assert claimed
        assert claimed.task == b"7"


def test_stop_and_keep_is_told_to_the_worker(desk: JobDesk, database: Database) -> None:
    job = submit(desk)
    leases = Leases(database, "worker")
    claimed = leases.claim()
    assert claimed
    assert leases.asked([claimed]) == {job.id: None}
    told = desk.stop(job.id, "ann")
    assert (told.state, told.stopped_by) == ("running", "user")
    assert desk.stop(job.id, "ann") == told
    assert leases.asked([claimed]) == {job.id: "user"}
    leases.finish(claimed, b"{}", {}, "user")
    ended = desk.get(job.id, None)
    assert (ended.state, ended.stopped_by) == ("done", "user")
    assert desk.stop(job.id, "ann") == ended


def test_stop_and_keep_of_a_job_that_waits(desk: JobDesk, database: Database) -> None:
    job = desk.stop(submit(desk).id, "ann")
    assert (job.state, job.stopped_by) == ("queued", "user")
    claimed = Leases(database, "worker").claim()
    assert claimed
    assert claimed.job.stopped_by == "user"
    with pytest.raises(NotFoundError):
        desk.stop(job.id, "bob")


def test_points_so_far(desk: JobDesk, database: Database) -> None:
    job, leases = submit(desk, kind="whatif"), Leases(database, "worker-1")
    claimed = leases.claim()
    assert claimed
    made = [Point(index=index, body=b"%d" % index) for index in range(4)]
    leases.add_points(claimed, made[2:])
    leases.add_points(claimed, made[:2])
    assert desk.points(job.id) == tuple(made)


def test_a_job_with_its_result_is_done(desk: JobDesk, database: Database) -> None:
    new = NewJob(kind="validate", owner="ann", request={"of": "job_1"}, result=b"[1]")
    job, _ = desk.submit(new)
    assert (job.state, desk.result(job.id)) == ("done", b"[1]")
    assert job.finished_s is not None
    assert Leases(database, "worker-1").claim() is None
    assert desk.page("ann", wanted=JobFilter(of="job_1"))[0] == (job,)
    assert desk.page("ann", wanted=JobFilter(of="job_2"))[0] == ()


def test_the_key_of_a_deleted_job_is_free(desk: JobDesk) -> None:
    given = key()
    job, _ = desk.submit(new_job(), given)
    assert desk.submit(new_job(), given) == (job, False)
    desk.delete(job.id, "ann")
    assert desk.replayed(given) is None
    again, created = desk.submit(new_job(), given)
    assert created
    assert again.id != job.id


def test_a_label_of_another_version_is_refused(desk: JobDesk) -> None:
    job = submit(desk)
    changed = desk.set_label(job.id, "ann", "first", job.version)
    with pytest.raises(PreconditionError):
        desk.set_label(job.id, "ann", "second", job.version)
    assert desk.get(job.id, "ann") == changed
