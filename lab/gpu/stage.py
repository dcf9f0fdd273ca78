"""A stage: cases measured one after the other into one file, which later runs continue."""

from __future__ import annotations

import gc
import gzip
import json
import os
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from domino_tune.measure.gpu.replays import CaptureError
from domino_tune.measure.machine import machine_of
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.profiles import load_profile, save_profile
from simulator.profile import Profile

Row = Mapping[str, Any]
_FIELDS: Final = (
    "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active",
)  # fmt: skip
"""Clocks (MHz), power (W), temperature and the reasons for the clock."""


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
        """Measure what is left until the time is up; what fails is recorded and tried again
        later."""
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
