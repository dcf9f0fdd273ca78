"""What a server answered: its JSON, or the error that its problem stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from domino_tune.base.errors import MEANINGS, AccessError, NotFoundError, ServiceError
from domino_tune.store.files import parse_json
from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError

MOST_RETRY_AFTER_S: Final = 60.0
AGAIN: Final = (429, 502, 503, 504)
"""Answers after which the same may succeed a little later."""
DETAIL_CHARACTERS: Final = 2000
KINDS: Final = {
    meaning.title.lower().replace(" ", "-"): kind
    for kind, meaning in reversed(MEANINGS.items())
    if issubclass(kind, DominoTuneError)
}
"""Last word of a problem's type -> its class; of several with one title the first in MEANINGS."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A response. ``headers`` have names in lower case."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> dict[str, Any]:
        """Its object; raises ServiceError where it is none, an error's own class for a problem."""
        self.check()
        return parse_json(self.body, source="The server's answer", error=ServiceError)

    def content(self) -> bytes:
        """Its body as it is; raises as ``json`` does."""
        self.check()
        return self.body

    def check(self) -> None:
        """Raise the error that it stands for, if it does."""
        if not 200 <= self.status < 300:
            raise self.error()

    def error(self) -> DominoTuneError:
        """The error that it stands for."""
        if "problem+json" not in self.headers.get("content-type", ""):
            return _unknown(self.status, f"The server answered {self.status} without a reason.")
        try:
            problem = parse_json(self.body, source="The server's problem", error=ServiceError)
        except ServiceError as error:
            return error
        return error_of(problem)

    @property
    def retry_after_s(self) -> float | None:
        """How long the server wants to be left alone, at most a minute; None: it does not say."""
        text = self.headers.get("retry-after", "")
        return min(float(text), MOST_RETRY_AFTER_S) if re.fullmatch(r"\d{1,9}", text) else None


def error_of(problem: Mapping[str, Any]) -> DominoTuneError:
    """A problem (RFC 9457), of an answer or of a job that failed, as the class raised locally."""
    status = problem.get("status")
    kind = KINDS.get(str(problem.get("type", "")).rpartition(":")[2])
    text = _text(problem)
    if kind is InfeasiblePlanError:
        return InfeasiblePlanError(text, reason=str(problem.get("reason", "")))
    return kind(text) if kind else _unknown(status if isinstance(status, int) else 500, text)


def _unknown(status: int, text: str) -> DominoTuneError:
    """The error of a status alone."""
    if status in (401, 403):
        return AccessError(f"{text} Give a token by --token-file or $DOMINO_TUNE_TOKEN.")
    if status == 404:
        return NotFoundError(text)
    return InputError(text) if 400 <= status < 500 and status not in AGAIN else ServiceError(text)


def _text(problem: Mapping[str, Any]) -> str:
    """Its detail, and where in the body something is wrong, as far as the detail does not say."""
    detail = str(problem.get("detail") or problem.get("title") or "The server refused.")
    faults = problem.get("errors")
    places = [
        f"{one.get('pointer') or one.get('parameter')}: {one.get('detail')}"
        for one in (faults if isinstance(faults, list) else [])
        if isinstance(one, dict) and one.get("detail") != detail
    ]
    text = f"{detail} ({'; '.join(places)})" if places else detail
    return text[:DETAIL_CHARACTERS]
