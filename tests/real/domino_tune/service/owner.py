"""A process of its own that claims jobs and works on them; run by ``owners.py``.

    python -m tests.real.domino_tune.service.owner work URL NAME COUNT
        hand in COUNT jobs, then claim and finish anybody's until none is left
    python -m tests.real.domino_tune.service.owner hold URL NAME
        claim one; at a line on stdin, finish it

Prints a line for every step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import Final

from domino_tune.service.jobs import Point
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Leases, LostLeaseError
from domino_tune.service.sql.database import open_database
from tests.real.domino_tune.service.made import submit


def work(url: str, name: str, count: str) -> None:
    with closing(open_database(url)) as database:
        desk, leases = JobDesk(database), Leases(database, name, lease_s=1000)
        for number in range(int(count)):
            print("submitted", submit(desk, name, number=number).id, flush=True)
        while claimed := leases.claim():
            leases.add_points(claimed, [Point(index=0, body=claimed.task)])
            leases.finish(claimed, claimed.task, {"by": name.encode()})
            print("finished", claimed.job.id, flush=True)


def hold(url: str, name: str) -> None:
    with closing(open_database(url)) as database:
        leases = Leases(database, name, lease_s=1000)
        claimed = leases.claim()
        assert claimed
        print("claimed", claimed.job.id, flush=True)
        sys.stdin.readline()
        try:
            leases.finish(claimed, b"late", {})
            print("finished", claimed.job.id, flush=True)
        except LostLeaseError:
            print("lost", claimed.job.id, flush=True)


VERBS: Final[dict[str, Callable[..., None]]] = {"work": work, "hold": hold}

if __name__ == "__main__":
    VERBS[sys.argv[1]](*sys.argv[2:])
