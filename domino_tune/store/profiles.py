"""Profiles on disk: read, write, list and compare them; the error of their look-ups."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from domino_tune.base.units import rounded
from domino_tune.store.files import (
    bundled_bytes,
    bundled_names,
    make_folder,
    parse_json,
    read_json,
    user_names,
    user_profiles_dir,
    write_whole,
)
from domino_tune.store.parsing import parse
from simulator.errors import ProfileError, unknown_name
from simulator.lookup.attention import AttentionFit, AttentionRow, AttentionTable
from simulator.lookup.collectives import CollectiveRow, CollectiveTable
from simulator.lookup.pointwise import PointwiseFit, PointwiseRow, PointwiseTable
from simulator.profile import SCHEMA, SECTIONS, Profile, to_plain

# The error of a profile's look-ups ----------------------------------------------------------------
# Leave out each section's rows and look them up again.

MOST_ROWS: Final = 300  # rows to leave out one by one, picked evenly
LEFT_OUT: Final = "rows left out and looked up"


@dataclass(frozen=True, kw_only=True)
class SectionCheck:
    """One line of ``profiles check``.

    ``error`` is relative, None where it is unknown; ``how`` says how it was found.
    """

    section: str
    kind: str
    rows: int
    fits: int
    error: float | None
    how: str
    source: str


def check_profile(profile: Profile) -> list[SectionCheck]:
    """Return each section's leave-out error: of its rows where they suffice, else its fit's own."""
    return [check_section(profile, name) for name in SECTIONS if getattr(profile, name) is not None]


def check_section(profile: Profile, name: str) -> SectionCheck:
    """Return the check of one section, which the profile must have."""
    section = getattr(profile, name)
    rows = getattr(section, "rows", ())
    error, how = section.provenance.error, "as its provenance says"
    if rows:
        left_out = _LOOK_UPS[name](profile)
        if not math.isnan(left_out):
            error, how = rounded(left_out), LEFT_OUT
    return SectionCheck(
        section=name,
        kind=section.provenance.kind,
        rows=len(rows),
        fits=fits_of(section),
        error=error,
        how=how,
        source=section.provenance.source,
    )


def fits_of(section: Any) -> int:
    """Return the number of a section's fits; one that can have a single one may have none."""
    return len(getattr(section, "fits", ())) or int(getattr(section, "fit", None) is not None)


def _gemm(profile: Profile) -> float:
    table, section = profile.gemm_table(), profile.section("gemm")
    families = sorted({(row.layout, row.dtype) for row in section.rows})
    errors = [table.leave_out_error(layout, dtype) for layout, dtype in families]
    return max(errors)


def _attention(profile: Profile) -> float:
    section = profile.section("attention")
    fit: AttentionFit | None = section.fit

    def look_up(others: Sequence[AttentionRow], row: AttentionRow) -> float:
        return AttentionTable(others, fit).estimate(row.signature).duration_us

    return _leave_out(section.rows, look_up)


def _pointwise(profile: Profile) -> float:
    section = profile.section("pointwise")
    fits: tuple[PointwiseFit, ...] = section.fits
    errors = []
    for name, group in itertools.groupby(section.rows, key=lambda row: row.name):
        rows = [row for row in group if row.bytes_written]  # others do nothing
        laws = [fit for fit in fits if name in fit.names]

        def look_up(
            others: Sequence[PointwiseRow], row: PointwiseRow, laws: Sequence[PointwiseFit] = laws
        ) -> float:
            return PointwiseTable(others, laws).estimate(row.signature).duration_us

        errors.append((_leave_out(rows, look_up), len(rows)))
    return _weighted(errors)


def _collectives(profile: Profile) -> float:
    return collective_error(profile.section("collectives").rows)


def collective_error(rows: Sequence[CollectiveRow]) -> float:
    """Return the mean leave-one-out error of collective rows, without the ends of each group."""
    errors = []
    for _, group in itertools.groupby(rows, key=lambda row: row.group):
        line = list(group)
        for index in range(1, len(line) - 1):
            row = line[index]
            table = CollectiveTable(line[:index] + line[index + 1 :])
            errors.append(abs(table.estimate(row.signature).duration_us / row.median_us - 1))
    return sum(errors) / len(errors) if errors else math.nan


