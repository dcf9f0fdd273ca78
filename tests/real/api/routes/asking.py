"""What several tests of routes ask."""

from __future__ import annotations

import json
from typing import Any

import httpx


def events(text: str) -> list[dict[str, str]]:
    """Fields of every event that has data."""
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        for block in text.split("\n\n")
    ]
    return [block for block in blocks if "data" in block]


def best_so_far(client: httpx.Client, place: str) -> Any:
    """The job at ``place`` as its events tell it, when there is a best and it still runs."""
    with client.stream("GET", f"{place}/events") as lines:
        for line in lines.iter_lines():
            if line.startswith("data: "):
                job = json.loads(line[6:])
                if job["state"] == "running" and job["best"] is not None:
                    return job
    raise AssertionError(f"{place} had no best while it ran")
