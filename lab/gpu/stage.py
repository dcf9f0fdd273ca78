"""A stage: cases measured one after the other into one file, which later runs continue."""

from __future__ import annotations

import gc
import gzip
import json
import os
import shutil
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch.cuda import Event

from domino_tune.measure.gpu import Work, recorded, since_ns, ticks_around
from domino_tune.measure.gpu.loads import (
    CapturedWork,
    CaptureError,
    Ran,
    Sampler,
    back_to_back,
    nvml_meter,
    settled,
)
from domino_tune.measure.machine import machine_of
from domino_tune.runtime.clock import HeadStart, empty_ns, timed_event
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.profiles import load_profile, save_profile
from lab import told
from simulator.profile import Profile

Row = Mapping[str, Any]
_FIELDS: Final[list[str]] = told(__file__)["state"]


def smi(*fields: str) -> list[str]:
    """Return fields of the first GPU by nvidia-smi, which leaves CUDA alone; none without one."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = query.stdout.splitlines()
    return [] if query.returncode or not lines else [one.strip() for one in lines[0].split(",")]


def release_memory(device: torch.device) -> None:
    """Release the memory of the last case: what nothing refers to, and what torch caches."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class GpuCase(NamedTuple):
    """One measurement of a stage. ``seconds``: about how long it takes on an H200. ``measure``
    returns its row; ``complete`` in it is False where the time was up, and ``failed`` says why some
    of it is missing."""

    name: str
    seconds: float
    measure: Callable[[], Row]


