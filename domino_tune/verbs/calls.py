"""The verbs as Python functions, whose keyword arguments are the fields of their requests.

A request checks its fields, here as on the command line. In place of a name, verbs that run nothing
on ranks also accept an object that is already loaded: a ModelSpec, a Profile, a PlanFile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast, overload

from domino_tune.base.progress import Progress, no_progress
from domino_tune.requests import (
    CalibrateRequest,
    LayoutRequest,
    MeasureRequest,
    ProfileRequest,
    ScaleRequest,
    SimulateRequest,
    TuneRequest,
    ValidateRequest,
    WhatIfRequest,
)
from domino_tune.requests.options import Request, option_of
from domino_tune.requests.problems import in_wire_words
from domino_tune.results.layouts import LayoutsResult, ScaleResult
from domino_tune.results.measured import MeasuredTuneResult, ValidateResult
from domino_tune.results.profile import CalibrateResult, ProfilingResult
from domino_tune.results.simulate import SimulateResult
from domino_tune.results.tune import TuneResult
from domino_tune.results.whatif import WhatIfResult
from domino_tune.store.plans import PlanFile
from domino_tune.store.profiles import load_profile
from domino_tune.store.shelf import LoadedModel, load_model, override
from simulator.errors import DominoTuneError, InputError, unknown_name
from simulator.profile import Profile
from simulator.specs import ModelSpec

P = ParamSpec("P")
R = TypeVar("R", bound=Request)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
LOADED: Final[Mapping[str, type[Any]]] = {"model": ModelSpec, "profile": Profile, "plan": PlanFile}
"""Field -> object that it accepts in place of a name or a path, if nothing is run on ranks."""


class Verb(Protocol[P, T_co]):
    """A verb as a function: its keyword arguments are its request's fields, and ``progress``.

    Type checkers know the fields. If an argument is an object, a Path or ``progress``, they check
    only that one.
    """

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...

    @overload
    def __call__(self, *, progress: Progress, **fields: Any) -> T_co: ...

    @overload
    def __call__(self, *, model: ModelSpec | Path, **fields: Any) -> T_co: ...

    @overload
    def __call__(self, *, profile: Profile | Path, **fields: Any) -> T_co: ...

    @overload
    def __call__(self, *, plan: PlanFile | Path | Sequence[str | Path], **fields: Any) -> T_co: ...


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The objects of a call by field, and a shelf that returns them for every name."""

    objects: Mapping[str, Any]

    def profile(self, name: str) -> Profile:
        """Return the profile of the call, else see ``store.profiles.load_profile``."""
        given: Profile | None = self.objects.get("profile")
        return given or load_profile(name)

    def model(self, name: str, overrides: Iterable[str] = ()) -> LoadedModel:
        """Return the model of the call, else see ``store.shelf.load_model``."""
        given: ModelSpec | None = self.objects.get("model")
        if given is None:
            return load_model(name, overrides)
        return LoadedModel(spec=override(given, overrides))

    @property
    def plan_file(self) -> PlanFile | None:
        """The plan of the call."""
        return self.objects.get("plan")

    def refuse(self, what: str) -> None:
        """Raise InputError if the call has objects: ``what`` needs names and files."""
        if self.objects:
            names = " and ".join(self.objects)
            raise InputError(
                f"{what} goes on from files: give {names} by name or path, not as an object "
                "(`save_plan` writes a plan)."
            )


def _verb(kind: Callable[P, R], run: Callable[[R, Loaded, Progress], T]) -> Verb[P, T]:
    """Return the function that builds a request from its arguments and runs the verb."""
    request_class, name = cast("type[R]", kind), run.__name__.strip("_")

    def call(*, progress: Progress | None = None, **given: Any) -> T:
        try:
            request, loaded = _request(request_class, name, given)
            return run(request, loaded, progress or no_progress)
        except DominoTuneError as error:
            error.args = tuple(
                in_wire_words(part) if isinstance(part, str) else part for part in error.args
            )
            raise

    call.__name__ = call.__qualname__ = name
    call.__module__ = "domino_tune"
    helps = [
        f"{name}: {option_of(request_class, name).help}" for name in request_class.model_fields
    ]
    call.__doc__ = "\n\n".join([inspect.getdoc(request_class) or "", "\n".join(helps)])
    call.__signature__ = _signature(request_class)  # type: ignore[attr-defined]
    return cast("Verb[P, T]", call)


