"""A real service under SIGTERM: it says so, gives its jobs back, and ends with exit code 0."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.load import bodies
from benchmarks.load.process import Service, family
from domino_tune.service.desk import JobDesk
from domino_tune.service.job import Job
from domino_tune.service.sql.database import open_database
from tests.conftest import REPOSITORY
from tests.test_deploy_service import CONTAINER, IMAGE, PROMETHEUS

PATIENCE_S = 120
DOCUMENT = REPOSITORY / "docs" / "service.md"
METRICS = [
    "http_requests_total", "http_request_seconds", "http_requests_in_flight", "domino_tune_jobs",
    "domino_tune_quick_waiting",
]  # fmt: skip


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds; fail after two minutes."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where services of one test keep their data, one after the other."""
    return tmp_path


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=PATIENCE_S) as client:
        yield client


def start_tunes(service: Service, client: httpx.Client, count: int) -> list[str]:
    """Ids of tunes that would last for hours."""
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
    """Jobs as the database has them, with no service on it."""
    database = open_database(f"sqlite:///{folder / 'service.db'}")
    try:
        return [JobDesk(database).get(job, None) for job in jobs]
    finally:
        database.close()


def running(service: Service, client: httpx.Client, jobs: list[str]) -> int:
    return [state(service, client, job) for job in jobs].count("running")


def watch_ready(service: Service, seen: list[int]) -> None:
    """Note what /readyz says until nobody listens any more."""
    while True:
        try:
            seen.append(httpx.get(f"{service.url}/readyz", timeout=5).status_code)
        except httpx.TransportError:
            return
        time.sleep(0.02)


def read_events(service: Service, job: str, ended: threading.Event) -> None:
    """A page that follows a job until the server ends the stream."""
    try:
        with httpx.stream("GET", f"{service.url}/v1/tunes/{job}/events", timeout=60) as answer:
            for _ in answer.iter_raw():
                pass
    except httpx.TransportError:
        pass
    ended.set()


def test_sigterm_gives_running_jobs_back(folder: Path, client: httpx.Client) -> None:
    seen: list[int] = []
    ended = threading.Event()
    with Service.start(folder, "--workers", "2") as service:
        jobs = start_tunes(service, client, 3)
        until(lambda: running(service, client, jobs) >= 2)
        processes = family(service.process.pid)
        watcher = threading.Thread(target=watch_ready, args=(service, seen))
        reader = threading.Thread(target=read_events, args=(service, jobs[0], ended))
        watcher.start()
        reader.start()
        until(lambda: bool(seen))
        service.process.send_signal(signal.SIGTERM)
        code = service.process.wait(PATIENCE_S)
        watcher.join(PATIENCE_S)
        reader.join(PATIENCE_S)
    assert code == 0, service.printed()
    assert seen[-1] == 503
    assert ended.is_set()
    until(lambda: not any(map(alive, processes)))
    assert "Traceback" not in service.printed()
    assert [one.state for one in stored(folder, jobs)] == ["queued"] * 3


def test_a_job_outlives_any_number_of_restarts(folder: Path, client: httpx.Client) -> None:
    """Being given back is no try that failed."""
    jobs: list[str] = []
    for _ in range(4):
        with Service.start(folder, "--workers", "1") as service:
            jobs = jobs or start_tunes(service, client, 1)
            until(lambda: running(service, client, jobs) == 1)  # noqa: B023 (called at once)
            assert service.stop() == 0, service.printed()
    with Service.start(folder, "--workers", "1") as service:
        answer = client.delete(f"{service.url}/v1/tunes/{jobs[0]}")
        assert answer.is_success
        until(lambda: state(service, client, jobs[0]) == "cancelled")


def test_deployments_ask_for_what_there_is(folder: Path) -> None:
    """Probes, Prometheus' path and the image's own health check, on a real service."""
    (job,) = PROMETHEUS["scrape_configs"]
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    interpreter, *words = json.loads(IMAGE["HEALTHCHECK"].partition("CMD ")[2])
    assert interpreter == "python"
    with Service.start(folder) as service:
        for path in [job["metrics_path"], *(probe["path"] for probe in probes)]:
            assert httpx.get(service.url + path).status_code == 200
        told = httpx.get(service.url + job["metrics_path"]).text
        metrics = re.findall(r"^\| `(\w+)` \|.*\|.*\|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
        assert [name for name in metrics if f"\n{name}" in told] == METRICS
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
    folder: Path, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the image's root file system may be read-only; every process of it tells what it opens."""
    home, temporary, hook = folder / "home", folder / "tmp", folder / "hook"
    for made in (home, temporary, hook):
        made.mkdir()
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
        until(lambda: state(service, client, tuned) == "done")
        assert client.post(f"{service.url}/v1/simulations", json=bodies.CACHED).status_code == 200
        assert service.stop() == 0
    assert "WROTE" not in service.printed()


def test_audit_of_writes_tells_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sitecustomize.py").write_text(AUDIT)
    monkeypatch.setenv("MAY_WRITE", "/nowhere")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    done = subprocess.run(
        [sys.executable, "-c", f"open({str(folder / 'x')!r}, 'w')"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"WROTE {folder / 'x'}" in done.stderr
