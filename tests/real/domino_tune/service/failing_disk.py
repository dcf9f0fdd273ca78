"""Takes a job from its submission to its end, over and over, each time with another call failing:
the first, then the one ``STRIDE`` later, and so on.

    LD_PRELOAD=failing_disk.so python -m tests.real.domino_tune.service.failing_disk \\
        FOLDER ERRNO LASTING STRIDE

Where a step is refused, the disk is mended, the database must be as before the step or as after it,
and the step is tried again. Prints one JSON line: how many calls were let fail, and how many of
them refused a step.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from domino_tune.base.errors import StorageError
from domino_tune.service.jobs import JobProgress, JobRecord, NewJob, Point
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Claimed, Leases, LostLeaseError
from domino_tune.service.sql.database import Database, open_database
from domino_tune.service.sql.tables import METADATA
from tests.real.domino_tune.service.made import key

TASK: Final = b"x" * 9000
State = list[tuple[object, ...]]


@dataclass(kw_only=True)
class Life:
    """One job's life on one database, step by step."""

    file: Path
    made: list[Database] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    claims: list[Claimed] = field(default_factory=list)

    def open(self) -> None:
        self.made.append(open_database(f"sqlite:///{self.file}"))

    def submit(self) -> None:
        new = NewJob(kind="whatif", owner="ann", request={"tp": 8}, task=TASK)
        self.jobs.append(JobDesk(self.made[0]).submit(new, key())[0])

    def claim(self) -> None:
        claimed = self._leases.claim()
        assert claimed
        assert claimed.task == TASK
        self.claims.append(claimed)

    def progress(self) -> None:
        self._leases.progress(self.claims[0], JobProgress(done=1, text="one"), {"best": 1})

    def add_points(self) -> None:
        points = [Point(index=index, body=TASK) for index in range(2)]
        self._leases.add_points(self.claims[0], points)

    def finish(self) -> None:
        try:
            self._leases.finish(self.claims[0], TASK, {"plan": TASK, "trace": TASK})
        except LostLeaseError:  # the try before was kept after all
            assert JobDesk(self.made[0]).get(self.jobs[0].id, "ann").state == "done"

    def close(self) -> None:
        self.made[0].close()

    @property
    def _leases(self) -> Leases:
        return Leases(self.made[0], "worker")

    @property
    def steps(self) -> list[Callable[[], None]]:
        return [
            self.open, self.submit, self.claim, self.progress, self.add_points, self.finish,
            self.close,
        ]  # fmt: skip


def state_of(file: Path) -> State:
    """All that does not depend on chance or clock, read by another connection; none: no tables."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = {name for (name,) in other.execute("SELECT name FROM sqlite_master")}
        if not tables:
            return []
        assert tables >= set(METADATA.tables)
        counts = [
            (name, other.execute(f"SELECT count(*) FROM {name}").fetchone()[0])
            for name in sorted(METADATA.tables)
        ]
        asked = "SELECT state, fence, attempts, progress, best, version FROM jobs"
        return [*counts, *other.execute(asked)]


class Disk:
    """The preloaded library."""

    def __init__(self, error: int, lasting: int) -> None:
        self._library = ctypes.CDLL(None)
        self._error, self._lasting = error, lasting

    def arm(self, folder: Path, nth: int) -> None:
        self._library.disk_arm(str(folder).encode(), nth, self._error, self._lasting)

    def disarm(self) -> int:
        calls: int = self._library.disk_disarm()
        return calls


def undisturbed(folder: Path) -> list[State]:
    """The state before the first step, and after each."""
    life = Life(file=folder / "jobs.db")
    states: list[State] = [[]]
    for step in life.steps:
        step()
        states.append(state_of(life.file))
    return states


def live(folder: Path, disk: Disk, nth: int, states: list[State]) -> tuple[bool, int]:
    """One life; whether call ``nth`` was reached, and how many steps were refused."""
    life, refused = Life(file=folder / "jobs.db"), 0
    calls = 0
    disk.arm(folder, nth)
    for number, step in enumerate(life.steps):
        try:
            step()
        except StorageError:
            calls += disk.disarm()
            refused += 1
            assert state_of(life.file) in states[number : number + 2], (nth, step)
            step()
    calls += disk.disarm()
    assert state_of(life.file) == states[-1], nth
    return calls >= nth, refused


def main(folder: Path, error: int, lasting: int, stride: int) -> None:
    disk = Disk(error, lasting)
    (folder / "undisturbed").mkdir()
    states = undisturbed(folder / "undisturbed")
    failed = refusals = 0
    for nth in itertools.count(1, stride):
        (folder / str(nth)).mkdir()
        reached, refused = live(folder / str(nth), disk, nth, states)
        if not reached:
            break
        failed += 1
        refusals += refused
    print(json.dumps({"failed": failed, "refused": refusals}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
