"""Prints the door's table with each answer and how long it took: scripts/hostile [TIMES]."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from domino_tune.base.tables import Table, print_table
from tests.support.door.documented import wrong
from tests.support.door.exchange import Answer, exchange
from tests.support.door.table import table
from tests.support.service import serving

ALLOWED_MS: Final = 50.0
RECEIVE_S: Final = 1.0
"""Deadline of a request."""


def main() -> int:
    """The exit code: 0 where all are answered as documented."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rows, bad, slow = [], [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), receive_s=RECEIVE_S, burst=1_000_000) as service,
    ):
        for name, case in table().items():
            answers = [exchange(service.port, case.parts) for _ in range(1 if case.late else times)]
            bad += [name] if any(wrong(case, answer) for answer in answers) else []
            times_ms = sorted(1e3 * answer.seconds for answer in answers)
            slow += [name] if times_ms[-1] > ALLOWED_MS and not case.late else []
            rows.append(_row(name + " *" * case.late, answers[0], times_ms))
    notes = [
        f"{len(rows)} requests; {len(bad)} answered wrongly: {', '.join(bad) or 'none'}.",
        f"Above {ALLOWED_MS:g} ms: {', '.join(slow) or 'none'}. A process reads large profiles, "
        "and it starts first; some layouts are looked through.",
        f"Those marked * wait for a deadline of {RECEIVE_S:g} s, or 2 s more for heads.",
    ]
    columns = ("request", ">status", "problem", ">median ms", ">worst ms")
    print_table(Table(title="The table of the door", columns=columns, rows=rows, notes=notes))
    return 1 if bad else 0


def _row(name: str, answer: Answer, times_ms: list[float]) -> tuple[str, ...]:
    kind = answer.problem.get("type", "").rpartition("#")[2]
    median = times_ms[len(times_ms) // 2]
    return name, str(answer.status), kind, f"{median:.1f}", f"{times_ms[-1]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
