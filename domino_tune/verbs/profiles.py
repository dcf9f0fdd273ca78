"""The profiles verbs: list, show, check, import, diff."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from domino_tune import requests
from domino_tune.measure.importers import Hints, ImportedRows, import_into, not_from, read_table
from domino_tune.results.files import (
    CheckResult,
    DiffResult,
    ImportResult,
    ProfileResult,
    SectionResult,
    Trust,
)
from domino_tune.results.simulate import Interval
from domino_tune.store.assumptions import assumptions
from domino_tune.store.files import (
    bundled_names,
    check_writable,
    make_folder,
    only_user,
    read_bytes,
    user_profiles_dir,
)
from domino_tune.store.plans import ProfileRef
from domino_tune.store.profiles import (
    ProfileSummary,
    check_profile,
    diff_profiles,
    fits_of,
    list_profiles,
    load_profile,
    save_profile,
)
from domino_tune.verbs.machines import interval_of
from domino_tune.verbs.resolve import Chosen, place, usual_implementation
from simulator.case import Case
from simulator.compiler import record
from simulator.confidence import confidence_of
from simulator.dtypes import MS_PER_NS
from simulator.errors import DominoTuneError, InputError, ProfileError
from simulator.plan import SlicePlan
from simulator.predict import played
from simulator.presets import MODELS
from simulator.profile import NEVER, SECTIONS, Profile
from simulator.specs import ClusterSpec, Workload

ASKED: Final = (("gpt3-13b", 8, 2048, 8), ("llama3-8b", 8, 8192, 2))
"""Cases for which ``profiles check`` says how sure a prediction is: model, TP, sequence, batch."""
MOST_ROWS: Final = 200_000
"""Most rows of a section: the file of a profile with more could not be read again."""


def profiles_list(request: requests.ProfilesListRequest) -> list[ProfileSummary]:
    """Return the bundled profiles and the user's, by name."""
    return list_profiles()


def profiles_show(request: requests.ProfilesShowRequest) -> ProfileResult:
    """Return a profile's machine and the source of each section."""
    profile = load_profile(request.profile)
    present = [name for name in SECTIONS if getattr(profile, name) is not None]
    known = (*present, *NEVER.get(profile.machine.backend, ()))
    return ProfileResult(
        name=profile.name,
        content_id=profile.content_id,
        created=profile.created,
        machine=profile.machine,
        sections=tuple(_section(profile, name) for name in present),
        missing=tuple(name for name in SECTIONS if name not in known),
    )


def profiles_check(request: requests.ProfilesCheckRequest) -> CheckResult:
    """Return each section's leave-out error. Raise ProfileError for an invalid profile."""
    profile = load_profile(request.profile)
    return CheckResult(
        profile=ProfileRef.of(profile),
        sections=tuple(check_profile(profile)),
        assumptions=tuple(assumptions(profile)),
        trust=tuple(_trust(profile, *asked) for asked in ASKED),
    )


def _trust(profile: Profile, model: str, tp: int, seq_length: int, batch: int) -> Trust:
    name = f"{model}, TP {tp}, {seq_length:,} × {batch}"
    try:
        case = Case(
            model=MODELS[model],
            workload=Workload(
                seq_length=seq_length,
                micro_batch_size=batch,
                implementation=usual_implementation(profile),
            ),
            cluster=place(ClusterSpec(tp=tp, ranks_per_node=2**30), profile, None),
            profile=profile,
        )
        run = played(case, plan := SlicePlan(row_slices=2))
        low_ns, high_ns = interval_of(case, Chosen.of(case, plan))
    except DominoTuneError as reason:
        return Trust(case=name, level=None, note=str(reason))
    timeline = record(run.plays, run.cost)
    found = confidence_of(timeline, run.cost)
    return Trust(
        case=name,
        level=found.level,
        iteration_ms=timeline.makespan_ns * MS_PER_NS,
        interval_ms=Interval(low=low_ns * MS_PER_NS, high=high_ns * MS_PER_NS),
        shares=found.shares,
    )


