"""Visits: what users and the web page do, as one request or a job from its start to its end; their
bodies, as a user would write them, and the answers."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import psutil

from domino_tune.base.errors import RunError
from domino_tune.requests.service import TokensAddRequest
from domino_tune.service.sql import FILE, SQLITE
from domino_tune.service.token_verbs import tokens_add
from domino_tune.store.profiles import dump_profile, load_profile
from tests.support.service import job_processes

BUSY: Final = 503
NO_ANSWER: Final = 0  # The status of an answer where the connection failed
POLL_S: Final = 0.5
JOB_TIMEOUT_S: Final = 900.0
"""Limit that only guards against hanging: jobs yield the cores to all other work on the machine."""
BUNDLED: Final = "h100-dgx"
CACHED: Final[dict[str, Any]] = {
    "model": "llama2-7b", "profile": BUNDLED, "tp": 8, "seq_length": 4096,
    "micro_batch_size": 8, "row_slices": 2, "col_slices": 1,
}  # fmt: skip
"""A simulation that is requested again and again."""
GPT3_13B: Final[dict[str, Any]] = {
    "model": "gpt3-13b", "profile": BUNDLED, "tp": 8, "seq_length": 1024, "micro_batch_size": 16,
}  # fmt: skip
JSON: Final = {"Content-Type": "application/json"}
TRIALS: Final = 20
ENDLESS_TRIALS: Final = 10_000  # Trials of a tune that lasts longer than any load here
FILES: Final = ("files/plan", "files/plan?to=megatron", "files/report", "files/trace", "events")


class Answer(NamedTuple):
    """The answer to one request. ``took_s`` counts from the time when the request was due."""

    status: int
    took_s: float
    body: str = ""

    @property
    def is_error(self) -> bool:
        """Whether it failed. All requests of a load are valid, so a 4xx is an error too."""
        return not 200 <= self.status < 400


@dataclass(kw_only=True)
class Visitor:
    """Sends requests to one service, and records the answers by kind of request."""

    client: httpx.AsyncClient
    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, url: str, secret: str = "") -> Visitor:
        """Return a visitor of the service at ``url``, with a token if the service requires one. The
        caller closes its client."""
        # The server closes what idles for 5 s, and may do so just as a request is sent.
        limits = httpx.Limits(
            max_connections=64, max_keepalive_connections=64, keepalive_expiry=2.0
        )  # fmt: skip
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        return cls(client=httpx.AsyncClient(
            base_url=url, timeout=60.0, limits=limits, headers=headers
        ))  # fmt: skip

    def refused(self, kind: str) -> int:
        """Return how many answers of a kind were 503."""
        return sum(one.status == BUSY for one in self.answers[kind])

    def statuses(self, kind: str) -> str:
        """Return how many answers of a kind had which status."""
        counts = Counter(one.status for one in self.answers[kind])
        return ", ".join(f"{count} × {status}" for status, count in counts.most_common())

    async def ask(
        self, kind: str, method: str, path: str, *, due_s: float | None = None, **options: Any
    ) -> Answer:
        """Send a request due at ``due_s`` (monotonic) or now; record its answer or failure."""
        due_s = time.monotonic() if due_s is None else due_s
        try:
            response = await self.client.request(method, path, **options)
            status, body = response.status_code, response.text
        except httpx.TransportError as error:
            status, body = NO_ANSWER, repr(error)
        answer = Answer(status, time.monotonic() - due_s, body)
        self.answers[kind].append(answer)
        return answer

    def errors(self) -> list[str]:
        """Return all errors, one line each."""
        return [
            f"{kind}: {one.status or 'no answer'}: {one.body[:300]}"
            for kind, answers in self.answers.items() for one in answers if one.is_error
        ]  # fmt: skip


Call = Callable[[int, float], Awaitable[object]]
Visit = Callable[[Visitor, int, float], Awaitable[object]]
"""Takes its number and when it is due (monotonic clock)."""


async def call_at_rate(call: Call, per_s: float, seconds: float) -> None:
    """Call ``per_s`` times a second, without waiting for earlier calls, with the call's number and
    when it is due (monotonic clock): a slow answer does not lower the rate."""
    start, calls = time.monotonic(), []
    for number in range(max(1, round(per_s * seconds))):
        due_s = start + number / per_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        calls.append(asyncio.ensure_future(call(number, due_s)))
    await asyncio.gather(*calls)


def latency_ms(answers: Sequence[Answer], share: float) -> float:
    """Return the least time of answers, in ms, that is not below ``share`` (0 to 1) of all."""
    ordered = sorted(one.took_s for one in answers)
    return 1e3 * ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def what_if(number: int) -> dict[str, Any]:
    """Return a what-if of the 13B model. Each ``number`` to 1000 has another link bandwidth."""
    factor = 0.5 + (number * 37 % 1000) / 500
    return {**GPT3_13B, "row_slices": 4, "col_slices": 2, "change": [f"link_bandwidth={factor}x"]}


def another(number: int) -> dict[str, Any]:
    """Return a simulation of the 13B model. Each ``number`` has another batch."""
    sequences, shorter = 16 + number // 100, number % 100
    return {**GPT3_13B, "micro_batch_size": sequences, "seq_length": 1024 - 8 * shorter}


def large(number: int) -> dict[str, Any]:
    """Return a simulation of 8,000,000 tokens or a little more; each ``number`` is another one."""
    return {**CACHED, "micro_batch_size": 1954 + number}


def tune(seed: int, trials: int) -> dict[str, Any]:
    """Return a random search of ``trials`` plans. Each ``seed`` is another search."""
    return {"kind": "tune", **GPT3_13B, "search": "random", "trials": trials, "seed": seed}


def getting(kind: str, *paths: str) -> Visit:
    """Return what requests one of ``paths``, in turn."""
    return lambda visitor, n, due_s: visitor.ask(kind, "GET", paths[n % len(paths)], due_s=due_s)


def posting(kind: str, path: str, body: Callable[[int], Any]) -> Visit:
    """Return what sends the body of each number."""
    return lambda visitor, n, due_s: visitor.ask(kind, "POST", path, json=body(n), due_s=due_s)


async def tuned(visitor: Visitor, number: int, due_s: float) -> None:
    """Start a tune, wait for it, and request all its files."""
    if job := await done(visitor, "tune", tune(number, TRIALS), number, due_s):
        for part in FILES:
            await visitor.ask("tune's files", "GET", f"/v1/jobs/{job}/{part}")


async def cancel(visitor: Visitor, number: int, due_s: float) -> None:
    """Start a long tune and delete it."""
    if job := await start(visitor, "cancel", tune(number, ENDLESS_TRIALS), number, due_s):
        await asyncio.sleep(1.0)
        await visitor.ask("cancel", "DELETE", f"/v1/jobs/{job}")


async def sweep(visitor: Visitor, number: int, due_s: float) -> None:
    """Start a sweep over four link bandwidths, wait for it, and request its points."""
    factors = ",".join(f"{0.5 + step / 4 + number % 100 / 1000:g}x" for step in range(4))
    body = {"kind": "whatif", **CACHED, "sweep": f"link_bandwidth={factors}"}
    if job := await done(visitor, "sweep", body, number, due_s):
        await visitor.ask("sweep", "GET", f"/v1/jobs/{job}/files/points")


async def profile(visitor: Visitor, number: int, due_s: float) -> None:
    """Read a bundled profile and upload a copy of it under another name."""
    await visitor.ask("profile", "GET", f"/v1/profiles/{BUNDLED}", due_s=due_s)
    copy = replace(load_profile(BUNDLED), name=f"copy-{number % 3}")
    how: dict[str, Any] = {"content": dump_profile(copy), "headers": JSON}
    await visitor.ask("profile", "PUT", f"/v1/profiles/{copy.name}", **how)


async def start(visitor: Visitor, kind: str, body: Any, number: int, due_s: float) -> str:
    """Start a job. Return its id, or nothing when the service refused."""
    headers = {"Idempotency-Key": f"load-{kind}-{number}"}
    answer = await visitor.ask(kind, "POST", "/v1/jobs", json=body, headers=headers, due_s=due_s)
    return "" if answer.is_error else str(json.loads(answer.body)["id"])


async def look(visitor: Visitor, kind: str, job: str) -> dict[str, Any]:
    """Request a job and return it; an empty one where there is no answer."""
    answer = await visitor.ask(f"{kind}'s progress", "GET", f"/v1/jobs/{job}")
    return {} if answer.is_error else dict(json.loads(answer.body))


async def done(visitor: Visitor, kind: str, body: Any, number: int, due_s: float) -> str:
    """Start a job, wait, record how long it took; return its id if done, else record an error."""
    job, end = await start(visitor, kind, body, number, due_s), time.monotonic() + JOB_TIMEOUT_S
    shown: dict[str, Any] = {"state": "queued"} if job else {}
    while shown and shown["state"] in ("queued", "running") and time.monotonic() < end:
        await asyncio.sleep(POLL_S)
        shown = await look(visitor, kind, job)
    if shown.get("state") == "done":
        took_s = time.monotonic() - due_s
        visitor.answers[f"{kind}, until it is done"].append(Answer(200, took_s))
        return job
    if shown:
        said = f"{job} ended {shown['state']}: {shown['error']}"
        visitor.answers[kind].append(Answer(NO_ANSWER, 0.0, said))
    return ""


simulation: Final = posting("simulation", "/v1/simulations", lambda number: CACHED)
new_simulation: Final = posting("new simulation", "/v1/simulations", another)
asked_what_if: Final = posting("what-if", "/v1/what-ifs", what_if)
healthz: Final = getting("healthz", "/healthz")
MIXED: Final[tuple[tuple[Visit, float], ...]] = (
    (simulation, 5.0), (asked_what_if, 1.0),
    (getting("health", "/healthz", "/healthz", "/readyz", "/metrics", "/"), 2.0),
    (getting("list", "/v1/jobs?kind=tune", "/v1/jobs", "/v1/profiles", "/v1/models"), 0.5),
    (tuned, 0.05), (cancel, 0.05), (sweep, 0.1), (profile, 0.1),
)  # fmt: skip
"""All of it at the same time, each so many times a second."""


START_S: Final = 900.0  # Limit that only guards against hanging: loaded machines take long
REPOSITORY: Final = Path(__file__).resolve().parents[3]


class Memory(NamedTuple):
    """Bytes of what stays, the server and the processes for simulations, and those of jobs too."""

    kept: int
    total: int


class Service:
    """A server process, its URL, the file of its output, and ``secrets``: a token of each of its
    ``owners``; it requires none if there are none."""

    def __init__(self, folder: Path, *options: str, owners: int = 0) -> None:
        """Start `serve` with ``options`` on a port that it finds, data and log in ``folder``, and
        wait until it is ready. Raise RunError with its output if it never is."""
        place = f"{SQLITE}{folder / FILE}"
        added = (TokensAddRequest(name=f"owner-{one}", database=place) for one in range(owners))
        self.secrets = [tokens_add(one).secret for one in added]
        self.log = folder / f"serve-{len(list(folder.glob('serve-*.log')))}.log"
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "domino_tune", "serve", "--port", "0", *options],
                env={**os.environ, "DOMINO_TUNE_HOME": str(folder), "PYTHONPATH": path},
                cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        try:
            self.url = self._ready()
        except BaseException:
            self.kill()
            raise

    def _ready(self) -> str:
        """Return where it is, as it says, once /readyz returns 200."""
        end, said = time.monotonic() + START_S, ""
        while time.monotonic() < end and self.process.poll() is None:
            said = self.log.read_text(encoding="utf-8", errors="replace")
            found = re.search(r"domino_tune serves (http://\S+) until Ctrl-C", said)
            with suppress(httpx.TransportError):
                if found and httpx.get(f"{found[1]}/readyz", timeout=5.0).status_code == 200:
                    return found[1]
            time.sleep(0.1)
        raise RunError(f"serve is not ready; it printed: {said[-2000:] or 'nothing'}")

    def stop(self) -> int:
        """Send SIGTERM and return the exit code. After 20 s, kill it and its workers."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20.0)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode

    def kill(self) -> None:
        """Send SIGKILL to the server and its workers, which are its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def computing(self) -> int:
        """Return how many of its child processes compute now."""
        found = psutil.Process(self.process.pid).children()
        return sum(
            one.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP) for one in found
        )

    def memory(self) -> Memory:
        """Return the resident memory of the server and its processes."""
        server, jobs = psutil.Process(self.process.pid), set(job_processes(self.process.pid))
        kept = total = 0
        for each in [server, *server.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                found = each.memory_info().rss
                total += found
                kept += 0 if each.pid in jobs else found
        return Memory(kept, total)
