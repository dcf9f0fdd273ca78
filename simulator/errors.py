"""All errors that a user can cause, as one tree of classes.

Every message says three things: what was got, what is allowed, and how to fix it.
A bug of this program is an ``AssertionError``, never one of these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Self


class DominoTuneError(ValueError):
    """Base of every error that a user can cause; ``str(error)`` is written for that user.

    ``place``: keys and indices that lead to it in the JSON that was given, where they are known.
    """

    place: tuple[str | int, ...] | None = None

    def at(self, *place: str | int) -> Self:
        """Return this error with its place."""
        self.place = place
        return self


class InputError(DominoTuneError):
    """A value the user gave is unknown, malformed or out of range."""


class InfeasiblePlanError(DominoTuneError):
    """The plan cannot run this workload; ``reason`` is a short slug by which errors are counted.

    Reasons: ``rows``, ``hidden``, ``order``, ``memory``, ``comm_ctas``, ``target``, ``wgrad``.
    ``change``: the options, by name, of the smallest change with which some plan can; empty where
    none is known.
    """

    def __init__(
        self, message: str, *, reason: str, change: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.change = dict(change or {})

    def __reduce__(self) -> tuple[object, ...]:
        """Keep ``reason`` and ``change`` when a worker process pickles the error."""
        return partial(type(self), reason=self.reason, change=self.change), self.args


class ScheduleError(DominoTuneError):
    """An issue order breaks a dependency, or a value is read before it is written."""


class ProfileError(DominoTuneError):
    """A profile is malformed, tampered with, or of an unknown schema version."""


class MissingSectionError(ProfileError):
    """A profile lacks a section, row or law that a look-up needs."""


def unknown_name(kind: str, got: str, known: Iterable[str]) -> InputError:
    """Return the error for an unknown name of a ``kind``, with the nearest and all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(got, names, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"Unknown {kind} {got!r}.{hint} Known: {', '.join(names)}.")


MOST: Final = 10**12  # far above any real size, but products of sizes stay manageable


def require_positive_int(owner: str, name: str, value: object) -> None:
    """Raise InputError unless ``value`` is an int from 1 to MOST (bool is not an int here)."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        shown = "less" if isinstance(value, int) and value < -MOST else repr(value)
        raise InputError(f"{owner}.{name} must be a whole number ≥ 1, got {shown}.")
    if value > MOST:
        raise InputError(f"{owner}.{name} must be at most {MOST}, got more.")


def require_divisible(what: str, value: int, by_what: str, by: int) -> None:
    """Raise InputError, with the nearest multiples, unless ``by`` divides ``value``."""
    if value % by:
        below, above = value // by * by, (value // by + 1) * by
        nearest = f"{below} or {above}" if below else str(above)
        raise InputError(
            f"{what} = {value} is not divisible by {by_what} = {by}; nearest multiples: {nearest}."
        )
