"""A task: everything that a result depends on, as bytes. Computing it looks nothing up."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from threading import Lock
from typing import Any, Final, TypeVar

from cachetools import LRUCache, cached

from domino_tune.requests import SimulateRequest, TuneRequest, WhatIfRequest, WorkloadFields
from domino_tune.service.encoding import json_bytes, json_text, sha256_hex
from domino_tune.store.formats.model_file import model_from_json
from domino_tune.store.models import LoadedModel
from domino_tune.store.plans import PlanFile, plan_from_json
from domino_tune.store.profiles import dump_profile, parse_profile
from domino_tune.store.shelf import Pinned, Shelf
from domino_tune.verbs.layouts import base_of
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.scale import scale_base
from simulator.case import Case
from simulator.errors import unknown_name
from simulator.profile import Profile

Asked = TypeVar("Asked", bound=WorkloadFields)
TEXTS_BYTES: Final = 16 << 20
"""Total size of the profile texts that are cached."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A request with the profile, the model (before overrides) and the plan file that it names."""

    kind: str
    request: WorkloadFields
    profile: Profile
    model: LoadedModel
    plan_file: PlanFile | None = None

    @classmethod
    def of(
        cls,
        kind: str,
        request: WorkloadFields,
        shelf: Shelf,
        plan_file: PlanFile | None = None,
    ) -> Task:
        """Look up what ``request`` names. Raise InputError if something is unknown, missing or
        inconsistent.
        """
        if kind not in ASKED:
            raise unknown_name("kind of task", kind, ASKED)
        case = ASKED[kind].case(request, plan_file, shelf)
        model = LoadedModel(spec=case.model)
        if request.model is not None:
            model = shelf.model(request.model)
        return cls(
            kind=kind, request=request, profile=case.profile, model=model, plan_file=plan_file
        )

    @property
    def shelf(self) -> Shelf:
        """Return the shelf on which the request's names are the task's profile and model."""
        return Pinned(profile=self.profile, model=self.model)

    def to_bytes(self) -> bytes:
        """Return canonical JSON: equal tasks have equal bytes."""
        members = {
            "kind": json_text(self.kind),
            "request": json_text(asdict(self.request)),
            "model": json_text(asdict(self.model.spec)),
            "model_notes": json_text(self.model.notes),
            "profile": profile_text(self.profile),
            "plan_file": json_text(self.plan_file.to_json() if self.plan_file else None),
        }
        body = ",".join(f'"{name}":{text}' for name, text in members.items())
        return f"{{{body}}}".encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Task:
        """Return the task that ``to_bytes`` wrote."""
        return cls.from_json(json.loads(data))

    @classmethod
    def from_json(cls, parsed: Mapping[str, Any]) -> Task:
        """Return the task in the JSON of ``to_bytes``."""
        plan_file = parsed["plan_file"]
        return cls(
            kind=parsed["kind"],
            request=request_of(ASKED[parsed["kind"]].request, parsed["request"]),
            profile=profile_of(json_bytes(parsed["profile"])),
            model=LoadedModel(
                spec=model_from_json(parsed["model"], source="The task's model"),
                notes=tuple(parsed["model_notes"]),
            ),
            plan_file=plan_from_json(plan_file, source="The task's plan") if plan_file else None,
        )


@dataclass(frozen=True, kw_only=True)
class Ask:
    """The request of a kind of task, and the function that resolves it to a case, which raises
    InputError if something is unknown, missing or inconsistent.
    """

    request: type[WorkloadFields]
    case: Callable[[Any, PlanFile | None, Shelf], Case] = resolve


ASKED: Final[Mapping[str, Ask]] = {
    "tune": Ask(request=TuneRequest),
    "layout": Ask(request=TuneRequest, case=lambda asked, _, shelf: base_of(asked, shelf)),
    "scale": Ask(request=TuneRequest, case=lambda asked, _, shelf: scale_base(asked, shelf)),
    "sweep": Ask(request=WhatIfRequest),
    "simulate": Ask(request=SimulateRequest),
    "whatif": Ask(request=WhatIfRequest),
}
"""Kinds of tasks that correspond to a verb of the command line. The case of a search of layouts is
the one that the layouts divide.
"""


def request_of(kind: type[Asked], parsed: Mapping[str, Any]) -> Asked:
    """Return the request in a task."""
    given = {item.name: parsed[item.name] for item in fields(kind)}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return kind(**values)


@cached(LRUCache(TEXTS_BYTES, len), key=lambda profile: profile.content_id, lock=Lock())
def profile_text(profile: Profile) -> str:
    """Return the profile's JSON. Cache it: writing a large one holds up other threads for a second,
    and every task on the profile needs it.
    """
    return json_text(json.loads(dump_profile(profile)))


@cached(LRUCache(maxsize=4), key=sha256_hex, lock=Lock())
def profile_of(data: bytes) -> Profile:
    """Return the profile in a task.

    Cache a few: many tasks share one profile, and checking a profile takes a while.
    """
    return parse_profile(data, source="The task's profile")
