"""Print jobs of a server as tables."""

from __future__ import annotations

from collections.abc import Sequence

from domino_tune.base.tables import Table, print_table
from domino_tune.cli import show
from domino_tune.client.jobs import READERS, Job, duration
from domino_tune.results.shown import ms
from domino_tune.results.tune import stopped_words

_COLUMNS = ("job", "kind", "state", "label", "created", ">done", ">left", ">time", "best so far")


def listing(jobs: Sequence[Job]) -> None:
    """Print one row a job."""
    narrow = ("created", "label", "best so far", "left")
    print_table(Table(columns=_COLUMNS, rows=[_row(job) for job in jobs], narrow=narrow))


def one(job: Job) -> None:
    """Print a job, then its result when it is done. Raise the error of a job that failed."""
    listing([job])
    if job.state == "failed":
        job.result()
    if job.state == "done" and job.kind in READERS:
        show.tables(job.answer())


def _row(job: Job) -> tuple[str, ...]:
    best = job.plain.get("best") or {}
    plan = (best.get("plan") or {}).get("label", "")
    time = best.get("iteration_ms")
    total = "" if job.total is None else f" of {job.total:,}"
    return (
        job.id, job.kind, f"{job.state}{stopped_words(job.stopped_by)}",
        job.label or "",
        str(job.plain.get("created") or ""), f"{job.done:,}{total}",
        "" if job.left is None or job.ended else f"≤ {job.left:,}",
        "" if job.elapsed_s is None else duration(job.elapsed_s),
        f"{plan}: {ms(time)}" if plan and time is not None else "",
    )  # fmt: skip
