"""Evidence files: nothing synced is ever lost, and nothing from another question is ever used."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domino_tune.store.evidence import Evidence, LaunchRecord, PlanRun, Question, evidence_path
from simulator.errors import InputError
from simulator.plan import MEGATRON, SlicePlan

QUESTION: Question = {"model": {"hidden_size": 64, "tied": False}, "machine": {"gpu": "one"}}
TWO = SlicePlan(row_slices=2)
ALONE = LaunchRecord(
    kind="evaluation",
    runs=(PlanRun(plan=MEGATRON, makespans_ns=(3, 4, 5), peak_bytes=None),),
)
PAIR = LaunchRecord(
    kind="comparison",
    runs=(
        PlanRun(plan=MEGATRON, makespans_ns=(3, 4, 5), peak_bytes=7),
        PlanRun(plan=TWO, makespans_ns=(), peak_bytes=None, failed="out of memory"),
    ),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that holds both records."""
    path = tmp_path / "evidence.jsonl"
    with Evidence(path, QUESTION) as evidence:
        evidence.append(ALONE)
        evidence.append(PAIR)
    return path


def records(path: Path) -> list[LaunchRecord]:
    with Evidence(path, QUESTION) as evidence:
        return evidence.records


def refused(path: Path, question: Any = QUESTION) -> str:
    """Return the message of the refusal, which must leave the file as it is."""
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        Evidence(path, question)
    assert path.read_bytes() == before
    return str(caught.value)


def test_what_was_appended_is_read_again(path: Path) -> None:
    assert records(path) == [ALONE, PAIR]
    assert path.read_bytes().count(b"\n") == 3


def test_cut_anywhere_it_holds_every_whole_line(path: Path) -> None:
    """As after a kill in the middle of a write; lines that are appended later are read
    again, too.
    """
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        count = max(0, sum(end <= size for end in ends) - 1)
        with Evidence(path, QUESTION) as evidence:
            assert evidence.records == [ALONE, PAIR][:count]
            evidence.append(PAIR)
        assert records(path) == [*[ALONE, PAIR][:count], PAIR]


def test_another_question_is_refused_with_what_differs(path: Path) -> None:
    other: Question = {
        "model": {"hidden_size": 128, "tied": False},
        "machine": {"gpu": "one", "cores": 2},
    }
    text = refused(path, other)
    assert "model.hidden_size: there 64, asked 128" in text
    assert "machine.cores: there None, asked 2" in text
    assert "tied" not in text
    assert "--evidence" in text


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: [b"hello", *lines],
        lambda lines: [lines[0], b"{}", *lines[1:]],
        lambda lines: [*lines[:2], lines[2][:-9], lines[1]],
        lambda lines: [lines[0], lines[1].replace(b"[3, 4, 5]", b"[3, -4, 5]")],
        lambda lines: [lines[0], lines[1].replace(b"[3, 4, 5]", b"3")],
        lambda lines: [lines[0], lines[1].replace(b"row_slices", b"rows")],
        lambda lines: [lines[0].replace(b'"schema": 1', b'"schema": 2'), *lines[1:]],
        lambda lines: [lines[0], b"[]"],
    ],
)
def test_a_spoilt_file_is_refused(path: Path, spoil: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"\n".join(spoil(path.read_bytes().splitlines())) + b"\n")
    text = refused(path)
    assert str(path) in text
    assert "--evidence" in text


def test_someone_elses_file_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes, no newline at the end")
    assert "no evidence file" in refused(path)


@pytest.mark.parametrize("make", ["folder", "nowhere"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, make: str) -> None:
    (tmp_path / "folder").mkdir()
    place = tmp_path / ("folder" if make == "folder" else "no/such/file")
    with pytest.raises(InputError, match="Cannot write"):
        Evidence(place, QUESTION)


def test_one_at_a_time(path: Path) -> None:
    with Evidence(path, QUESTION):
        assert "in use" in refused(path)
    assert records(path) == [ALONE, PAIR]


def test_a_full_disk_leaves_what_was_there(path: Path) -> None:
    """Only half of a line fits."""
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Evidence(path, QUESTION) as evidence:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
        try:
            with pytest.raises(InputError, match="Make room"):
                evidence.append(PAIR)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
        evidence.append(PAIR)
    assert records(path) == [ALONE, PAIR, PAIR]


def test_default_place_is_of_the_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path / "home"))
    path = evidence_path(QUESTION)
    assert path.parent == tmp_path / "home" / "evidence"
    assert path.parent.is_dir()
    assert path == evidence_path(json.loads(json.dumps(QUESTION)))
    assert path != evidence_path({**QUESTION, "machine": {"gpu": "two"}})
