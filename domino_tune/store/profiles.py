"""Profiles on disk: read, write, list and compare them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
from domino_tune.store.parsing import adapter, parse
from domino_tune.store.profile_check import SectionCheck, check_profile
from simulator.errors import ProfileError, unknown_name
from simulator.profile import SCHEMA, SECTIONS, Profile, to_plain

__all__ = [
    "FiledProfile",
    "ProfileSummary",
    "SectionCheck",
    "bundled_bytes",
    "bundled_names",
    "check_profile",
    "diff_profiles",
    "dump_profile",
    "filed",
    "json_schema",
    "list_profiles",
    "load_profile",
    "parse_profile",
    "save_profile",
    "user_profiles_dir",
]


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

    name: str
    content_id: str
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
    return FiledProfile(
        name=profile.name, content_id=profile.content_id, body=dump_profile(profile),
        summary=summary_of(profile, "library"),
    )  # fmt: skip


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


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a profile file."""
    whole = adapter(Profile).json_schema()
    definitions = whole["$defs"]
    schema: dict[str, Any] = definitions.pop("Profile")
    schema["properties"] = {
        "checksum": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
        **schema["properties"],
    }
    schema["properties"]["schema"] = {"const": SCHEMA}
    schema["required"] = sorted({"checksum", "schema", *schema["required"]})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "domino_tune profile",
        "$defs": definitions,
    }


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