class Stage:
    """The files of a stage's results, and its time limit."""

    def __init__(
        self, folder: Path, name: str, minutes: float, profile_name: str, device: torch.device,
        recorded: Path | None = None,
    ) -> None:  # fmt: skip
        self.name, self.device, self.minutes = name, device, minutes
        self.rows_file, self.profile_name = folder / f"{name}.jsonl", profile_name
        self.profile_file = folder / f"{profile_name}.json"
        self.stop_at = time.monotonic() + 60 * minutes
        self._kept = recorded / f"{name}.jsonl.gz" if recorded else None
        self._profile: Profile | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, cases: Iterable[GpuCase]) -> None:
        """Measure what is left until the time is up; record what fails, to try it later."""
        left = self.left(cases)
        print(self.announced(left), flush=True)
        for case in left:
            if self.spent() or not self._measure(case):
                break
            release_memory(self.device)

    def left(self, cases: Iterable[GpuCase]) -> list[GpuCase]:
        """Return the cases that no earlier run has finished; those that failed come last."""
        rows = self.rows()
        done = {row["case"] for row in rows if row.get("complete")}
        failed = {row["case"] for row in rows if "error" in row}
        left = (case for case in cases if case.name not in done)
        return sorted(left, key=lambda case: case.name in failed)

    def announced(self, left: Sequence[GpuCase]) -> str:
        """Return what this run will do."""
        minutes = sum(case.seconds for case in left) / 60
        return (
            f"{self.name}: {len(left)} cases are left, about {minutes:.1f} minutes on an H200; "
            f"this run begins none after {self.minutes:g} minutes. Results: {self.rows_file}"
        )

    def _measure(self, case: GpuCase) -> bool:
        begun = time.monotonic()
        try:
            row = case.measure()
        except Exception as error:
            traceback.print_exc()
            self.write({"case": case.name, "error": f"{type(error).__name__}: {error}"})
            if isinstance(error, CaptureError):
                print("Run the stage again: a capture that failed spoils the process.", flush=True)
            return not isinstance(error, CaptureError)
        seconds, state = time.monotonic() - begun, dict(zip(_FIELDS, smi(*_FIELDS), strict=False))
        self.write({"case": case.name, "complete": True, **row, "seconds": seconds, "state": state})
        failed = f", but for {row['failed']}" if row.get("failed") else ""
        told = f": {row['told']}" if row.get("told") else ""
        print(f"{case.name}, {seconds:.1f} s{told}{failed}", flush=True)
        return True

    def spent(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() > self.stop_at

    def write(self, row: Row) -> None:
        """Append one row, on disk on return; a line that a killed run cut short stays alone."""
        with self.rows_file.open("a+b") as file:
            file.seek(max(0, file.tell() - 1))
            begins = b"\n" if file.read(1) not in (b"", b"\n") else b""
            file.write(begins + json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        """Return whole rows of this and earlier runs, those of measurements/ first."""
        lines, rows = list[str](), []
        if self._kept and self._kept.exists():
            lines = gzip.decompress(self._kept.read_bytes()).decode().splitlines()
        if self.rows_file.exists():
            lines += self.rows_file.read_text(encoding="utf-8").splitlines()
        for line in lines:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return rows

    @property
    def profile(self) -> Profile:
        """The profile so far; what is set is on disk then."""
        if self._profile is None and self.profile_file.exists():
            self._profile = load_profile(self.profile_file)
        if self._profile is None:
            machine = replace(machine_of(LaunchSpec(tp=1, backend="nccl")), gpus_per_node=8)
            created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._profile = Profile(name=self.profile_name, created=created, machine=machine)
        return self._profile

    @profile.setter
    def profile(self, profile: Profile) -> None:
        save_profile(profile, self.profile_file)
        self._profile = profile


Play = Callable[[], object]
Ahead = HeadStart | None
Found = dict[str, Any]
Moves = dict[str, tuple[int, Work]]
Timer = Callable[[Any], float]
SETTLED_AFTER_S: Final = 5.0
"""The GPU is warm and its clock steady; what is summed up is from then on."""


def took_ns(device: torch.device, play: Play, ahead: Ahead = None) -> float:
    """Return the ns of one call; ``ahead`` keeps the GPU waiting while the host launches it."""
    if device.type != "cuda":
        begun = time.perf_counter_ns()
        play()
        return float(time.perf_counter_ns() - begun)
    torch.cuda.synchronize()
    if ahead:
        ahead.give()
    start = recorded()
    play()
    end = recorded()
    if ahead:
        ahead.check()
    torch.cuda.synchronize()
    return since_ns(start, end)


def median_ns(device: torch.device, play: Play, calls: int, ahead: Ahead = None) -> float:
    """Return the median ns of some calls."""
    return statistics.median(took_ns(device, play, ahead) for _ in range(calls))


def each_ns(timed: Timer, makers: Mapping[str, Play], flop: float = 0.0) -> Found:
    """Return ``ns`` of each work, ``failed``: errors of those not available, ``told``: TFLOP/s."""
    found: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, make in makers.items():
        try:
            found[name] = timed(make())
        except Exception as error:
            failed[name] = reason(error)
    told = ", ".join(f"{name} {flop / ns / 1e3:.0f}" for name, ns in found.items())
    return {"ns": found, "failed": failed, "told": f"TFLOP/s: {told}"}


def moved(key: str, timed: Timer, works: Moves) -> Found:
    """Return a row: ``key``, the bytes and the ns of each work; ``told``, their GB/s."""
    found = {name: {"bytes": size, "ns": timed(work)} for name, (size, work) in works.items()}
    rates = {name: one["bytes"] / one["ns"] for name, one in found.items() if one["bytes"]}
    told = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    return {key: found, "told": f"GB/s: {told}"}


def reason(error: Exception) -> str:
    """Return the first line of an error, for a record."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def lasting(device: torch.device, replay: CapturedWork | None, seconds: float) -> Found:
    """Return clock, power and steps of a replayed graph or of rest, settled after a while."""
    with Sampler(nvml_meter(device)) as sampler:
        begun_ns = time.perf_counter_ns()
        ran = back_to_back([replay], seconds) if replay else []
        if not replay:
            time.sleep(seconds)
        watched_s = (time.perf_counter_ns() - begun_ns) / 1e9
    steady_ns = begun_ns + round(1e9 * SETTLED_AFTER_S)
    late = settled(sampler.samples, steady_ns)
    return {
        "told": f"{late['clock_mhz']:.0f} MHz, {late['power_w']:.0f} W",
        "step_ns": [round(one.took_ns) for one in ran], "samples": sampler.since(begun_ns),
        "reasons": sorted({sample.reasons for sample in sampler.samples}),
        "energy_j": sampler.energy_j, "watched_s": watched_s, **late,
        **late_step(ran, late["power_w"], steady_ns),
    }  # fmt: skip


def late_step(ran: Sequence[Ran], power_w: float, steady_ns: int) -> dict[str, float]:
    """Return the median step's ms and J after ``steady_ns``; {} if no step ended later."""
    late_ns = [one.took_ns for one in ran if one.at_ns >= steady_ns]
    if not late_ns:
        return {}
    step_ms = statistics.median(late_ns) / 1e6
    return {"step_ms": step_ms, "step_j": power_w * step_ms / 1e3}


OPS_NS: Final = 2_500_000  # Time of the ops that are played together, alone
COVER: Final = 1.8  # Time of the traffic beside them, alone, over theirs
MOST_CALLS: Final = 120
TRIES: Final = 6
Spans = list[tuple[float, float]]


class Traffic(NamedTuple):
    """What runs beside ops: ``issue`` launches one unit on ``stream``, which is current then."""

    stream: torch.cuda.Stream
    issue: Callable[[], object]


class Arena:
    """Plays ops and traffic, alone and beside each other."""

    def __init__(self) -> None:
        self.head_start = HeadStart(spin_ns=6_000_000)

    def ops_alone(self, work: Work) -> float:
        """Return the median ns of one call, with calls back to back."""
        for call in range(3):
            work(call)
        calls = max(12, min(MOST_CALLS, round(OPS_NS / _median(self._play(work, 12, None, 0)[0]))))
        return _median(self._play(work, calls, None, 0)[0])

    def traffic_alone(self, traffic: Traffic) -> float:
        """Return the median ns of one unit, with units back to back."""
        return _median(self._play(None, 0, traffic, 12)[1][1:])

    def concurrent(
        self, work: Work, traffic: Traffic, alone_ns: float, unit_ns: float, *, first: bool = True
    ) -> Found:
        """Play both, ``first`` the traffic; return times of those wholly during the others."""
        calls = max(8, min(100, round(OPS_NS / alone_ns)))
        units = min(MOST_CALLS, max(4, round(COVER * calls * alone_ns / unit_ns)))
        ops, traffics = self._play(work, calls, traffic, units, first=first)
        ops_in, traffics_in = inside(ops, traffics), inside(traffics, ops)
        mean_ns = statistics.fmean(end - start for start, end in ops_in) if ops_in else None
        return {
            "op_ns": _median(ops_in) if ops_in else None, "op_mean_ns": mean_ns,
            "collective_ns": _median(traffics_in) if traffics_in else None,
            "ops": len(ops_in), "collectives": len(traffics_in),
        }  # fmt: skip

    def _play(
        self, work: Work | None, calls: int, traffic: Traffic | None, units: int,
        *, first: bool = True,
    ) -> tuple[Spans, Spans]:  # fmt: skip
        """Return (start, end) in ns of ops and units; try again while the host is late."""
        spans: tuple[Spans, Spans] = ([], [])
        for _ in range(TRIES):
            torch.cuda.synchronize()
            origin = timed_event()
            self.head_start.give()
            origin.record()
            sent = _send(traffic, units, origin) if first else []
            ticks = ticks_around(work, calls) if work else []
            if not first:
                sent = _send(traffic, units, origin)
            was_late = self.head_start.check()
            torch.cuda.synchronize()
            played, carried = (
                [(since_ns(origin, start), since_ns(origin, end)) for start, end in pairs]
                for pairs in (pairwise(ticks), sent)
            )
            spans = played, carried
            if not was_late:
                break
        return spans


def _send(traffic: Traffic | None, units: int, after: Event) -> list[tuple[Event, Event]]:
    """Launch units that wait for the head start only; return the events around each."""
    if traffic is None:
        return []
    traffic.stream.wait_event(after)
    sent = []
    with torch.cuda.stream(traffic.stream):
        for _ in range(units):
            start = recorded()
            traffic.issue()
            sent.append((start, recorded()))
    return sent


def _median(spans: Spans) -> float:
    return statistics.median(end - start for start, end in spans)


def inside(spans: Spans, others: Spans) -> Spans:
    """Return the spans wholly between the first other's start and the last other's end."""
    first, last = others[0][0], others[-1][1]
    return [(start, end) for start, end in spans if first <= start and end <= last]


Timed = Callable[[Work], float]  # Returns the ns of one call


def ops_timer(device: torch.device) -> Timed:
    """Return what times calls back to back, without what events add; on a CPU, one call."""
    arena = cache(Arena)  # made on the GPU, with the first case
    if device.type != "cuda":
        return lambda work: took_ns(device, lambda: work(0))
    return lambda work: arena().ops_alone(work) - empty_ns(device)
