"""What benchmarks share: published measurements, the Domino paper's case, times and intervals."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, Final

from domino_tune.measure.importers import read_table
from domino_tune.measure.importers.imported import Imported
from domino_tune.store.profiles import load_profile
from lab.fits.common import Sources
from lab.verdict import SkippedError
from simulator.case import Case
from simulator.confidence import Confidence, confidence_of
from simulator.plan import SlicePlan
from simulator.predict import played, predict, unsure_clocks
from simulator.presets import MODELS
from simulator.record import record
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.timeline import Timeline
from simulator.units import MS_PER_NS

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = Sources(REPOSITORY / "data", REPOSITORY / "measurements")
GPT3_13B: Final = replace(
    MODELS["gpt3-13b"], num_attention_heads=64, num_key_value_heads=64, head_dim=80
)
"""With 64 heads, as in the paper: 40 are no multiple of 16 ranks."""


def facts_dir() -> Path:
    """Return the folder of tables that are not in the repository (data/NOTICE.md). Raise
    SkippedError if ``DOMINO_TUNE_FACTS`` names none."""
    folder = os.environ.get("DOMINO_TUNE_FACTS", "")
    if not (folder and Path(folder).is_dir()):
        raise SkippedError(
            f"no facts: DOMINO_TUNE_FACTS = {folder!r} is not a folder; see data/NOTICE.md"
        )
    return Path(folder)


@cache
def read_measured(name: str, importer: str) -> Imported:
    """Read a file of ``data/measured`` with the importer that users call."""
    return read_table(SOURCES.table(name), importer)


def errors(table: Any, rows: Iterable[Any]) -> Iterator[float]:
    """Yield |looked up / measured − 1| of each row of a section in a table of its kind."""
    for row in rows:
        yield abs(table.estimate(row.signature).duration_us / row.median_us - 1)


def paper_case(model: ModelSpec, tp: int) -> Case:
    """Return 16 sequences of 1,024 tokens on H100s, with a new cost model."""
    work = Workload(seq_length=1024, micro_batch_size=16)
    return Case(
        model=model, workload=work, cluster=ClusterSpec(tp=tp), profile=load_profile("h100-dgx")
    )


def time_ms(case: Case, plan: SlicePlan) -> float:
    """Return the time of an iteration."""
    return predict(case, plan).makespan_ns * MS_PER_NS


def fastest(case: Case, plans: Iterable[SlicePlan]) -> tuple[int, SlicePlan]:
    """Return the time, in ns, and the plan of the first of the fastest."""
    times = ((predict(case, plan).makespan_ns, plan) for plan in plans)
    return min(times, key=itemgetter(0))


def recorded(case: Case, plan: SlicePlan) -> Timeline:
    """Return the timeline that the fast engine plays."""
    found = played(case, plan)
    return record(found.plays, found.cost)


def interval(case: Case, plan: SlicePlan) -> Confidence:
    """Return how sure the time of an iteration is."""
    found = played(case, plan)
    timeline = record(found.plays, found.cost)
    return confidence_of(timeline, found.cost, unsure_clocks(case, found))


def half_width(known: Confidence) -> float:
    """Return half of the interval over its middle."""
    return (known.high_ns - known.low_ns) / (known.high_ns + known.low_ns)


def spread(values: Iterable[float], form: str) -> tuple[str, str, str]:
    """Return the least, the median and the most of ``values`` in ``form``."""
    known = sorted(values)
    return format(known[0], form), format(median(known), form), format(known[-1], form)
