"""A real service after SIGTERM: it requeues its jobs, exits with code 0, and leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.sql.database import open_database
from tests.conftest import REPOSITORY
from tests.real.deployment import CONTAINER, IMAGE, PROMETHEUS
from tests.real.domino_tune.serving import Served, served, when_free
from tests.support.load import visits
from tests.support.processes import PATIENCE_S, process_tree, wait_until, wait_until_gone

DOCUMENT = REPOSITORY / "docs" / "service.md"
METRICS = [
    "http_requests_total", "http_request_seconds", "http_requests_in_flight", "domino_tune_jobs",
    "domino_tune_quick_waiting", "domino_tune_workers", "domino_tune_running",
]  # fmt: skip


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=PATIENCE_S) as client:
        yield client


def states(client: httpx.Client, service: Served, jobs: list[str]) -> list[str]:
    return [client.get(f"{service.url}/v1/jobs/{job}").json()["state"] for job in jobs]


def submitted(client: httpx.Client, service: Served, body: dict[str, Any]) -> str:
    answer = when_free(lambda: client.post(f"{service.url}/v1/jobs", json=body))
    return str(answer.raise_for_status().json()["id"])


def read_events(url: str, begun: threading.Event, ended: threading.Event) -> None:
    """Read the events of a job, as the web page does, until the server ends the stream."""
    try:
        with httpx.stream("GET", url, timeout=PATIENCE_S) as answer:
            for _ in answer.iter_raw():
                begun.set()
    except httpx.TransportError:
        pass
    ended.set()


def test_sigterm_requeues_running_jobs(tmp_path: Path, client: httpx.Client) -> None:
    begun, ended = threading.Event(), threading.Event()
    with served(tmp_path, "--workers", "2") as service:
        jobs = [
            submitted(client, service, visits.tune(seed, visits.ENDLESS_TRIALS))
            for seed in range(3)
        ]
        wait_until(lambda: states(client, service, jobs).count("running") >= 2)
        processes = process_tree(service.process.pid)
        events = f"{service.url}/v1/jobs/{jobs[0]}/events"
        threading.Thread(target=read_events, args=(events, begun, ended)).start()
        assert begun.wait(PATIENCE_S)
        service.process.send_signal(signal.SIGTERM)
        code = service.process.wait(PATIENCE_S)
        assert ended.wait(PATIENCE_S)
        wait_until_gone(processes)
    assert code == 0, service.log()
    assert "Traceback" not in service.log()
    assert f"{jobs[0]}: given back" in service.log()
    with closing(open_database(f"sqlite:///{tmp_path}/service.db")) as database:
        kept = [JobDesk(database).get(job, None) for job in jobs]
    assert [(one.state, one.attempts) for one in kept] == [("queued", 0)] * 3


def test_deployments_use_existing_routes(tmp_path: Path, client: httpx.Client) -> None:
    """The probes, the path for Prometheus and the image's health check, on a real service."""
    (job,) = PROMETHEUS["scrape_configs"]
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    interpreter, *words = json.loads(IMAGE["HEALTHCHECK"].partition("CMD ")[2])
    assert interpreter == "python"
    with served(tmp_path) as service:
        for path in [job["metrics_path"], *(probe["path"] for probe in probes)]:
            assert client.get(service.url + path).status_code == 200
        exported = client.get(service.url + job["metrics_path"]).text
        metrics = re.findall(r"^\| `(\w+)` \|.*\|.*\|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
        assert [name for name in metrics if f"\n{name}" in exported] == METRICS
        port = service.url.rpartition(":")[2]
        check = [sys.executable, *(word.replace("8000", port) for word in words)]
        wait_until(lambda: subprocess.run(check, capture_output=True, check=False).returncode == 0)
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


def test_it_writes_to_its_folder_and_to_tmp_only(tmp_path: Path, client: httpx.Client) -> None:
    """So the root file system of the image may be read-only. AUDIT prints other writes."""
    home, temporary, hook = tmp_path / "home", tmp_path / "tmp", tmp_path / "hook"
    for folder in (home, temporary, hook):
        folder.mkdir()
    (hook / "sitecustomize.py").write_text(AUDIT)
    may_write = os.pathsep.join([str(home), str(temporary), "/dev/", "/proc/"])
    environment = {
        "MAY_WRITE": may_write, "TMPDIR": str(temporary), "HOME": str(home),
        "PYTHONPATH": f"{hook}{os.pathsep}{REPOSITORY}", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    with served(home, **environment) as service:
        small = {**visits.tune(seed=0, trials=3), "model": "gpt3-1.3b", "micro_batch_size": 2}
        tuned = submitted(client, service, small)
        wait_until(lambda: states(client, service, [tuned]) == ["done"])
        simulations = f"{service.url}/v1/simulations"
        answer = when_free(lambda: client.post(simulations, json=visits.CACHED))
        assert answer.status_code == 200
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE_S) == 0
    assert "WROTE" not in service.log()


def test_audit_prints_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(AUDIT)
    monkeypatch.setenv("MAY_WRITE", "/nowhere")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", f"open({str(tmp_path / 'x')!r}, 'w')"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"WROTE {tmp_path / 'x'}" in done.stderr
