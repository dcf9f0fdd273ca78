"""Prints each hostile request's answer and how long it took: scripts/hostile [TIMES]."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import httpx

from domino_tune.base.tables import Table, print_table
from tests.real.api.hostile.corpus import corpus
from tests.real.api.hostile.documented import undocumented
from tests.real.api.hostile.exchange import Answer, exchange
from tests.support.service import serving

ALLOWED_MS = 50.0
RECEIVE_S = 1.0


def main() -> int:
    """The exit code: 0 where all are answered, as documented, in time."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), receive_s=RECEIVE_S, burst=1_000_000) as service,
    ):
        document = httpx.get(f"{service.url}/openapi.json").json()
        rows, wrong, late = [], [], []
        for name, one in corpus().items():
            answers = [exchange(service.port, one.parts) for _ in range(1 if one.slow else times)]
            worst = max(answers, key=lambda answer: answer.seconds)
            for answer in answers:
                if answer.status not in one.statuses or undocumented(
                    document, list(one.parts), answer
                ):
                    wrong.append(name)
            if not one.slow and worst.seconds * 1e3 > ALLOWED_MS:
                late.append(name)
            rows.append(_row(name, answers, worst, slow=one.slow))
    notes = [
        f"{len(rows)} requests; {len(wrong)} answered wrongly: {', '.join(wrong) or 'none'}.",
        f"Above {ALLOWED_MS:g} ms: {', '.join(late) or 'none'}. Those marked * wait for a deadline "
        f"of {RECEIVE_S:g} s, or 2 s more for heads.",
    ]
    columns = ("request", ">status", ">median ms", ">worst ms")
    print_table(Table(title="Hostile requests", columns=columns, rows=rows, notes=notes))
    return 1 if wrong or late else 0


def _row(name: str, answers: list[Answer], worst: Answer, *, slow: bool) -> tuple[str, ...]:
    ordered = sorted(answer.seconds for answer in answers)
    median = ordered[len(ordered) // 2]
    statuses = " ".join(sorted({str(answer.status) for answer in answers}))
    return (
        name + (" *" if slow else ""), statuses, f"{median * 1e3:.1f}", f"{worst.seconds * 1e3:.1f}"
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
