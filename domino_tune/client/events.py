"""Server-sent events, as far as the service uses them: lines in, events out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event; ``data`` is its JSON, None where it is none."""

    name: str
    data: Any


@dataclass(kw_only=True)
class EventReader:
    """Collects lines until an event is whole (WHATWG HTML, 9.2.6, without its ``retry``)."""

    name: str = ""
    data: list[str] = field(default_factory=list)

    def line(self, text: str) -> Event | None:
        """Take a line without its end; the event that it completes, if it does."""
        if text:
            key, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if key == "event":
                self.name = value
            elif key == "data":
                self.data.append(value)
            return None
        name, data = self.name or "message", self.data
        self.name, self.data = "", []
        return Event(name=name, data=_json("\n".join(data))) if data else None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
