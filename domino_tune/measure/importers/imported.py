"""An importer's arguments and result, and what is checked of its rows before they are merged."""

from __future__ import annotations

import gzip
import io
import re
import statistics
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal

from domino_tune.measure.importers.rates import UNITS, check_rates, lifted_rows
from domino_tune.store.files import MAX_TEXT_BYTES
from simulator.build import build_schedule
from simulator.errors import InfeasiblePlanError, InputError
from simulator.lookup.attention import AttentionRow
from simulator.lookup.gemm import GemmRow
from simulator.ops import Attention, Gemm, Signature
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.profile import Machine, gemm_key
from simulator.specs import ClusterSpec, ModelSpec, Workload

# Shapes of the presets' ops -----------------------------------------------------------------------
# Find imported rows that no preset looks up.

MOST_TP: Final = 8
CUTS: Final = (2, 4, 8)
"""Column slices whose shapes count, besides the whole."""
Shape = tuple[str | int | bool, ...]


def unknown_shapes(rows: Sequence[Any]) -> tuple[str, ...]:
    """Return a warning if no row of GEMMs or attention in ``rows`` has the shape of a preset.

    Tokens and batch do not count: look-ups interpolate well along them.
    """
    shapes = {_shape(row.signature) for row in rows if isinstance(row, GemmRow | AttentionRow)}
    if not shapes or not shapes.isdisjoint(preset_shapes()):
        return ()
    is_gemm = isinstance(rows[0], GemmRow)
    names = "GEMM shapes (n, k)" if is_gemm else "attention shapes (heads, head size, causal)"
    return (
        f"None of the {len(shapes):,} imported {names} occurs in any preset at tp 1…{MOST_TP}; "
        "look-ups for presets will interpolate.",
    )


@cache
def preset_shapes() -> frozenset[Shape]:
    """Return the shapes of all presets at every tp up to MOST_TP, whole and sliced."""
    workload = Workload(seq_length=128, micro_batch_size=1)
    found: set[Shape | None] = set()
    for model in MODELS.values():
        for tp in range(1, MOST_TP + 1):
            for plan in _plans():
                found |= _shapes_of(model, workload, ClusterSpec(tp=tp), plan)
    return frozenset(shape for shape in found if shape)


def _plans() -> tuple[SlicePlan, ...]:
    cut = [
        SlicePlan(
            strategy="domino",
            row_slices=1,
            attn_col_slices=c,
            mlp_col_slices=c,
            order="intra",
            wgrad="eager",
        )
        for c in CUTS
    ]
    return (MEGATRON, *cut)


def _shapes_of(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, plan: SlicePlan
) -> set[Shape | None]:
    """Return the shapes of a layer of each kind and the edges; an empty set if the model cannot be
    sharded or cut this way."""
    short = replace(model, num_hidden_layers=1 + model.first_k_dense_replace)
    shards = model.num_experts > 0 and cluster.tp > 1
    try:
        schedule = build_schedule(short, workload, cluster, replace(plan, sequence_parallel=shards))
    except (InputError, InfeasiblePlanError):
        return set()
    return {_shape(template.signature) for template in schedule.templates()}


def _shape(op: Signature) -> Shape | None:
    """Return an op's shape without its tokens; None for ops identified by their bytes."""
    if isinstance(op, Gemm):
        return (op.layout, op.m, op.n) if op.layout == "wgrad" else (op.layout, op.n, op.k)
    if isinstance(op, Attention):
        return op.direction, op.heads, op.kv_heads, op.head_dim, op.causal
    return None


# Rows of one signature in one import --------------------------------------------------------------
# Samples of one row, or a contradiction to warn about.

NOISE: Final = 0.05
"""How far timings of one signature may differ and still count as samples of one time."""
SAMPLES: Final = 3
"""With this many timings, take their median; of two that contradict each other, keep the
later one.
"""
Same = Sequence[tuple[str, Any]]
"""Rows of one signature, each preceded by its place in the file."""


