"""Ranks that this process starts, watches and ends; on one machine, or on two emulated hosts."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from domino_tune.base.errors import RankKilledError, RunError
from domino_tune.runtime.launch import (
    STACKS,
    Heartbeats,
    first_to_die,
    how_it_ended,
    is_stopped,
    tail,
    waits_for_others,
)
from domino_tune.runtime.launch_spec import QUEUES_SETTING, LaunchSpec, Message
from simulator.errors import InputError

# Two emulated hosts with a slow link between them, on one Linux machine ---------------------------
# Each host is a network namespace; a veth pair with limited ends joins them. Without root they are
# built inside a user namespace. The namespaces have no names: each lives as long as a small process
# that holds it. That process ends when its stdin closes, so with its parent, even one killed by
# SIGKILL. So nothing remains, and the next start has nothing to clean up.

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
        except _NamespaceRefused as refusal:
            problems.append(str(refusal))
    raise InputError(
        "An emulated link needs root, or permission to make user namespaces; both failed here "
        f"({'; '.join(problems)}). Run as root, in a container with --privileged, or allow user "
        "namespaces: sysctl -w user.max_user_namespaces=10000 "
        "kernel.apparmor_restrict_unprivileged_userns=0"
    )


class _NamespaceRefused(Exception):
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
        raise _NamespaceRefused(
            holder.stderr.read().decode(errors="replace").strip() or "unshare failed"
        )
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


# Ranks that this process starts on this machine, listens to, watches and ends ---------------------

POLL_S: Final = 0.1
"""How often ranks are checked; messages arrive at once. Rare enough not to disturb timing."""
START_S: Final = 55
"""Time limit until every rank has started: importing torch and meeting take seconds."""
_FOLDERS: Final = "domino-tune-run-"


def run_on_own_ranks(
    job: str, payload: Mapping[str, object], spec: LaunchSpec, on_message: Callable[[Message], None]
) -> None:
    """Start the ranks, pass on rank 0's messages, and end all ranks, also after an error."""
    with ExitStack() as stack:
        folder = stack.enter_context(_job_folder())
        network = stack.enter_context(
            this_machine()
            if spec.emulate_link_bits_per_s is None
            else emulated_link(spec.emulate_link_bits_per_s)
        )
        ranks = Ranks(job, payload, spec, folder, network)
        stack.callback(ranks.close)
        ranks.start()
        ranks.follow(on_message)


