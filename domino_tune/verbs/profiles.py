"""The profiles verbs: list, show, check, import, diff."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from domino_tune import requests
from domino_tune.measure.importers import Hints, Imported, import_into, read_table
from domino_tune.results import CheckResult, DiffResult, ImportResult, ProfileResult, ProfilesResult
from domino_tune.results.profiles import SectionResult
from domino_tune.store.plans import ProfileRef
from domino_tune.store.profile_check import check_profile
from domino_tune.store.profiles import (
    bundled_names,
    diff_profiles,
    list_profiles,
    load_profile,
    save_profile,
    user_profiles_dir,
)
from simulator.errors import InputError
from simulator.profile import SECTIONS, Profile


def profiles_list(request: requests.ProfilesListRequest) -> ProfilesResult:
    """Return the bundled profiles and the user's, by name."""
    return ProfilesResult(profiles=tuple(list_profiles()))


def profiles_show(request: requests.ProfilesShowRequest) -> ProfileResult:
    """Return a profile's machine and the source of each section."""
    profile = load_profile(request.profile)
    present = [name for name in SECTIONS if getattr(profile, name) is not None]
    return ProfileResult(
        name=profile.name,
        content_id=profile.content_id,
        created=profile.created,
        machine=profile.machine,
        sections=tuple(_section(profile, name) for name in present),
        missing=tuple(name for name in SECTIONS if name not in present),
    )


def profiles_check(request: requests.ProfilesCheckRequest) -> CheckResult:
    """Return each section's leave-out error. Raise ProfileError for an invalid profile."""
    profile = load_profile(request.profile)
    return CheckResult(profile=ProfileRef.of(profile), sections=tuple(check_profile(profile)))


def profiles_import(request: requests.ProfilesImportRequest) -> ImportResult:
    """Add a table to a copy of a profile; save it as ``name`` in the user's folder."""
    if request.name in bundled_names():
        raise InputError(
            f"{request.name!r} is the name of a bundled profile, which an import may not replace; "
            "give another --name."
        )
    data = _read_bytes(request.file)
    made, imported = imported_profile(request, load_profile(request.into), data)
    path = user_profiles_dir() / f"{made.name}.json"
    try:
        save_profile(made, path)
    except OSError as error:
        raise InputError(
            f"Cannot write {str(path)!r}: {error.strerror}; set DOMINO_TUNE_HOME to another folder."
        ) from None
    return ImportResult(
        profile=ProfileRef.of(made),
        path=str(path),
        section=imported.section,
        rows=len(imported.rows),
        note=imported.note,
    )


def imported_profile(
    request: requests.ProfilesImportRequest,
    base: Profile,
    data: bytes,
    *,
    most_rows: int | None = None,
) -> tuple[Profile, Imported]:
    """Return a copy of ``base`` with the table ``data`` and the request's name; and the rows.

    Raise InputError for a table of another format than the request's, or when the section would
    have more than ``most_rows``.
    """
    hints = Hints(
        op=request.op,
        nodes=request.nodes,
        per_node=request.ranks_per_node,
        ctas=request.ctas,
        dtype=request.dtype,
    )
    imported = read_table(data, request.format, hints)
    old = len(getattr(getattr(base, imported.section), "rows", ()))
    if most_rows is not None and old + len(imported.rows) > most_rows:
        raise InputError(
            f"The table has {len(imported.rows):,} rows, and the section {imported.section} "
            f"{old:,} already; together they may be at most {most_rows:,} here. Import fewer rows."
        )
    made = import_into(base, imported, source=Path(request.file).name, data=data)
    return replace(made, name=request.name), imported


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
    fits = getattr(section, "fits", None)
    if fits is None:
        fits = [fit for fit in (getattr(section, "fit", None),) if fit is not None]
    return SectionResult(
        section=name,
        kind=provenance.kind,
        rows=len(getattr(section, "rows", ())),
        fits=len(fits),
        error=provenance.error,
        source=provenance.source,
        note=provenance.note,
    )


def _read_bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"File {path!r} does not exist; check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"File {path!r} cannot be read: {reason}.") from None