def profiles_import(request: requests.ProfilesImportRequest) -> ImportResult:
    """Add a table to a copy of a profile; save it as ``name`` in the user's folder.

    Where a profile of that name came from the same one by imports, add to it. Raise InputError
    where it did not: nothing is replaced but rows of the same signature.
    """
    if request.name in bundled_names():
        raise InputError(
            f"{request.name!r} is the name of a bundled profile, which an import may not replace; "
            "give another --name."
        )
    data = read_bytes(request.file)
    base = replace(load_profile(request.into), name=request.name)
    imported = _imported(request, base, data)
    path = user_profiles_dir() / f"{base.name}.json"
    make_folder(path.parent, "choose another home with $DOMINO_TUNE_HOME")
    check_writable(path)
    with only_user(path, "wait for it to end, or give another --name"):
        start = _earlier(path, base, request) if path.exists() else base
        made = _merged(request, start, imported, data, MOST_ROWS)
        save_profile(made, path)
    return ImportResult(
        profile=ProfileRef.of(made),
        path=str(path),
        section=imported.section,
        rows=len(imported.rows),
        replaced=replaced_rows(start, made, imported),
        note=imported.note,
        warnings=imported.warnings,
    )


def _earlier(path: Path, base: Profile, request: requests.ProfilesImportRequest) -> Profile:
    """Return the profile of an earlier import. Raise InputError unless it came from ``base``."""
    try:
        earlier = replace(load_profile(path), name=base.name)  # the file may be a copy
    except ProfileError as error:
        raise ProfileError(f"{error} Remove the file, or give another --name.") from None
    differing = not_from(earlier, base)
    if differing:
        raise InputError(
            f"There is a profile {base.name!r} that is not {request.into!r} with imported rows "
            f"(another {', '.join(differing)}). Give --into {base.name} to add to it, else "
            f"another --name, or remove {str(path)!r}."
        )
    return earlier


def imported_profile(
    request: requests.ProfilesImportRequest,
    base: Profile,
    data: bytes,
    *,
    most_rows: int = MOST_ROWS,
) -> tuple[Profile, ImportedRows]:
    """Return a copy of ``base`` with the table ``data`` and the request's name; and the rows.

    Raise InputError for a table of another format than the request's, for rows that the machine of
    ``base`` cannot reach, or when the section would have more than ``most_rows``.
    """
    imported = _imported(request, base, data)
    return _merged(request, base, imported, data, most_rows), imported


def _imported(request: requests.ProfilesImportRequest, base: Profile, data: bytes) -> ImportedRows:
    hints = Hints(
        op=request.op,
        nodes=request.nodes,
        per_node=request.ranks_per_node,
        ctas=request.ctas,
        dtype=request.dtype,
        unit=request.unit,
        machine=base.machine,
    )
    return read_table(data, request.format, hints)


def _merged(
    request: requests.ProfilesImportRequest,
    base: Profile,
    imported: ImportedRows,
    data: bytes,
    most_rows: int,
) -> Profile:
    old = len(_rows(base, imported.section))
    if old + len(imported.rows) > most_rows:
        raise InputError(
            f"The table has {len(imported.rows):,} rows, and the section {imported.section} "
            f"{old:,} already; together they may be at most {most_rows:,} here. Import fewer rows."
        )
    made = import_into(base, imported, source=Path(request.file).name, data=data)
    return replace(made, name=request.name)


def replaced_rows(base: Profile, made: Profile, imported: ImportedRows) -> int:
    """Return how many of the rows that made ``made`` of ``base`` took the place of another."""
    before, after = (len(_rows(profile, imported.section)) for profile in (base, made))
    return before + len(imported.rows) - after


def _rows(profile: Profile, section: str) -> Sequence[Any]:
    return getattr(getattr(profile, section), "rows", ())


def profiles_diff(request: requests.ProfilesDiffRequest) -> DiffResult:
    """Return everything that differs between two profiles."""
    first, second = load_profile(request.first), load_profile(request.second)
    return DiffResult(
        first=ProfileRef.of(first),
        second=ProfileRef.of(second),
        differences=tuple(diff_profiles(first, second)),
    )


def _section(profile: Profile, name: str) -> SectionResult:
    section = getattr(profile, name)
    provenance = section.provenance
    return SectionResult(
        section=name,
        kind=provenance.kind,
        rows=len(getattr(section, "rows", ())),
        fits=fits_of(section),
        error=provenance.error,
        source=provenance.source,
        clock=provenance.clock,
        note=provenance.note,
    )