def merged(placed: Same) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return rows sorted by key, one for each, and warnings that name contradicting timings. Rows
    of one key become one: median time, half the range as spread."""
    by_key: dict[Any, list[tuple[str, Any]]] = {}
    for at, row in placed:
        by_key.setdefault(key_of(row), []).append((at, row))
    ordered = [by_key[key] for key in sorted(by_key)]
    return tuple(_one_row(same) for same in ordered), _contradictions(ordered)


def _one_row(same: Same) -> Any:
    rows = [row for _, row in same]
    if len(rows) < SAMPLES and _contradict(same):
        return rows[-1]
    if len(rows) == 1:
        return rows[0]
    times = [row.median_us for row in rows]
    return changed_row(
        rows[0],
        median_us=statistics.median(times),
        spread_us=(max(times) - min(times)) / 2,
        samples=sum(row.samples for row in rows),
    )


def _contradict(same: Same) -> bool:
    return _excess(same) > NOISE


def _excess(same: Same) -> float:
    """Return by how much the longest time exceeds the shortest, as a share of the shortest."""
    times = [float(row.median_us) for _, row in same]
    return max(times) / min(times) - 1


def _contradictions(all_rows: Sequence[Same]) -> tuple[str, ...]:
    found = [same for same in all_rows if len(same) > 1 and _contradict(same)]
    pairs = [same for same in found if len(same) < SAMPLES]
    others = [same for same in found if len(same) >= SAMPLES]
    told = []
    if pairs:
        (first, before), (last, kept) = max(pairs, key=_excess)
        told.append(
            f"{_rows(pairs)} by more than {NOISE:.0%}: the later one is kept, so {last} with "
            f"{kept.median_us:,.6g} us, not {first} with {before.median_us:,.6g} us."
        )
    if others:
        most_apart = max(others, key=_excess)
        worst = sorted(most_apart, key=lambda one: float(one[1].median_us))
        (least_at, least), (most_at, most) = worst[0], worst[-1]
        told.append(
            f"{_rows(others)} by more than {NOISE:.0%}: their median is kept, so "
            f"{_one_row(worst).median_us:,.6g} us of {len(worst)} timings from "
            f"{least.median_us:,.6g} us ({least_at}) to {most.median_us:,.6g} us ({most_at})."
        )
    return tuple(told)


def _rows(found: Sequence[Same]) -> str:
    many = len(found) > 1
    return (
        f"{len(found):,} signatures were timed more than once, with times that differ" if many
        else "One signature was timed more than once, with times that differ"
    )  # fmt: skip


def key_of(row: Any) -> Any:
    """Return what identifies a row: its signature."""
    return gemm_key(row) if isinstance(row, GemmRow) else row.key


def changed_row(row: Any, **changes: Any) -> Any:
    """Return the row with other values of some fields."""
    return row._replace(**changes) if isinstance(row, GemmRow) else replace(row, **changes)


# Merge rows into an existing section, and keep the provenance of its older numbers ----------------

ASSUMED: Final = "assumed"


def merged_section(old: Any, rows: Sequence[Any], provenance: Any) -> Any:
    """Return section ``old`` with ``rows``, both older and new ones, and the new rows' provenance.

    If ``old`` is assumed, mark its laws as assumed. Rows have no kind of their own, so the section
    stays assumed as long as one of its older rows is left. The clock names those of both.
    """
    before = old.provenance
    clock = _clock(before.clock, provenance.kind)
    if before.kind == ASSUMED and not {*old.rows}.isdisjoint(rows):
        errors = [one.error for one in (before, provenance) if one.error is not None]
        provenance = replace(provenance, kind=ASSUMED, error=max(errors, default=None))
    return replace(
        with_laws_as_known(old), rows=tuple(rows), provenance=replace(provenance, clock=clock)
    )


def with_laws_as_known(section: Any) -> Any:
    """Return the section; if it is assumed, mark each of its laws as assumed, with the section's
    error."""
    provenance = section.provenance
    if provenance.kind != ASSUMED:
        return section
    least = provenance.error or 0.0

    def assumed(law: Any) -> Any:
        return replace(law, kind=ASSUMED, error=max(law.error, least))

    if hasattr(section, "fits"):
        return replace(section, fits=tuple(assumed(law) for law in section.fits))
    return replace(section, fit=section.fit and assumed(section.fit))


def _clock(before: str, kind: str) -> str:
    """Return a text for the unknown clock of the new rows and the clock of the older numbers."""
    new = f"{kind} rows: not known; before: "
    return before if not before or before.startswith(new) else new + before


# An importer's arguments besides the data, and its result -----------------------------------------

SectionName = Literal["gemm", "attention", "pointwise", "collectives"]
Placed = Sequence[tuple[str, Any]]
"""Rows, each preceded by its place in the file, such as ``line 3``."""
Found = tuple[Placed, str]
"""Rows, and a note that names what was left out."""
"""No table of timings is larger; an unpacked zip bomb is."""
MAX_LINES: Final = 1_000_000
MAX_LINE: Final = 1 << 16
"""Most characters of a line."""
MOST_COUNT: Final = 10**15
"""The largest whole number in a table, as in a profile."""
_LINE: Final = re.compile(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)")


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Facts that a table may lack; None leaves them to the table.

    ``unit``: of the column ``us``, None for microseconds. ``machine``: the machine that was timed;
    rows faster than it can be are refused.
    """

    op: str | None = None
    nodes: int | None = None
    per_node: int | None = None
    ctas: int = 0
    dtype: str = "bf16"
    unit: str | None = None
    machine: Machine | None = None


