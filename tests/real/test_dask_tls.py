"""Dask with TLS, started and configured as docs/service.md says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.real.deployment import documented
from tests.support.dask_cluster import dask, scheduling
from tests.support.processes import PATIENCE_S

CALL = """
import sys, time
from domino_tune.service.executors.registry import (open_executor)

executor = open_executor(sys.argv[1], 1)
while not executor.workers:
    executor.check()
    time.sleep(0.1)
print("a worker")
executor.close()
"""


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Return a folder with a certificate authority, and a certificate for each part of Dask."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed; apt-get install openssl")

    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], cwd=tmp_path, capture_output=True, check=True)

    key = "-newkey rsa:2048 -nodes -keyout"
    openssl(f"req -x509 {key} ca-key.pem -out ca.pem -days 1 -subj /CN=ca")
    for name in ("scheduler", "worker", "client"):
        openssl(f"req {key} {name}-key.pem -out {name}.csr -subj /CN={name}")
        openssl(
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial "
            f"-out {name}.pem -days 1"
        )
    return tmp_path


def call(
    folder: Path, address: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    return subprocess.run(
        [sys.executable, "-c", CALL, address.replace("tls://", "dask://")],
        cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip


def test_only_clients_with_a_certificate_reach_dask(certificates: Path) -> None:
    lines = documented("docs/service.md")
    exported = [line.removeprefix("export ") for line in lines if line.startswith("export DASK")]
    settings = dict(re.sub("/etc/dask/", "", line).split("=", 1) for line in exported)
    scheduler, worker = (line.removeprefix("dask ") for line in lines if line.startswith("dask "))
    here = scheduler.replace("--port 8786", "--host 127.0.0.1 --port 0")
    with scheduling(certificates, *shlex.split(here)):
        address = json.loads((certificates / "scheduler.json").read_text())["address"]
        there = worker.replace("tls://scheduler:8786", address).replace("workers 4", "workers 1")
        with dask(certificates, *shlex.split(there)):
            done = call(certificates, address, settings)
            refused = call(certificates, address, {})
    assert address.startswith("tls://")
    assert done.stdout == "a worker\n", done.stderr
    assert refused.returncode != 0
    assert "No Dask scheduler answers" in refused.stderr
