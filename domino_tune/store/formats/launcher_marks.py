"""Marks that launchers put before the lines of a log: which rank printed one, and when.

mpirun (``[1,0]<stdout>:``), Hydra (``[0] ``), srun (``0: ``), pdsh (``node-4: ``), torchrun
(``[default0]:``), Ray (``(RayTrainWorker pid=9, ip=…) ``), Docker Compose (``trainer-1 | ``),
kubectl (``[pod/trainer-0/main] ``), timestamps and levels of all these, and colours. Several may
follow each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

_COLOURS: Final = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_SAID: Final = re.compile(
    r"\s{0,8}(?:"
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?\]?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?"
    r"|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?: \d{4})?"
    r"|\d{10}\.\d{1,9}"
    r"|std(?:out|err) [FP]"  # a container's log
    r"|[IWE]\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d+ [^\]\s]{1,80}\]"
    r"|(?:- )?\[?(?:DEBUG|INFO|WARNING)\]?(?: -)?"
    r"|\[repeated \d+x across cluster\]"  # by Ray
    r")(?:[:,]?\s|(?=[\[(<])|$)"
)
_RANK: Final = re.compile(
    r"\s{0,8}(?:"
    r"(?:\[[^\]\s]{1,80}\]){0,2}<std[a-z]{2,6}>:?"  # mpirun
    r"|[\w.-]{1,80} [\w./-]{1,80}\[\d{1,9}\]:"  # journald
    r"|\((?:[^()]{0,80}\s)?pid=\d+[^()]{0,80}\)"  # Ray
    r"|\[pod/[^\]\s]{1,200}\]"  # kubectl
    r"|\[[\w.-]{1,80}\]:"  # torchrun
    r"|\[(?:rank)? ?\d{1,7}\](?=[\s#]|$)|rank ?\d{1,7}:(?=[\s#]|$)"  # Hydra
    r"|(?=[a-z.-]{0,200}\d)[a-z\d.-]{1,200}-[a-z\d]{1,40} [a-z][a-z\d-]{0,80}(?= )"  # stern
    r"|[\w.@/-]{1,200}\s{0,40}\|(?=[\s#]|$)"  # Docker Compose
    r"|(?=\w{0,200}[\d.-])[\w.-]{1,200}:(?=[\s#]|$)"  # srun, pdsh
    r") ?",
    re.IGNORECASE,
)
MOST_MARKS: Final = 8
"""Most marks on one line."""


class Line(NamedTuple):
    """A line's number in the file, the mark of the rank that printed it ("" if unmarked), and its
    text."""

    number: int
    mark: str
    text: str


def unmarked(lines: Iterable[tuple[int, str]]) -> list[Line]:
    """Return numbered lines without their marks; an unmarked line stays as it is."""
    return [_unmarked(number, text) for number, text in lines]


def by_rank(lines: Sequence[Line], tells: Callable[[str], object]) -> list[list[Line]]:
    """Return the lines of each rank that printed at least one line for which ``tells`` is true.

    If these lines carry at most one mark, or all their own numbers (``grep -n``), all lines belong
    to one rank. Otherwise an unmarked line belongs to the rank of the line before it.
    """
    telling = [line for line in lines if line.mark and tells(line.text)]
    marks = dict.fromkeys(line.mark for line in telling)
    numbered = all(line.mark == f"{line.number}:" for line in telling)
    if len(marks) <= 1 or numbered:
        return [list(lines)]
    ranks: dict[str, list[Line]] = {mark: [] for mark in marks}
    last = next(iter(marks))
    for line in lines:
        last = line.mark or last
        if last in ranks:
            ranks[last].append(line)
    return list(ranks.values())


def unknown_mark(lines: Iterable[Line], content: re.Pattern[str]) -> str:
    """Return the most frequent text before a match of ``content`` that does not begin its line: the
    mark of an unknown launcher, or ""."""
    found = (content.search(line.text) for line in lines)
    before = Counter(
        one.string[: one.start()] for one in found if one and one.string[: one.start()].strip()
    )
    return before.most_common(1)[0][0].strip()[:60] if before else ""


def _unmarked(number: int, text: str) -> Line:
    text = _COLOURS.sub("", text).rstrip("\r")
    marks = []
    for _ in range(MOST_MARKS):
        if text[:1] == "#":
            break  # a remark of nccl-tests, and the usual line
        if told := _SAID.match(text):
            text = text[told.end() :]
        elif told := _RANK.match(text):
            marks.append(told[0].strip())
            text = text[told.end() :]
        else:
            break
    return Line(number, " ".join(marks), text)
