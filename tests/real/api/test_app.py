"""The application as a process: starting, stopping, and a database that goes away."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from tests.support.asked import LONG, SMALL, good, job, refused
from tests.support.dask_cluster import dask_cluster
from tests.support.postgres import running_postgres
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.service import serving


def test_it_does_not_start_on_a_database_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"This is no database at all." * 100)
    with pytest.raises(AssertionError, match="did not start") as caught, serving(tmp_path):
        pass
    assert "is no SQLite database" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_ready_goes_503_before_it_stops_and_a_running_job_is_given_back(tmp_path: Path) -> None:
    with serving(tmp_path, notice_s=PATIENCE_S) as service:
        with service.client() as client:
            place = good(client.post("/v1/jobs", json=job(LONG)), 202)["links"]["self"]
            wait_until(lambda: good(client.get(place))["state"] == "running")
            service.process.send_signal(signal.SIGTERM)
            wait_until(lambda: client.get("/readyz").status_code == 503)
            assert good(client.get("/healthz")) == {"status": "ok"}
        service.stop()  # the second one stops it at once
    with serving(tmp_path, workers=0) as service, service.client() as client:
        assert good(client.get(place))["state"] == "queued"


def test_not_ready_while_nothing_can_be_stored(tmp_path: Path) -> None:
    """Its files may not grow for a while, as on a disk that is full."""
    with serving(tmp_path, workers=0) as service, service.client() as client:
        assert good(client.get("/readyz")) == {"status": "ok"}
        pid, kind = service.process.pid, resource.RLIMIT_FSIZE
        before = resource.prlimit(pid, kind)
        resource.prlimit(pid, kind, (0, before[1]))
        refused(client.post("/v1/jobs", json=job(SMALL)), 507)
        assert "disk" in refused(client.get("/readyz"), 503)["detail"]
        assert good(client.get("/healthz")) == {"status": "ok"}
        resource.prlimit(pid, kind, before)
        assert good(client.get("/readyz")) == {"status": "ok"}
        good(client.post("/v1/jobs", json=job(SMALL)), 202)


def test_a_database_that_goes_away_is_503(tmp_path: Path) -> None:
    with (
        running_postgres() as server,
        serving(tmp_path, database_url=server.url(), workers=0) as service,
        service.client() as client,
    ):
        assert client.get("/readyz").status_code == 200
        server.stop()
        for path in ("/readyz", "/v1/jobs"):
            answer = client.get(path)
            refused(answer, 503)
            assert "retry-after" in answer.headers
        assert client.get("/healthz").status_code == 200
        told = client.get("/metrics")
        assert told.status_code == 200
        assert "process_resident_memory_bytes" in told.text
        assert "domino_tune_jobs{" not in told.text
        assert "/v1/jobs: The database does not answer" in (log := service.log.read_text())
        assert "[OperationalError: " in log
        server.start()
        assert client.get("/v1/jobs").status_code == 200


def test_a_dead_cluster_is_told_by_readyz_gauge_and_log(tmp_path: Path) -> None:
    with (
        dask_cluster(tmp_path / "dask", workers=1) as cluster,
        serving(tmp_path, executor=cluster.address) as service,
        service.client() as client,
    ):
        place = good(client.post("/v1/jobs", json=job(LONG)), 202)["links"]["self"]
        wait_until(lambda: good(client.get(place))["progress"]["done"] > 0)
        assert "domino_tune_workers 1.0" in client.get("/metrics").text
        cluster.kill()
        wait_until(lambda: client.get("/readyz").status_code == 503)
        lost = "No Dask scheduler answers"
        assert lost in refused(client.get("/readyz"), 503)["detail"]
        wait_until(lambda: lost in good(client.get(place))["progress"]["text"])
        assert "domino_tune_workers 0.0" in client.get("/metrics").text
        assert f"waits: {lost}" in service.log.read_text()
        assert good(client.get("/healthz")) == {"status": "ok"}
