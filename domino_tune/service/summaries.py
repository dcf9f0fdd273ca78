"""Summaries of stored profiles, as the database holds them beside the profiles."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from domino_tune.service.encoding import json_text
from domino_tune.store.profiles import ProfileSummary, check_schema
from simulator.errors import ProfileError
from simulator.profile import SCHEMA


def dump_summary(summary: ProfileSummary) -> str:
    """Return the text of a profile that this program has written."""
    return json_text({"schema": SCHEMA, **asdict(summary)})


def load_summary(text: str) -> ProfileSummary:
    """Return the summary; ``problem`` of a profile that another version of the program has written,
    and this one cannot read."""
    plain = json.loads(text)
    schema = plain.pop("schema")
    summary = ProfileSummary(**plain)
    try:
        check_schema(schema, f"profile {summary.content_id}")
    except ProfileError as error:
        return replace(summary, gpu="", created="", sections={}, problem=str(error))
    return summary
