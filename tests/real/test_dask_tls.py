"""Dask with TLS, started and configured as docs/service.md says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.load.process import free_port, search_path
from tests.real.test_deploy_service import documented
from tests.support.processes import PATIENCE_S

CALL = """
import sys
from domino_tune.service.executors.registry import (open_executor)

executor = open_executor(sys.argv[1], 1)
print(executor.submit(pow, 2, 10).result())
executor.shutdown()
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


@contextmanager
def started(folder: Path, words: list[str]) -> Iterator[None]:
    """Run ``dask …`` in ``folder`` until the context ends."""
    command = [sys.executable, "-m", *words]
    env = {**os.environ, "PYTHONPATH": search_path()}
    with (folder / f"{words[1]}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def call(folder: Path, port: int, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": search_path(), **environment}
    return subprocess.run(
        [sys.executable, "-c", CALL, f"dask://127.0.0.1:{port}"],
        cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip


def test_only_clients_with_a_certificate_reach_dask(certificates: Path) -> None:
    port, lines = free_port(), documented("docs/service.md")
    exported = [line.removeprefix("export ") for line in lines if line.startswith("export DASK")]
    settings = dict(re.sub("/etc/dask/", "", line).split("=", 1) for line in exported)
    with ExitStack() as parts:
        for line in lines:
            if line.startswith("dask "):
                here = line.replace("tls://scheduler:8786", f"tls://127.0.0.1:{port}")
                words = shlex.split(here.replace("--port 8786", f"--host 127.0.0.1 --port {port}"))
                parts.enter_context(started(certificates, words))
        end_s = time.monotonic() + PATIENCE_S
        while (done := call(certificates, port, settings)).returncode and time.monotonic() < end_s:
            time.sleep(0.5)
        assert done.stdout == "1024\n", done.stderr
        refused = call(certificates, port, {})
    assert refused.returncode != 0
    assert "No Dask scheduler answers" in refused.stderr