def _signature(kind: type[Request]) -> inspect.Signature:
    """Return the signature that editors and notebooks show."""
    fields = {
        name: (inspect.Parameter.empty if item.is_required() else item.default, item.annotation)
        for name, item in kind.model_fields.items()
    }
    return inspect.Signature(
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for name, (default, annotation) in (
                *fields.items(),
                ("progress", (None, Progress | None)),
            )
        ]
    )


def _request(kind: type[R], name: str, given: Mapping[str, Any]) -> tuple[R, Loaded]:
    """Return the request of a call and its objects.

    Raise TypeError for an unknown argument, InputError for an invalid value.
    """
    known = [*kind.model_fields, "progress"]
    for key in given:
        if key not in known:
            raise TypeError(f"{name}(): {unknown_name('argument', key, known)}")
    objects = {
        key: value
        for key, value in given.items()
        if key in LOADED and isinstance(value, LOADED[key])
    }
    values = {
        key: getattr(value, "name", None) if key in objects else value
        for key, value in given.items()
    }
    return kind(**values), Loaded(objects=objects)


def _simulate(request: SimulateRequest, loaded: Loaded, progress: Progress) -> SimulateResult:
    from domino_tune.verbs import simulate as simulate_verb

    return simulate_verb.simulate(request, plan_file=loaded.plan_file, shelf=loaded)


def _tune(request: TuneRequest, loaded: Loaded, progress: Progress) -> TuneResult:
    from domino_tune.verbs import tune as tune_verb

    return tune_verb.tune(request, progress, shelf=loaded)


def _layout(request: LayoutRequest, loaded: Loaded, progress: Progress) -> LayoutsResult:
    from domino_tune.verbs import layouts as layouts_verb

    return layouts_verb.tune_layouts(request, progress, shelf=loaded)


def _scale(request: ScaleRequest, loaded: Loaded, progress: Progress) -> ScaleResult:
    from domino_tune.verbs import scale as scale_verb

    return scale_verb.tune_scale(request, progress, shelf=loaded)


def _tune_measured(
    request: MeasureRequest, loaded: Loaded, progress: Progress
) -> MeasuredTuneResult:
    from domino_tune.verbs import tune_measured as measure_verb

    loaded.refuse("tune_measured")
    return measure_verb.tune_measured(request, progress)


def _whatif(request: WhatIfRequest, loaded: Loaded, progress: Progress) -> WhatIfResult:
    from domino_tune.verbs import whatif as whatif_verb

    return whatif_verb.whatif(request, progress, plan_file=loaded.plan_file, shelf=loaded)


def _validate(request: ValidateRequest, loaded: Loaded, progress: Progress) -> ValidateResult:
    from domino_tune.verbs import validate as validate_verb

    loaded.refuse("validate")
    result = validate_verb.validate(request, progress)
    try:
        validate_verb.check_result(result)
    except BaseException as error:
        error.add_note(str(result))  # so that the measurement is not lost
        raise
    return result


def _profile(request: ProfileRequest, loaded: Loaded, progress: Progress) -> ProfilingResult:
    from domino_tune.verbs import profile as profile_verb

    return profile_verb.profile(request, progress)


def _calibrate(request: CalibrateRequest, loaded: Loaded, progress: Progress) -> CalibrateResult:
    from domino_tune.verbs import calibrate as calibrate_verb

    return calibrate_verb.calibrate(request, progress, shelf=loaded)


simulate: Final = _verb(SimulateRequest, _simulate)
tune: Final = _verb(TuneRequest, _tune)
tune_measured: Final = _verb(MeasureRequest, _tune_measured)
layout: Final = _verb(LayoutRequest, _layout)
scale: Final = _verb(ScaleRequest, _scale)
whatif: Final = _verb(WhatIfRequest, _whatif)
validate: Final = _verb(ValidateRequest, _validate)
profile: Final = _verb(ProfileRequest, _profile)
calibrate: Final = _verb(CalibrateRequest, _calibrate)
