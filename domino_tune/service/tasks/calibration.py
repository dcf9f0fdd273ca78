"""Calibrations: a profile fitted to measured runs, in quanta of a few predictions each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from domino_tune.requests import SimulateRequest
from domino_tune.results.json_form import to_json
from domino_tune.search.calibration import MeasuredRun
from domino_tune.service.encoding import json_bytes, sha256_hex
from domino_tune.service.tasks.quantum import PausedError, Quantum, QuantumResult, StopReason
from domino_tune.service.tasks.task import profile_of, request_of
from domino_tune.store.formats.model_file import model_from_json
from domino_tune.store.models import LoadedModel, override
from domino_tune.store.profiles import dump_profile
from domino_tune.verbs.calibrate import AskedRun, calibrated, measured
from simulator.errors import InputError
from simulator.profile import Profile

TOLD: Final = "of a request"
"""Where the runs come from, in the profile's provenance."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationTask:
    """The runs, with the profile to start from and the models (before overrides) that they name."""

    name: str
    profile: Profile
    models: Mapping[str, LoadedModel]
    runs: tuple[AskedRun, ...]

    def to_bytes(self) -> bytes:
        """Return JSON: equal tasks have equal bytes."""
        models = {
            name: {"spec": asdict(one.spec), "notes": one.notes}
            for name, one in sorted(self.models.items())
        }
        return json_bytes(
            {
                "kind": "calibration", "name": self.name, "models": models,
                "profile": json.loads(dump_profile(self.profile)),
                "runs": [asdict(one) for one in self.runs],
            }
        )  # fmt: skip

    @classmethod
    def from_json(cls, parsed: Mapping[str, Any]) -> CalibrationTask:
        """Return the task in the JSON of ``to_bytes``."""
        models = {
            name: LoadedModel(
                spec=model_from_json(one["spec"], source="The task's model"),
                notes=tuple(one["notes"]),
            )
            for name, one in parsed["models"].items()
        }
        return cls(
            name=parsed["name"],
            profile=profile_of(json_bytes(parsed["profile"])),
            models=models,
            runs=tuple(_run(one) for one in parsed["runs"]),
        )

    @cached_property
    def measured(self) -> list[MeasuredRun]:
        """Return the runs as cases and plans. Raise InputError for one that cannot be predicted."""
        shelf = _Shelf(self.profile, self.models)
        return [measured(one, shelf) for one in self.runs]

    def advance(
        self, state: dict[str, Any], quantum: Quantum, stopped_by: StopReason | None
    ) -> QuantumResult:
        """Compute one quantum; ``state`` holds the times that are known. Raise InputError for runs
        that contradict each other, or take longer than a job may compute."""
        if stopped_by == "time":
            raise InputError(
                "These runs take longer to fit than a job may compute; give fewer of them, or "
                "shorter ones: fewer layers, or fewer micro-batches."
            )
        known: dict[str, float] = state.get("times", {})
        try:
            made, result = calibrated(
                self.profile, self.name, self.measured, TOLD, _Remembered(known, quantum)
            )
        except PausedError:
            return QuantumResult(
                done=len(known), text=f"{len(known):,} predictions of {len(self.runs)} runs",
                state=json_bytes({"times": known}),
            )  # fmt: skip
        answer = to_json(result)
        del answer["path"]
        return QuantumResult(
            done=len(known), total=len(known), text="done", left=0, result=json_bytes(answer),
            artifacts={"profile": dump_profile(made)},
        )  # fmt: skip


class _Remembered:
    """An Ahead that computes no item twice: ``known`` has the results so far, by item."""

    def __init__(self, known: dict[str, float], pause: Callable[[], None]) -> None:
        self._known = known
        self._pause = pause

    def __call__(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Callable[[], Result]]]:
        """Go through ``items`` in order."""
        for item in items:
            yield item, lambda item=item: self._result(function, item)  # type: ignore[misc]

    def _result(self, function: Callable[[Item], Any], item: Item) -> Any:
        key = sha256_hex(json_bytes(item))[:24]
        if key not in self._known:
            self._known[key] = function(item)
            self._pause()
        return self._known[key]


class _Shelf:
    """The task's profile for any name, and its models by name."""

    def __init__(self, profile: Profile, models: Mapping[str, LoadedModel]) -> None:
        self._profile = profile
        self._models = models

    def profile(self, name: str) -> Profile:
        """Return the profile."""
        return self._profile

    def model(self, name: str, overrides: Iterable[str] = ()) -> LoadedModel:
        """Return the model with the overrides. Raise InputError for a bad override."""
        found = self._models[name]
        return LoadedModel(spec=override(found.spec, overrides), notes=found.notes)


def _run(parsed: Mapping[str, Any]) -> AskedRun:
    request = request_of(SimulateRequest, parsed["request"])
    return AskedRun(label=parsed["label"], request=request, measured_ms=parsed["measured_ms"])
