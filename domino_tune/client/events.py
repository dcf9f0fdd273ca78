"""Server-sent events, as far as the service uses them: lines in, JSON objects out."""

from __future__ import annotations

import json

from domino_tune.client.answers import Json


class EventReader:
    """Collects the ``data`` lines of an event until it is complete (WHATWG HTML, 9.2.6)."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def line(self, text: str) -> Json | None:
        """Take a line without its end. Return the JSON object of the event that it completes.

        Return None where it completes none, or one whose data are no JSON object.
        """
        if text:
            field, _, value = text.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
            return None
        data, self._data = "\n".join(self._data), []
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event, dict) else None
