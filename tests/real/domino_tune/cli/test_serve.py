"""serve: what it refuses, in this process; what it does, as a process of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.domino_tune.serving import Served, served
from tests.support.processes import PATIENCE_S
from tests.support.runs import Runner


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("serve")) as running:
        yield running


def test_other_addresses_need_a_token(run: Runner) -> None:
    said = run.refused("serve", "--host", "0.0.0.0", "--port", "0")
    assert "nobody has a token" in said
    assert "tokens add" in said


def test_what_is_refused_leaves_no_database(run: Runner, tmp_path: Path) -> None:
    place = tmp_path / "new.db"
    for words in ((), ("--database", f"sqlite:///{place}")):
        run.refused("serve", "--host", "0.0.0.0", "--port", "0", *words)
    assert not list(tmp_path.rglob("*.db*"))


@pytest.mark.parametrize("proxy", ["proxy.example", "10.0.0.1/8", "10.0.0.0/33", "*", ""])
def test_a_proxy_is_named_by_its_address(run: Runner, proxy: str) -> None:
    assert "--trusted-proxy" in run.refused("serve", "--port", "0", "--trusted-proxy", proxy)


def test_a_port_in_use_is_refused(run: Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = run.refused("serve", "--port", port)
    assert f"--port {port}: Address already in use" in said


@pytest.mark.parametrize("host", ["192.0.2.1", "no host", "a..b"])
def test_an_address_of_others_is_refused(run: Runner, host: str) -> None:
    assert "Cannot listen" in run.refused("serve", "--host", host, "--port", "0")


@pytest.mark.parametrize("executor", ["dusk://a:1", "dask", "dask://", "local://"])
def test_an_unknown_executor_is_refused(run: Runner, executor: str) -> None:
    assert executor in run.refused("serve", "--port", "0", "--executor", executor)


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("uvicorn", ["serve"], "api"),
        ("sqlalchemy", ["serve"], "api"),
        ("sqlalchemy", ["tokens", "list"], "api"),
        ("fastapi", ["serve", "--port", "0"], "api"),
        ("httpx", ["tune", "--server", "http://127.0.0.1:1"], "client"),
    ],
)
def test_a_missing_extra_is_named(
    tmp_path: Path, missing: str, command: list[str], extra: str
) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from domino_tune.cli.commands import main; "
        f"sys.exit(main({command!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S,
        env={"DOMINO_TUNE_HOME": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 2, done
    assert f"needs {missing}" in done.stderr
    assert f"pip install 'domino_tune[{extra}]'" in done.stderr


def test_the_address_is_printed_and_answers(server: Served) -> None:
    with urllib.request.urlopen(f"{server.url}/healthz", timeout=PATIENCE_S) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_gracefully(tmp_path: Path, number: int) -> None:
    with served(tmp_path) as running:
        running.process.send_signal(number)
        running.process.communicate(timeout=PATIENCE_S)
    assert (running.process.returncode, running.log()) == (0, "")
