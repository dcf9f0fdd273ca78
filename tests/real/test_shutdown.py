"""A real service after SIGTERM: it reports not ready, requeues its jobs, and exits with code 0."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.job import Job
from domino_tune.service.sql.database import open_database
from lab.load import bodies
from lab.load.process import Service, process_tree
from tests.conftest import REPOSITORY
from tests.real.test_deploy_kubernetes import CONTAINER
from tests.real.test_deploy_service import IMAGE, PROMETHEUS
from tests.support.processes import PATIENCE_S, wait_until, wait_until_gone

DOCUMENT = REPOSITORY / "docs" / "service.md"
METRICS = [
    "http_requests_total", "http_request_seconds", "http_requests_in_flight", "domino_tune_jobs",
    "domino_tune_quick_waiting",
]  # fmt: skip


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=PATIENCE_S) as client:
        yield client


def start_tunes(service: Service, client: httpx.Client, count: int) -> list[str]:
    """Start tunes that would last for hours. Return their ids."""
    made = [
        client.post(f"{service.url}/v1/tunes", json=bodies.tune(seed, bodies.ENDLESS_TRIALS))
        for seed in range(count)
    ]
    assert [one.status_code for one in made] == [202] * count, made[0].text
    return [one.json()["id"] for one in made]


def state(service: Service, client: httpx.Client, job: str) -> str:
    found: str = client.get(f"{service.url}/v1/tunes/{job}").json()["state"]
    return found


def stored(folder: Path, jobs: list[str]) -> list[Job]:
    """Return the jobs in the database. No service uses it."""
    database = open_database(f"sqlite:///{folder / 'service.db'}")
    try:
        return [JobDesk(database).get(job, None) for job in jobs]
    finally:
        database.close()


def running(service: Service, client: httpx.Client, jobs: list[str]) -> int:
    return [state(service, client, job) for job in jobs].count("running")


def watch_ready(service: Service, statuses: list[int]) -> None:
    """Append the status of /readyz again and again, until no server listens."""
    while True:
        try:
            statuses.append(httpx.get(f"{service.url}/readyz", timeout=5).status_code)
        except httpx.TransportError:
            return
        time.sleep(0.02)


def read_events(service: Service, job: str, ended: threading.Event) -> None:
    """Read the events of a job, as the web page does, until the server ends the stream."""
    try:
        with httpx.stream("GET", f"{service.url}/v1/tunes/{job}/events", timeout=60) as answer:
            for _ in answer.iter_raw():
                pass
    except httpx.TransportError:
        pass
    ended.set()


def test_sigterm_requeues_running_jobs(tmp_path: Path, client: httpx.Client) -> None:
    statuses: list[int] = []
    ended = threading.Event()
    with Service.start(tmp_path, "--workers", "2") as service:
        jobs = start_tunes(service, client, 3)
        wait_until(lambda: running(service, client, jobs) >= 2)
        processes = process_tree(service.process.pid)
        watcher = threading.Thread(target=watch_ready, args=(service, statuses))
        reader = threading.Thread(target=read_events, args=(service, jobs[0], ended))
        watcher.start()
        reader.start()
        wait_until(lambda: bool(statuses))
        service.process.send_signal(signal.SIGTERM)
        code = service.process.wait(PATIENCE_S)
        watcher.join(PATIENCE_S)
        reader.join(PATIENCE_S)
    assert code == 0, service.printed()
    assert statuses[-1] == 503
    assert ended.is_set()
    wait_until_gone(processes)
    assert "Traceback" not in service.printed()
    assert [one.state for one in stored(tmp_path, jobs)] == ["queued"] * 3


@pytest.mark.thorough
def test_a_job_survives_any_number_of_restarts(tmp_path: Path, client: httpx.Client) -> None:
    """A requeued job does not count as a failed attempt."""
    jobs: list[str] = []
    for _ in range(4):
        with Service.start(tmp_path, "--workers", "1") as service:
            jobs = jobs or start_tunes(service, client, 1)
            wait_until(lambda: running(service, client, jobs) == 1)  # noqa: B023 (called at once)
            assert service.stop() == 0, service.printed()
    with Service.start(tmp_path, "--workers", "1") as service:
        answer = client.post(f"{service.url}/v1/tunes/{jobs[0]}/cancel")
        assert answer.is_success
        wait_until(lambda: state(service, client, jobs[0]) == "cancelled")


def test_deployments_use_existing_routes(tmp_path: Path) -> None:
    """The probes, the path for Prometheus and the image's health check, on a real service."""
    (job,) = PROMETHEUS["scrape_configs"]
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    interpreter, *words = json.loads(IMAGE["HEALTHCHECK"].partition("CMD ")[2])
    assert interpreter == "python"
    with Service.start(tmp_path) as service:
        for path in [job["metrics_path"], *(probe["path"] for probe in probes)]:
            assert httpx.get(service.url + path).status_code == 200
        exported = httpx.get(service.url + job["metrics_path"]).text
        metrics = re.findall(r"^\| `(\w+)` \|.*\|.*\|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
        assert [name for name in metrics if f"\n{name}" in exported] == METRICS
        port = service.url.rpartition(":")[2]
        check = [sys.executable, *(word.replace("8000", port) for word in words)]
        assert subprocess.run(check, capture_output=True, check=False).returncode == 0
    assert subprocess.run(check, capture_output=True, check=False).returncode != 0


AUDIT = """
import os, sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate")
ALLOWED = tuple(os.environ["MAY_WRITE"].split(os.pathsep))

def listen(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        written = isinstance(path, (str, bytes)) and flags & WRITES
    elif event in CHANGES:
        path, written = arguments[0], True
    elif event == "sqlite3.connect":
        path, written = arguments[0], arguments[0] != ":memory:"
    else:
        return
    if written and not os.path.abspath(os.fsdecode(path)).startswith(ALLOWED):
        os.write(2, f"WROTE {os.fsdecode(path)}\\n".encode())

sys.addaudithook(listen)
"""


def test_it_writes_to_its_folder_and_to_tmp_only(
    tmp_path: Path, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the root file system of the image may be read-only. AUDIT prints other writes."""
    home, temporary, hook = tmp_path / "home", tmp_path / "tmp", tmp_path / "hook"
    for folder in (home, temporary, hook):
        folder.mkdir()
    (hook / "sitecustomize.py").write_text(AUDIT)
    may_write = os.pathsep.join([str(home), str(temporary), "/dev/", "/proc/"])
    for name, value in {
        "MAY_WRITE": may_write, "TMPDIR": str(temporary), "HOME": str(home),
        "PYTHONPATH": str(hook), "PYTHONDONTWRITEBYTECODE": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with Service.start(home) as service:
        small = {**bodies.tune(seed=0, trials=3), "model": "gpt3-1.3b", "micro_batch_size": 2}
        tuned = client.post(f"{service.url}/v1/tunes", json=small).json()["id"]
        wait_until(lambda: state(service, client, tuned) == "done")
        assert client.post(f"{service.url}/v1/simulations", json=bodies.CACHED).status_code == 200
        assert service.stop() == 0
    assert "WROTE" not in service.printed()


def test_audit_prints_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(AUDIT)
    monkeypatch.setenv("MAY_WRITE", "/nowhere")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", f"open({str(tmp_path / 'x')!r}, 'w')"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"WROTE {tmp_path / 'x'}" in done.stderr
