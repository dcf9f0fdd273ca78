"""Evidence: measured runs on disk, one JSON line a launch, each synced before the next launch.

The first line is the question: all that the times depend on. A process that is killed while it
writes leaves at most a last line without its end, which the next process drops; no earlier line
changes.
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
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, PositiveInt

from domino_tune.store.files import check_writable, home_dir, make_folder, parse_json
from domino_tune.store.parsing import parse
from simulator.errors import InputError
from simulator.plan import SlicePlan

SCHEMA: Final = 1
T = TypeVar("T")
Kind = Literal["evaluation", "comparison"]
Question = Mapping[str, Mapping[str, object]]
"""Group → field → JSON value; groups are model, workload, cluster, profile and machine."""


@dataclass(frozen=True, kw_only=True)
class PlanRun:
    """One plan's steps in a launch.

    ``makespans_ns``: the steps' times in order of rounds. ``peak_bytes``: peak memory of the rank
    that needs most, None where unknown. ``failed``: why the plan did not run, else empty.
    """

    plan: SlicePlan
    makespans_ns: tuple[PositiveInt, ...]
    peak_bytes: int | None
    failed: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """Plans that were run in turn in one launch, the baseline first."""

    kind: Kind
    runs: Annotated[tuple[PlanRun, ...], Field(min_length=1)]


class Evidence:
    """The open and locked file of one question; ``records`` holds all launches, oldest first."""

    def __init__(self, path: Path, question: Question) -> None:
        """Open the file at ``path``, or create it.

        Raise InputError where it holds another question (the message names the fields that
        differ), where another process uses it, or where it is no evidence file.
        """
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
        """Append ``record`` and sync it to disk. Raise InputError where it cannot be written."""
        self._write(asdict(record))
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
            self._check_question(self._read(dict[str, Any], lines[0], 1), question)
        records = [self._read(LaunchRecord, line, at) for at, line in enumerate(lines[1:], 2)]
        if len(whole) < len(data):  # a line that was never finished
            self._refuse_other_files(data[len(whole) :])
            os.ftruncate(self._file, len(whole))
        if not lines:
            self._write({"kind": "question", "schema": SCHEMA, **question})
        return records

    def _refuse_other_files(self, torn: bytes) -> None:
        """Raise InputError unless ``torn`` begins as evidence lines do: only those may be cut."""
        if not torn.startswith(b'{"kind": '[: len(torn)]):
            raise InputError(
                f"{str(self.path)!r} is no evidence file of `measure`; give "
                "another file with --evidence."
            )

    def _read(self, kind: type[T], line: bytes, number: int) -> T:
        source = f"Evidence file {str(self.path)!r}, line {number}"
        try:
            content = parse_json(line, source=source, error=InputError)
            return parse(kind, content, source=source, error=InputError, whole=True)
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
        written = {key: value for key, value in head.items() if key not in ("kind", "schema")}
        differing = _differences(written, json.loads(json.dumps(question)))
        if differing:
            raise InputError(
                f"{name} answers another question: {'; '.join(differing)}. Give another file with "
                "--evidence, or ask what it answers."
            )

    def _write(self, line: Mapping[str, object]) -> None:
        """Append one line and sync it; truncate the file again where that fails half-way."""
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
                f"Cannot write {str(self.path)!r}: {error.strerror}; it is as it was before. "
                "Make room, and give the same command again."
            ) from None


def evidence_path(question: Question) -> Path:
    """Return the default path of the evidence for ``question``, and make its folder."""
    text = json.dumps(question, sort_keys=True, separators=(",", ":"), allow_nan=False)
    folder = home_dir() / "evidence"
    make_folder(folder, "give a file with --evidence, or another home with $DOMINO_TUNE_HOME")
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.jsonl"


def _differences(written: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    found = []
    for group in dict.fromkeys((*written, *asked)):
        old, new = written.get(group), asked.get(group)
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
