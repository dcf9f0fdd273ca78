"""A task: all that a result hangs on, as bytes. Whoever computes it looks up nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from domino_tune.requests import SimulateRequest, TuneRequest, WhatIfRequest, WorkloadFields
from domino_tune.service.job import dump as dump_text
from domino_tune.service.lru_cache import Recent
from domino_tune.store.formats.model_file import model_from_json
from domino_tune.store.models import LoadedModel
from domino_tune.store.plans import PlanFile, plan_from_json
from domino_tune.store.profiles import dump_profile, parse_profile
from domino_tune.store.shelf import Pinned, Shelf
from domino_tune.verbs.resolve import resolve
from simulator.errors import unknown_name
from simulator.profile import Profile

REQUESTS: Final[dict[str, type[WorkloadFields]]] = {
    "tune": TuneRequest,
    "sweep": WhatIfRequest,
    "simulate": SimulateRequest,
    "whatif": WhatIfRequest,
}
"""What each kind of task asks."""
_PROFILES: Final[Recent[Profile]] = Recent(4)


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
        """Look up what ``request`` names. Raises InputError for what is unknown or missing, or does
        not fit together."""
        if kind not in REQUESTS:
            raise unknown_name("kind of task", kind, REQUESTS)
        case = resolve(request, plan_file, shelf)
        model = LoadedModel(spec=case.model)
        if request.model is not None:
            model = shelf.model(request.model)
        return cls(
            kind=kind, request=request, profile=case.profile, model=model, plan_file=plan_file
        )

    @property
    def shelf(self) -> Shelf:
        """Where the request's names lead to what was looked up."""
        return Pinned(profile=self.profile, model=self.model)

    def to_bytes(self) -> bytes:
        """Canonical JSON: equal tasks, equal bytes."""
        return dump(
            {
                "kind": self.kind,
                "request": asdict(self.request),
                "model": asdict(self.model.spec),
                "model_notes": self.model.notes,
                "profile": json.loads(dump_profile(self.profile)),
                "plan_file": self.plan_file.to_json() if self.plan_file else None,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Task:
        """The inverse of ``to_bytes``."""
        parsed = json.loads(data)
        plan_file = parsed["plan_file"]
        return cls(
            kind=parsed["kind"],
            request=_request(REQUESTS[parsed["kind"]], parsed["request"]),
            profile=_profile(parsed["profile"]),
            model=LoadedModel(
                spec=model_from_json(parsed["model"], source="The task's model"),
                notes=tuple(parsed["model_notes"]),
            ),
            plan_file=plan_from_json(plan_file, source="The task's plan") if plan_file else None,
        )


def dump(value: Any) -> bytes:
    """``job.dump`` as bytes."""
    return dump_text(value).encode()


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _request(kind: type[WorkloadFields], parsed: Mapping[str, Any]) -> WorkloadFields:
    given = {item.name: parsed[item.name] for item in fields(kind)}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return kind(**values)


def _profile(parsed: Mapping[str, Any]) -> Profile:
    """Kept: many tasks are about one machine, and checking a profile takes a while."""
    data = dump(parsed)
    return _PROFILES.get(digest(data), lambda: parse_profile(data, source="The task's profile"))