@contextmanager
def _job_folder() -> Iterator[Path]:
    """Yield a locked temporary folder; remove those whose owners died without removing them."""
    for old in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}*"):
        _remove_abandoned(old)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDERS))
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove ``folder`` if no process holds its lock; a new one may be about to be locked."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime < 60:
            return
        with (folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


class Ranks:
    """The processes of one job. Each has its own process session, so that Ctrl-C reaches only the
    parent. The kernel ends each with its parent, even one killed by SIGKILL."""

    def __init__(
        self, job: str, payload: Mapping[str, object], spec: LaunchSpec, folder: Path,
        network: Network,
    ) -> None:  # fmt: skip
        self.job = job
        self.spec = spec
        self.folder = folder
        self.network = network
        self.processes: list[subprocess.Popen[bytes]] = []
        self.beats = Heartbeats(folder / "beats", spec.world_size)
        inbox, outbox = os.pipe()
        # File objects close once, wherever Ctrl-C interrupts.
        self._inbox = open(inbox, "rb", buffering=0)  # noqa: SIM115
        self._outbox = open(outbox, "wb", buffering=0)  # noqa: SIM115
        self._unread = b""
        self._progress_ns = time.monotonic_ns()
        (folder / "job.json").write_text(
            json.dumps(
                {
                    "job": job,
                    "payload": payload,
                    "spec": asdict(spec),
                    "parent": os.getpid(),
                    "outbox": outbox,
                }
            )
        )

    def start(self) -> None:
        """Start every rank; its stdout and stderr go to its own file."""
        for rank in range(self.spec.world_size):
            with self._stderr(rank).open("ab") as stderr:
                self.processes.append(
                    subprocess.Popen(
                        [
                            *self.network.entrance(rank, self.spec.world_size),
                            *(sys.executable, "-P", "-m", "domino_tune.runtime.launch.worker"),
                            *(str(self.folder / "job.json"), str(rank)),
                        ],
                        stdin=subprocess.DEVNULL,
                        stdout=stderr,
                        stderr=stderr,
                        env=self._environment(),
                        pass_fds=(self._outbox.fileno(),) if rank == 0 else (),
                        start_new_session=True,
                    )
                )
        self._outbox.close()  # this copy of the write end, to notice when rank 0 closes its own

    def _environment(self) -> dict[str, str]:
        """Return the parent's environment with its import path, so that ranks run the same code."""
        threads = str(self.spec.threads_per_rank)
        return {
            **os.environ,
            **({QUEUES_SETTING: "1"} if self.spec.kernels_in_order else {}),
            "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
            "GLOO_SOCKET_IFNAME": self.network.interface,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
        }

    def _stderr(self, rank: int) -> Path:
        return self.folder / f"stderr-{rank}"

    def follow(self, on_message: Callable[[Message], None]) -> None:
        """Pass on messages until all ranks have ended; raise RunError if one dies or hangs."""
        listening = True
        while True:
            if listening:
                listening = self._listen(on_message)
            else:
                time.sleep(POLL_S)
            problem = self._death() or self._hang()
            done = all(process.poll() == 0 for process in self.processes)
            if problem or done:
                self.end()
                while listening:
                    listening = self._listen(on_message)
            if problem:
                raise problem
            if done:
                return

    def _listen(self, on_message: Callable[[Message], None]) -> bool:
        """Wait up to POLL_S for messages and pass them on; return False once rank 0 closed."""
        ready, _, _ = select.select([self._inbox], [], [], POLL_S)
        if not ready:
            return True
        received = os.read(self._inbox.fileno(), 1 << 16)
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            on_message(json.loads(line))
        # Ranks may have waited for this process, so its work counts as their progress.
        self._progress_ns = time.monotonic_ns()
        return bool(received)

    def _death(self) -> RunError | None:
        """Return the error to raise if a rank failed, else None."""
        if all(process.poll() in (None, 0) for process in self.processes):
            return None
        # Poll again: the rank that made another one fail has ended by now.
        codes = {rank: process.poll() for rank, process in enumerate(self.processes)}
        rank = first_to_die({rank: code for rank, code in codes.items() if code}, self.beats)
        code = codes[rank]
        assert code is not None
        kind = RankKilledError if code == -signal.SIGKILL else RunError
        return kind(
            f"Rank {rank} of {self.spec.world_size} {how_it_ended(code)} in {self.job}; the other "
            f"ranks were ended. {tail(self._stderr(rank))}"
        )

    def _hang(self) -> RunError | None:
        """Return the error to raise if no rank made progress for too long, else None."""
        beats = [self.beats.last_beat_ns(rank) for rank in range(self.beats.ranks)]
        limit_s = self.spec.hang_timeout_s
        if not all(beats):
            limit_s = max(limit_s, START_S)
        idle_s = (time.monotonic_ns() - max(self._progress_ns, *beats)) / 1e9
        if idle_s < limit_s:
            return None
        self._ask_for_stacks()
        rank, why = self._most_stuck(beats)
        return RunError(
            f"No rank made progress for {idle_s:.0f} s in {self.job}; rank {rank} of "
            f"{self.spec.world_size} seems to hold the others up ({why}). All ranks were ended. "
            f"{tail(self._stderr(rank))}"
        )

    def _ask_for_stacks(self) -> None:
        """Have every rank write its threads' stacks to stderr (a stopped one cannot)."""
        for rank, process in enumerate(self.processes):
            with self._stderr(rank).open("a") as stderr:
                stderr.write(f"{STACKS}\n")
            process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)

    def _most_stuck(self, beats: list[int]) -> tuple[int, str]:
        """Return a stopped rank, else one that waits for no other, else the longest silent; why."""
        alive = [rank for rank, process in enumerate(self.processes) if process.poll() is None]
        for rank in alive:
            if is_stopped(self.processes[rank].pid):
                return rank, "it is stopped"
        busy = [rank for rank in alive if not waits_for_others(self._stderr(rank))]
        if len(busy) < len(alive) and busy:
            return busy[0], "the others wait in a collective, it does not"
        return min(alive, key=lambda rank: beats[rank]), "it has been silent longest"

    def end(self) -> None:
        """Send SIGTERM, then SIGKILL, to all ranks and their child processes; wait for them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline and any(p.poll() is None for p in self.processes):
                time.sleep(0.02)
        for process in self.processes:
            process.wait()

    def close(self) -> None:
        """End the ranks that still run; close the pipe and the map."""
        self.end()
        self._outbox.close()
        self._inbox.close()
        self.beats.close()
