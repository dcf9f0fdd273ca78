"""Evidence: measured runs on disk, one JSON line a launch, each synced before the next launch.

The first line is the question: all that the times hang on. A process that is killed while it writes
leaves at most a last line without its end, which the next one drops; no line before it is touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

from domino_tune.store.files import check_writable, home_dir, make_folder, parse_json
from domino_tune.store.strict import strict
from simulator.errors import DominoTuneError, InputError
from simulator.plan import SlicePlan

SCHEMA: Final = 1
Kind = Literal["evaluation", "comparison"]
Question = Mapping[str, Mapping[str, object]]
"""Group -> field -> JSON value: model, workload, cluster, profile, machine."""


@dataclass(frozen=True, kw_only=True)
class PlanRun:
    """One plan's steps in a launch: ``makespans_ns`` in order of rounds, ``peak_bytes`` of the
    largest rank (None where unknown); ``failed`` says why it did not run, else it is empty."""

    plan: SlicePlan
    makespans_ns: tuple[int, ...]
    peak_bytes: int | None
    failed: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """Plans that took turns in one launch, the baseline first."""

    kind: Kind
    runs: tuple[PlanRun, ...]


class Evidence:
    """The file of one question, open and locked; ``records`` holds all launches, oldest first."""

    def __init__(self, path: Path, question: Question) -> None:
        """Open ``path``, or make it. Raises InputError where it holds another question (saying in
        which fields), where another process has it, or where it is no evidence file."""
        check_writable(path)
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
            self.records = self._load(question)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Evidence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        os.close(self._file)

    def append(self, record: LaunchRecord) -> None:
        """Add ``record``; it is on disk when this returns. Raises InputError when it cannot be."""
        runs = [asdict(run) for run in record.runs]
        self._write({"kind": record.kind, "runs": runs})
        self.records.append(record)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"Evidence file {str(self.path)!r} is in use by another run; wait for it to end, "
                "or give another file with --evidence."
            ) from None

    def _load(self, question: Question) -> list[LaunchRecord]:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if lines:
            self._check_question(self._object(lines[0], 1), question)
        records = [
            _record(self._object(line, number), self._source(number))
            for number, line in enumerate(lines[1:], 2)
        ]
        if len(whole) < len(data):  # a line that was never finished
            self._refuse_other_files(data[len(whole) :])
            os.ftruncate(self._file, len(whole))
        if not lines:
            self._write({"kind": "question", "schema": SCHEMA, **question})
        return records

    def _refuse_other_files(self, torn: bytes) -> None:
        """A line of ours that was cut short begins as ours do; anything else is not ours to cut."""
        if not torn.startswith(b'{"kind": '[: len(torn)]):
            raise InputError(
                f"{str(self.path)!r} is no evidence file of `tune --objective measure`; give "
                "another file with --evidence."
            )

    def _source(self, number: int) -> str:
        return f"Evidence file {str(self.path)!r}, line {number}"

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            return parse_json(line, source=self._source(number), error=InputError)
        except InputError as error:
            raise InputError(
                f"{error} Give another file with --evidence, or remove this one."
            ) from None

    def _check_question(self, head: Mapping[str, Any], question: Question) -> None:
        name = f"Evidence file {str(self.path)!r}"
        if head.get("kind") != "question" or head.get("schema") != SCHEMA:
            raise InputError(
                f"{name} is no evidence file of schema {SCHEMA}; give another file with --evidence."
            )
        held = {key: value for key, value in head.items() if key not in ("kind", "schema")}
        differing = _differences(held, json.loads(json.dumps(question)))
        if differing:
            raise InputError(
                f"{name} answers another question: {'; '.join(differing)}. Give another file with "
                "--evidence, or ask what it answers."
            )

    def _write(self, line: Mapping[str, object]) -> None:
        """Append one line and sync it; what fails half-way leaves no trace."""
        before = os.fstat(self._file).st_size
        left = json.dumps(line, allow_nan=False).encode() + b"\n"
        try:
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, before)
            raise InputError(
                f"Cannot write {str(self.path)!r}: {error.strerror}; what it held before is kept. "
                "Make room, and give the same command again."
            ) from None


def evidence_path(question: Question) -> Path:
    """Where the evidence for ``question`` lies by default; its folder is made."""
    text = json.dumps(question, sort_keys=True, separators=(",", ":"), allow_nan=False)
    folder = home_dir() / "evidence"
    make_folder(folder, "give a file with --evidence, or another home with $DOMINO_TUNE_HOME")
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.jsonl"


def _differences(held: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    found = []
    for group in dict.fromkeys((*held, *asked)):
        old, new = held.get(group), asked.get(group)
        if not isinstance(old, dict) or not isinstance(new, dict):
            if old != new:
                found.append(f"{group}: there {old!r}, asked {new!r}")
            continue
        found += [
            f"{group}.{name}: there {old.get(name)!r}, asked {new.get(name)!r}"
            for name in dict.fromkeys((*old, *new))
            if old.get(name) != new.get(name)
        ]
    return found


def _record(parsed: Mapping[str, Any], source: str) -> LaunchRecord:
    kind, runs = parsed.get("kind"), parsed.get("runs")
    if kind not in ("evaluation", "comparison") or not isinstance(runs, list) or not runs:
        raise InputError(
            f"{source} is no launch of `tune --objective measure`; give another file with "
            "--evidence."
        )
    return LaunchRecord(kind=kind, runs=tuple(_plan_run(run, source) for run in runs))


def _plan_run(parsed: Any, source: str) -> PlanRun:
    """A plan's run from its object; raises InputError for anything else."""
    try:
        times, peak, failed = parsed["makespans_ns"], parsed["peak_bytes"], parsed["failed"]
        whole = all(type(time) is int and time > 0 for time in times)
        if not whole or type(peak) not in (int, type(None)) or type(failed) is not str:
            raise TypeError
        plan = strict(SlicePlan, parsed["plan"], source=source, error=InputError, whole=True)
        return PlanRun(plan=plan, makespans_ns=tuple(times), peak_bytes=peak, failed=failed)
    except DominoTuneError as error:
        raise InputError(f"{error} Give another file with --evidence.") from None
    except (KeyError, TypeError):
        raise InputError(
            f"{source} does not hold a plan, its times in ns and its peak memory; give another "
            "file with --evidence."
        ) from None
