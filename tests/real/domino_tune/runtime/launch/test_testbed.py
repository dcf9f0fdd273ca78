"""The emulated link, built for real: its speed, its two hosts, and that nothing of it is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from domino_tune.runtime.launch import local
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from domino_tune.runtime.launch.local import INTERFACE, Network, emulated_link
from simulator.errors import InputError
from tests.real.faults.test_ranks import working_parent
from tests.support.processes import PATIENCE_S, wait_until_gone

MBIT = 10**6


def run_in(network: Network, host: int, *command: str) -> str:
    return subprocess.run(
        [*network.entrances[host], *command], check=True, capture_output=True, text=True
    ).stdout


def holders() -> set[int]:
    """Processes below this one: none, unless a link is up."""
    tasks = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return {int(pid) for pid in tasks.read_text().split()}


@pytest.fixture(params=["root", "user"] if os.geteuid() == 0 else ["user"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Build the link as root does, and as an ordinary user does; skips where that is forbidden."""
    kind: str = request.param
    if kind == "user":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    _skip_without_link()
    return kind


@pytest.fixture
def link() -> None:
    """Skips where no link can be built, one way or the other."""
    _skip_without_link()


def _skip_without_link() -> None:
    if not all(shutil.which(tool, path=local._PATH) for tool in ("ip", "tc")):
        pytest.skip("no ip/tc: apt-get install iproute2")
    try:
        with emulated_link(MBIT):
            pass
    except InputError as error:
        pytest.skip(f"no emulated link here: {error}")


def test_two_hosts_reach_each_other_over_capped_ends_only(kind: str) -> None:
    before = holders()
    ours = os.readlink("/proc/self/ns/net")
    with emulated_link(300 * MBIT) as network:
        places = [run_in(network, host, "readlink", "/proc/self/ns/net") for host in (0, 1)]
        assert len({ours, *(place.strip() for place in places)}) == 3
        for host in (0, 1):
            shown = run_in(network, host, local._tool("tc"), "qdisc", "show", "dev", INTERFACE)
            assert "tbf" in shown
            assert "rate 300Mbit" in shown
            links = run_in(network, host, local._tool("ip"), "-o", "link", "show", "up")
            assert {line.split()[1].rstrip(":@").split("@")[0] for line in links.splitlines()} == {
                "lo",
                INTERFACE,
            }
    assert holders() == before


@pytest.mark.usefixtures("link")
def test_it_is_gone_after_an_error() -> None:
    before = holders()
    with pytest.raises(LookupError), emulated_link(300 * MBIT):
        raise LookupError
    assert holders() == before


@pytest.mark.usefixtures("link")
def test_several_links_stand_side_by_side() -> None:
    with emulated_link(300 * MBIT) as one, emulated_link(300 * MBIT) as other:
        assert one.entrances != other.entrances


def test_ranks_are_spread_in_equal_shares() -> None:
    network = Network(entrances=(("a",), ("b",)), interface="x")
    assert [network.entrance(rank, 4)[0] for rank in range(4)] == ["a", "a", "b", "b"]
    assert [network.entrance(rank, 2)[0] for rank in range(2)] == ["a", "b"]


@pytest.mark.sampled(count=1)
def test_ranks_talk_through_the_link_at_its_speed(kind: str) -> None:
    pytest.importorskip("torch")
    found: list[dict[str, Any]] = []
    spec = LaunchSpec(tp=2, emulate_link_bits_per_s=100 * MBIT)
    payload = {"bytes": 4_000_000, "times": 2}
    run_job("tests.support.rank_jobs:bandwidth", payload, spec, on_message=found.append)
    # Two ranks send 4 MB each way at 100 Mbit/s: 0.32 s, less the bucket. A lower bound alone is
    # no matter of how busy this machine is.
    assert min(message["seconds"] for message in found) > 0.25


@pytest.mark.usefixtures("link")
@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_hosts_vanish_with_the_parent(number: signal.Signals) -> None:
    pytest.importorskip("torch")
    with working_parent(link=100 * MBIT) as (parent, children):
        assert len(children) == 4, "two ranks, two hosts"
        parent.send_signal(number)
        parent.communicate(timeout=PATIENCE_S)
    wait_until_gone(children)


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local, "_PATH", str(tmp_path))
    with (
        pytest.raises(InputError, match="apt-get install iproute2 util-linux"),
        emulated_link(MBIT),
    ):
        pass


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InputError, match="needs Linux"), emulated_link(MBIT):
        pass


@pytest.mark.usefixtures("link")
def test_missing_privileges_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2; exit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(local, "_PATH", f"{tmp_path}{os.pathsep}{local._PATH}")
    with (
        pytest.raises(InputError, match=r"needs root.*Operation not permitted.*sysctl"),
        emulated_link(MBIT),
    ):
        pass


@pytest.mark.usefixtures("link")
def test_a_queue_the_kernel_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = holders()
    monkeypatch.setattr(local, "LATENCY", "nonsense")
    with pytest.raises(InputError, match="tc qdisc add dev link0"), emulated_link(MBIT):
        pass
    assert holders() == before
