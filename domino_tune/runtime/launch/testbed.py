"""Two emulated hosts with a slow link between them, on one Linux machine.

Each host is a network namespace; a veth pair with limited ends joins them. Without root they are
built inside a user namespace. The namespaces have no names: each lives as long as a small process
that holds it. That process ends when its stdin closes, so with its parent, even one killed by
SIGKILL. So nothing remains, and the next start has nothing to clean up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from simulator.errors import InputError

INTERFACE: Final = "link0"
LATENCY: Final = "50ms"
"""Longest time of a packet in tbf's queue."""
PACKET_BYTES: Final = 16 << 10
"""Largest packet that TCP gives to veth; its default is 64 KiB. tbf's bucket must hold one, else
tbf cuts it to 1500 bytes, which keeps a core busy."""
TCP: Final = {
    "tcp_slow_start_after_idle": "0",
    "tcp_wmem": "4096 4194304 8388608",
    "tcp_rmem": "4096 4194304 8388608",
}
"""TCP's settings on both hosts. Without them messages of a megabyte sometimes take up to a fifth
longer."""
LATE_S: Final = 1.2e-4
"""Delay of the kernel's timers, seconds: the bucket holds what the link carries in that time. So an
idle link saves up a packet and this, where a real link saves up nothing."""
_TOOLS: Final = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
_HOLD: Final = ("sh", "-c", "echo ready; exec cat")
# Administrators' tools are not on an ordinary user's path.
_PATH: Final = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


@dataclass(frozen=True, kw_only=True)
class Network:
    """The hosts of the ranks: ``entrances`` are the command prefixes that run a command on each
    host, ``interface`` is the network interface that its ranks use."""

    entrances: tuple[tuple[str, ...], ...]
    interface: str

    def entrance(self, rank: int, world_size: int) -> tuple[str, ...]:
        """Return the prefix for ``rank``: hosts get equal shares of the ranks, in order."""
        return self.entrances[rank * len(self.entrances) // world_size]


@contextmanager
def this_machine() -> Iterator[Network]:
    """Yield this machine as the only host; ranks talk over loopback at full speed."""
    yield Network(entrances=((),), interface="lo0" if sys.platform == "darwin" else "lo")


@contextmanager
def emulated_link(bits_per_s: int) -> Iterator[Network]:
    """Yield two hosts joined by a link of ``bits_per_s`` each way; remove them after the block.

    Raise InputError, with what is missing, where the link cannot be built.
    """
    _check_tools()
    with ExitStack() as stack:
        first = _first_host(stack)
        second = _hold(stack, first.entrance, user=first.user)
        _join(first, second, bits_per_s)
        yield Network(entrances=(first.entrance, second.entrance), interface=INTERFACE)


@dataclass(frozen=True, kw_only=True)
class _Host:
    """A network namespace that process ``pid`` holds; ``user``: inside our own user namespace."""

    pid: int
    user: bool

    @property
    def entrance(self) -> tuple[str, ...]:
        user = ("--user", "--preserve-credentials") if self.user else ()
        return (_tool("nsenter"), "--target", str(self.pid), *user, "--net", "--")


def _check_tools() -> None:
    if sys.platform != "linux":
        raise InputError(
            f"An emulated link needs Linux (network namespaces), this is {sys.platform}; "
            "run without --emulate-link, or in a Linux container."
        )
    missing = {package for tool, package in _TOOLS.items() if not shutil.which(tool, path=_PATH)}
    if missing:
        names = " ".join(sorted(missing))
        raise InputError(
            f"An emulated link needs {', '.join(_TOOLS)}; install with: apt-get install {names}."
        )


def _tool(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    assert found is not None
    return found


def _first_host(stack: ExitStack) -> _Host:
    """Return a new network namespace: made directly as root, else inside a user namespace."""
    problems = []
    for user in (False, True) if os.geteuid() == 0 else (True,):
        try:
            return _hold(stack, (), user=user, new_user=user)
        except _Refused as refusal:
            problems.append(str(refusal))
    raise InputError(
        "An emulated link needs root, or permission to make user namespaces; both failed here "
        f"({'; '.join(problems)}). Run as root, in a container with --privileged, or allow user "
        "namespaces: sysctl -w user.max_user_namespaces=10000 "
        "kernel.apparmor_restrict_unprivileged_userns=0"
    )


class _Refused(Exception):
    """The kernel did not allow a namespace."""


def _hold(
    stack: ExitStack, within: tuple[str, ...], *, user: bool, new_user: bool = False
) -> _Host:
    """Start a process that holds a new network namespace; it ends with ``stack``."""
    fresh = ("--map-root-user", "--net") if new_user else ("--net",)
    holder = subprocess.Popen(
        [*within, _tool("unshare"), *fresh, *_HOLD],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    stack.enter_context(holder)  # on exit: closes its pipes, which ends it, and waits for it
    assert holder.stdout is not None
    assert holder.stderr is not None
    if holder.stdout.readline() != b"ready\n":
        raise _Refused(holder.stderr.read().decode(errors="replace").strip() or "unshare failed")
    return _Host(pid=holder.pid, user=user)


def _join(first: _Host, second: _Host, bits_per_s: int) -> None:
    ip, tc = _tool("ip"), _tool("tc")
    _in(first, ip, "link", "add", INTERFACE, "type", "veth",
        "peer", "name", INTERFACE, "netns", str(second.pid))  # fmt: skip
    for host, address in ((first, "10.0.0.1/24"), (second, "10.0.0.2/24")):
        _in(host, ip, "link", "set", "lo", "up")
        _in(host, ip, "addr", "add", address, "dev", INTERFACE)
        _in(host, ip, "link", "set", INTERFACE, "gso_max_size", str(PACKET_BYTES), "up")
        _in(host, tc, "qdisc", "add", "dev", INTERFACE, "root", "tbf",
            "rate", f"{bits_per_s}bit", "burst", str(burst_bytes(bits_per_s)),
            "latency", LATENCY)  # fmt: skip
        _set_tcp(host)


def _set_tcp(host: _Host) -> None:
    """Set TCP windows that hold whole messages from the start and survive a pause, as networks of
    clusters do. A system that refuses keeps its own."""
    for name, value in TCP.items():
        with suppress(InputError):
            _in(host, "sh", "-c", f"echo '{value}' > /proc/sys/net/ipv4/{name}")


def burst_bytes(bits_per_s: int) -> int:
    """Return the size of tbf's bucket for a link of this speed, bytes."""
    return PACKET_BYTES + round(bits_per_s / 8 * LATE_S)


def _in(host: _Host, *command: str) -> None:
    done = subprocess.run([*host.entrance, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(
            f"The emulated link cannot be built: {_shown(command)} says "
            f"{done.stderr.strip()!r}. The kernel needs veth and the tbf queue (sch_tbf)."
        )


def _shown(command: Sequence[str]) -> str:
    return " ".join((os.path.basename(command[0]), *command[1:]))
