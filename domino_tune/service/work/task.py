"""A task: everything that a result depends on, as bytes. Computing it looks nothing up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, Final, TypeVar

from cachetools import LRUCache, cached

from domino_tune.requests.options import Request
from domino_tune.service.encoding import json_bytes, sha256_hex
from domino_tune.store.plans import PlanFile, plan_from_json
from domino_tune.store.profiles import parse_profile
from domino_tune.store.shelf import LoadedModel, Shelf, model_from_json
from simulator.errors import DominoTuneError
from simulator.profile import Profile

Asked = TypeVar("Asked", bound=Request)
END: Final = b"\n"
"""What stands between a task's JSON, which has no line breaks, and its profile's file."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A request as plain JSON with what it names: the file of its ``profile`` (empty: it names
    none), its ``models`` before overrides, and its ``plan`` file, not read yet."""

    kind: str
    request: Mapping[str, Any]
    profile: bytes = field(default=b"", repr=False)
    models: Mapping[str, LoadedModel] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None

    def to_bytes(self) -> bytes:
        """Return bytes that are equal for equal tasks."""
        models = {
            name: {"spec": asdict(one.spec), "notes": one.notes}
            for name, one in sorted(self.models.items())
        }
        head = {"kind": self.kind, "request": self.request, "models": models, "plan": self.plan}
        return json_bytes(head) + END + self.profile

    @classmethod
    def from_bytes(cls, data: bytes) -> Task:
        """Return the task that ``to_bytes`` wrote."""
        head, _, profile = data.partition(END)
        parsed = json.loads(head)
        models = {
            name: LoadedModel(
                spec=model_from_json(one["spec"], source="The task's model"),
                notes=tuple(one["notes"]),
            )
            for name, one in parsed["models"].items()
        }
        return cls(
            kind=parsed["kind"], request=parsed["request"], profile=profile, models=models,
            plan=parsed["plan"],
        )  # fmt: skip

    def asked(self, kind: type[Asked]) -> Asked:
        """Return the request."""
        return kind(**self.request)

    @property
    def shelf(self) -> Shelf:
        """Return the shelf on which every profile is the task's, and its models are by name."""
        return Shelf(lambda _: profile_of(self.profile), self.models.__getitem__)

    @cached_property
    def plan_file(self) -> PlanFile | None:
        """Return the plan file. Raise PlanFileError, placed in the request, where it is bad."""
        try:
            return None if self.plan is None else plan_from_json(self.plan, source="plan")
        except DominoTuneError as error:
            raise error.at("plan", *(error.place or ())) from None


@cached(LRUCache(maxsize=4), key=sha256_hex, lock=Lock())
def profile_of(data: bytes) -> Profile:
    """Return the profile in a file.

    Keep a few: many tasks share one profile, and checking a profile takes a while.
    """
    return parse_profile(data, source="The task's profile")