def _leave_out(rows: Sequence[Any], look_up: Callable[[Sequence[Any], Any], float]) -> float:
    """Return the mean error of up to MOST_ROWS rows, each looked up in a table of all others."""
    if len(rows) < 3:
        return math.nan
    stride = -(-len(rows) // MOST_ROWS)
    errors: list[float] = [
        abs(look_up((*rows[:index], *rows[index + 1 :]), rows[index]) / rows[index].median_us - 1)
        for index in range(0, len(rows), stride)
    ]
    return sum(errors) / len(errors)


def _weighted(errors: Sequence[tuple[float, int]]) -> float:
    known = [(error, count) for error, count in errors if not math.isnan(error)]
    total = sum(count for _, count in known)
    return sum(error * count for error, count in known) / total if total else math.nan


_LOOK_UPS: Final[dict[str, Callable[[Profile], float]]] = {
    "gemm": _gemm,
    "attention": _attention,
    "pointwise": _pointwise,
    "collectives": _collectives,
}


@dataclass(frozen=True, kw_only=True)
class ProfileSummary:
    """One line of ``profiles list``; ``sections`` maps each section to its provenance kind.

    ``problem``: why the file cannot be read; gpu, created, content_id and sections are then empty.
    """

    name: str
    origin: str
    gpu: str
    created: str
    content_id: str
    sections: dict[str, str]
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class FiledProfile:
    """A profile that was checked, as a library keeps it; ``body`` is its file."""

    body: bytes
    summary: ProfileSummary


def load_profile(name_or_path: str | Path) -> Profile:
    """Return a bundled profile, one of the user's, or the profile in a file.

    A user's profile hides a bundled one of the same name. Raise InputError for an unknown name,
    ProfileError for a file that is not a whole, unchanged profile.
    """
    text = str(name_or_path)
    path = Path(text)
    if isinstance(name_or_path, Path) or text.endswith(".json") or os.sep in text:
        return _read(path)
    user = user_profiles_dir() / f"{text}.json"
    if user.is_file():
        return _read(user)
    known = bundled_names()
    if text in known:
        return _bundled(text)
    raise unknown_name("profile", text, {*known, *user_names()})


@cache
def _bundled(name: str) -> Profile:
    """Return a bundled profile; its file does not change while a process runs."""
    return parse_profile(bundled_bytes(name), source=f"bundled profile {name!r}")


def parse_profile(data: bytes, *, source: str) -> Profile:
    """Return the profile of a file's bytes. Raise ProfileError with the place and the reason."""
    return _validated(parse_json(data, source=source, error=ProfileError), source)


def filed(profile: Profile) -> FiledProfile:
    """Return the profile as a library keeps it."""
    return FiledProfile(body=dump_profile(profile), summary=summary_of(profile, "library"))


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write the profile whole or not at all. Raise InputError where ``path`` is not writable.

    Make the folder of the user's profiles where it is missing, but no other folder.
    """
    folder = Path(path).parent
    if folder == user_profiles_dir():
        make_folder(folder, "choose another home with $DOMINO_TUNE_HOME")
    write_whole(path, dump_profile(profile))


def dump_profile(profile: Profile) -> bytes:
    """Return the file's bytes: checksum first, then the profile, one line a row."""
    content = {"checksum": profile.content_id, **to_plain(profile)}
    return (_indented(content, 0) + "\n").encode()


def list_profiles() -> list[ProfileSummary]:
    """Return bundled profiles and the user's by name; a user's hides a bundled one."""
    names = dict.fromkeys(bundled_names(), "bundled")
    names |= dict.fromkeys(user_names(), "user")
    return [_summary(name, names[name]) for name in sorted(names)]


def diff_profiles(a: Profile, b: Profile) -> list[tuple[str, str, str]]:
    """Return (place, value in a, value in b) of every difference; empty where the ids are equal."""
    found: list[tuple[str, str, str]] = []
    _diff("", to_plain(a), to_plain(b), found)
    return found


def _read(path: Path) -> Profile:
    return _validated(read_json(path, what="profile", error=ProfileError), f"profile {str(path)!r}")


def _validated(content: dict[str, Any], source: str) -> Profile:
    checksum = content.pop("checksum", None)
    if isinstance(schema := content.get("schema"), int):
        check_schema(schema, source)
    profile = parse(Profile, content, source=source, error=ProfileError)
    if checksum != profile.content_id:
        raise ProfileError(
            f"{source}: checksum is {checksum!r}, the content's is {profile.content_id!r}; the "
            f"file was changed by hand or damaged. Write profiles with `profiles import`."
        ).at("checksum")
    return profile


def check_schema(schema: int, source: str) -> None:
    """Raise ProfileError for a schema of profiles that this program does not read."""
    if schema > SCHEMA:
        raise ProfileError(
            f"{source}: schema {schema} is newer than {SCHEMA}, the newest this program reads; "
            f"upgrade domino_tune."
        ).at("schema")
    if schema < SCHEMA:
        raise ProfileError(
            f"{source}: schema {schema} is older than {SCHEMA}, the only one this program reads; "
            "measure the profile again, or import its tables again."
        ).at("schema")


def _indented(value: Any, depth: int) -> str:
    """Return JSON with two-space indents; lists of rows one row a line, other lists on one line."""
    pad, deeper = "  " * depth, "  " * (depth + 1)
    if isinstance(value, dict) and value:
        items = [f"{json.dumps(k)}: {_indented(v, depth + 1)}" for k, v in value.items()]
        flat = "{" + ", ".join(items) + "}"
        if depth >= 2 and "\n" not in flat and len(flat) < 96:
            return flat
        return "{\n" + ",\n".join(deeper + item for item in items) + f"\n{pad}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        lines = [deeper + json.dumps(item, ensure_ascii=False) for item in value]
        return "[\n" + ",\n".join(lines) + f"\n{pad}]"
    return json.dumps(value, ensure_ascii=False)


def _summary(name: str, origin: str) -> ProfileSummary:
    try:
        profile = load_profile(name)
    except ProfileError as error:
        return ProfileSummary(
            name=name, origin=origin, gpu="", created="", content_id="", sections={},
            problem=str(error),
        )  # fmt: skip
    return summary_of(profile, origin)


def summary_of(profile: Profile, origin: str) -> ProfileSummary:
    """Return the profile's line in a list; ``origin`` says where the profile is stored."""
    sections = {
        name: section.provenance.kind
        for name in SECTIONS
        if (section := getattr(profile, name)) is not None
    }
    return ProfileSummary(
        name=profile.name,
        origin=origin,
        gpu=profile.machine.gpu,
        created=profile.created,
        content_id=profile.content_id,
        sections=sections,
    )


def _diff(place: str, a: Any, b: Any, found: list[tuple[str, str, str]]) -> None:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            where = f"{place}.{key}" if place else key
            _diff(where, a.get(key), b.get(key), found)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            _diff(f"{place}[{index}]", left, right, found)
    elif a != b:
        found.append((place, _short(a), _short(b)))


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} entries"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
