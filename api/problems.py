"""Errors on the wire: application/problem+json (RFC 9457), each fault with its JSON pointer.

Of what was sent, answers repeat only names of keys: values may be secret, huge or not JSON.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from domino_tune.requests.problems import fields_named, plain_problem, type_of
from simulator.errors import DominoTuneError

MEDIA_TYPE: Final = "application/problem+json"
MOST_FAULTS: Final = 20
LONGEST_NAME: Final = 100
"""Most characters of a key in a pointer."""
SLUG: Final = r"^[a-z0-9](\.?[a-z0-9_-])*\.?$"
"""Names of profiles and models: without a separator or two dots in a row, so never a path."""
JOB_ID: Final = r"^job_[0-9a-f]{32}$"
MOMENT: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)$"
VISIBLE: Final = r"^[!-~]+$"
WANTED: Final = {
    SLUG: "Use small letters, digits, dots, dashes and underscores; begin with a letter or digit.",
    JOB_ID: "An id of a job is job_ and 32 digits or letters from a to f.",
    MOMENT: "Write a time with its zone, like 2026-01-31T12:00:00Z.",
    VISIBLE: "Use letters, digits and signs of ASCII, without blanks.",
}
"""Pattern -> what to say where a text does not match it."""
_PHRASES: Final = {413: "Content Too Large", 422: "Unprocessable Content"}
"""Phrases of RFC 9110 where Python's standard library has older ones."""


class Fault(BaseModel):
    """One thing that is wrong: ``pointer`` into the body, or ``parameter`` of path, query or
    headers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    detail: str
    pointer: str | None = None
    parameter: str | None = None


class Problem(BaseModel):
    """Why a request, or a job, failed. ``errors`` says where, as far as that is known;
    ``reason`` is a slug to tell infeasible plans apart by, ``change`` the fields of the request to
    change so that some plan can run."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    title: str
    status: int
    detail: str
    type: str = Field(
        default_factory=lambda known: type_of(known["title"]),
        description="A place in this server's docs that says what it means and what to do.",
    )
    instance: str | None = None
    reason: str | None = None
    change: dict[str, Any] | None = None
    errors: list[Fault] = []

    def to_json(self) -> bytes:
        """Return the bytes on the wire."""
        return self.model_dump_json(exclude_none=True).encode()


class ProblemError(Exception):
    """An error of the wire itself, which becomes a Problem. Any layer may raise it."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        faults: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.faults = list(faults)
        self.headers = dict(headers or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it whole: the process that reads an upload may refuse it."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def problem(self) -> Problem:
        """Return the problem for the caller."""
        return Problem(
            title=phrase(self.status), status=self.status, detail=self.detail, errors=self.faults
        )


def phrase(status: int) -> str:
    """Return the phrase of a status code."""
    return _PHRASES.get(status) or HTTPStatus(status).phrase


def pointer(parts: Iterable[str | int]) -> str:
    """Return a JSON pointer (RFC 6901) as a URI fragment; ``#`` is the whole body."""
    escaped = (
        str(part)[:LONGEST_NAME].replace("~", "~0").replace("/", "~1") for part in parts
    )  # fmt: skip
    text = "".join(f"/{part}" for part in escaped)
    return "#" + quote(text, safe="/~!$&'()*+,;=:@?", errors="replace")


def bad_body(
    detail: str, faults: Sequence[Fault] = (), *, status: int = 422, place: Iterable[str | int] = ()
) -> ProblemError:
    """Return the error of a refused body, at ``faults`` or at ``place``."""
    found = list(faults)[:MOST_FAULTS] or [Fault(pointer=pointer(place), detail=detail)]
    return ProblemError(status, detail, faults=found)


def problem_of(error: DominoTuneError) -> Problem:
    """Return an error of domino_tune as a problem, with pointers to its place in the body, or to
    the fields that it names, or to those that it says to change."""
    plain = plain_problem(error)
    faults = []
    if plain["status"] == 422:
        names = fields_named(str(error)) or plain.get("change", ())
        named: list[tuple[str | int, ...]] = [(name,) for name in names]
        places = [error.place] if error.place is not None else named or [()]
        faults = [
            Fault(pointer=pointer(place), detail=plain["detail"]) for place in places[:MOST_FAULTS]
        ]
    return Problem(**plain, errors=faults)


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a problem."""
    return Response(
        problem.to_json(),
        status_code=problem.status,
        headers=dict(headers or {}),
        media_type=MEDIA_TYPE,
    )
