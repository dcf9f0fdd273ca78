"""What uploads need of a child process: profiles are read strictly, and tables become profiles.

Reading a file of 16 MiB takes seconds and hundreds of MiB: a thread would hold up all others, and
Python would keep much of the memory.
"""

from __future__ import annotations

from typing import Any, Final

from api.body import MOST_PROFILE_VALUES, check_texts, count_values, read_json
from api.problems import bad_body
from domino_tune.measure.importers.imported import text_of
from domino_tune.requests import ProfilesImportRequest
from domino_tune.store.profiles import FiledProfile, filed, parse_profile
from domino_tune.verbs.profiles import imported_profile, replaced_rows
from simulator.lookup import LONGEST_NOTE

MOST_LINES: Final = 20_000
"""Most lines of a table, and rows of its section: every row is compared with all others."""
_BREAKS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Line breaks of str.splitlines, by which tables are parsed; CR LF counts as one."""


def read_profile(data: bytes) -> FiledProfile:
    """Return the profile in a body.

    Raise ProblemError: 400 if it is not JSON, 422 if it has too many values or too long texts;
    ProfileError if it is not a valid profile.
    """
    if count_values(data) > MOST_PROFILE_VALUES:
        raise bad_body(f"A profile may hold at most {MOST_PROFILE_VALUES:,} values; send fewer.")
    plain = read_json(data, len(data))
    if not isinstance(plain, dict):
        raise bad_body("The body must be a JSON object.")
    check_texts(plain, LONGEST_NOTE)
    return filed(parse_profile(data, source="profile"))


def imported(
    asked: ProfilesImportRequest, base_file: bytes, table: bytes
) -> tuple[FiledProfile, dict[str, Any]]:
    """Return the profile that an import makes of the one in ``base_file``, and what was imported.

    Raise ProblemError 422 for too many lines, and InputError.
    """
    text = text_of(table)
    if sum(map(text.count, _BREAKS)) - text.count("\r\n") > MOST_LINES:
        raise bad_body(f"A table may have {MOST_LINES:,} lines; split it.")
    base = parse_profile(base_file, source=f"profile {asked.into}")
    made, found = imported_profile(asked, base, table, most_rows=MOST_LINES)
    return filed(made), {
        "profile": {"name": made.name, "content_id": made.content_id},
        "section": found.section,
        "rows": len(found.rows),
        "replaced": replaced_rows(base, made, found),
        "note": found.note,
        "warnings": list(found.warnings),
    }