NO_HINTS = Hints()


@dataclass(frozen=True, kw_only=True)
class ImportedRows:
    """Rows of one section, sorted, one for each signature.

    ``note`` names what was left out; ``warnings`` say why look-ups may not profit.
    """

    section: SectionName
    rows: tuple[Any, ...]
    note: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Importer:
    """Reader of one format, called with the file's bytes (gzip is unpacked first).

    ``read`` returns the rows and a note. ``columns``: those that a CSV must have. ``series``: a
    name for further columns; the CSV must have at least one. Times in a column ``us`` may have
    another unit. Raise InputError with the place and the reason.
    """

    section: SectionName
    read: Callable[[bytes, Hints], Found]
    columns: tuple[str, ...] = ()
    series: str = ""
    about: str

    @property
    def description(self) -> str:
        """What the format is, and its columns."""
        if not self.columns:
            return self.about
        series = f", and at least one of {self.series}" if self.series else ""
        return f"{self.about} Columns: {', '.join(self.columns)}{series}."

    def __call__(self, data: bytes, hints: Hints = NO_HINTS) -> ImportedRows:
        """Return the rows of the file, each signature once, compared with the hints' machine."""
        takes_unit = "us" in self.columns
        if hints.unit is not None and not takes_unit:
            raise InputError("The times of this format have a fixed unit; leave --unit out.")
        placed, note = self.read(data, hints)
        if not placed:
            raise InputError("The table has no rows to import" + (f" ({note})." if note else "."))
        factor = UNITS[hints.unit or "us"]
        if factor != 1:
            placed = [
                (at, changed_row(row, median_us=factor * row.median_us)) for at, row in placed
            ]
        warnings = unknown_shapes([row for _, row in placed])
        if hints.machine is not None:
            warnings += check_rates(placed, hints.machine, hints.unit, takes_unit=takes_unit)
        rows, twice = merged(placed)
        warnings += twice
        if hints.machine is not None:
            warnings += lifted_rows(rows, hints.machine)
        return ImportedRows(section=self.section, rows=rows, note=note, warnings=warnings)


def text_of(data: bytes) -> str:
    """Return the file as text, with gzip unpacked; raise InputError if it is neither text
    nor gzip."""
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MAX_TEXT_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"The file is not complete gzip: {error}.") from None
    if len(data) > MAX_TEXT_BYTES:
        raise InputError(
            f"The unpacked file has more than {MAX_TEXT_BYTES >> 20} MiB; no table of timings has. "
            "Split it."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"The file is not UTF-8 text (byte {error.start}); save the table as CSV in UTF-8."
        ) from None
    if "\0" in text:
        raise InputError("The file holds NUL bytes, so it is no text; save it as CSV in UTF-8.")
    return text


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number; raise InputError if there are too many or one is
    too long."""
    for number, match in enumerate(_LINE.finditer(text), 1):
        if number > MAX_LINES + 1:  # an empty line follows the last line break
            raise InputError(f"The table has more than {MAX_LINES:,} lines; split it.")
        if len(match[1]) > MAX_LINE:
            raise InputError(
                f"line {number} has more than {MAX_LINE:,} characters; no line of a table has. "
                "Are line breaks missing?"
            )
        yield number, match[1]


def brief(text: str) -> str:
    """Return a value of the file for a message: quoted, and cut if it is long."""
    return repr(text if len(text) <= 40 else text[:40] + "…")
