"""The verbs as Python functions, whose keyword arguments are the fields of their requests.

A request checks its fields, here as on the command line. In place of a name, verbs that run nothing
on ranks also accept an object that is already loaded: a ModelSpec, a Profile, a PlanFile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
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
from domino_tune.store.shelf import DISK, LoadedModel, Shelf
from simulator.errors import DominoTuneError, InputError, unknown_name
from simulator.profile import Profile
from simulator.specs import ModelSpec

P = ParamSpec("P")
R = TypeVar("R", bound=Request)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
LOADED: Final[Mapping[str, type[Any]]] = {"model": ModelSpec, "profile": Profile, "plan": PlanFile}
"""Field -> object that it accepts in place of a name or a path, if nothing is run on ranks."""


class VerbFunction(Protocol[P, T_co]):
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


def _verb(kind: Callable[P, R], result: type[T], place: str, name: str = "") -> VerbFunction[P, T]:
    """Return the function that builds a request from its arguments and runs the verb.

    ``place``: of the verb's own function, ``module:function`` of this package, which is imported at
    the first call; ``name``: what users call it, if not so. ``result``: for type checkers.
    """
    request_class, name = cast("type[R]", kind), name or place.partition(":")[2]

    def call(*, progress: Progress | None = None, **given: Any) -> T:
        try:
            request, objects = _request(request_class, name, given)
            run: Callable[..., T] = resolve_name(f"domino_tune.verbs.{place}")
            known = inspect.signature(run).parameters
            if objects and "shelf" not in known:
                raise InputError(
                    f"{name} goes on from files: give {' and '.join(objects)} by name or path, not "
                    "as an object (`save_plan` writes a plan)."
                )
            told = {
                "progress": progress or no_progress, "plan_file": objects.get("plan"),
                "shelf": _shelf(objects),
            }  # fmt: skip
            return run(request, **{key: told[key] for key in told.keys() & known.keys()})
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
    return cast("VerbFunction[P, T]", call)


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


def _shelf(objects: Mapping[str, Any]) -> Shelf:
    """Return the shelf that has the call's objects for every name, and all else on disk."""
    made: dict[str, Callable[[str], Any]] = {}
    if "profile" in objects:
        made["profile"] = lambda _: objects["profile"]
    if "model" in objects:
        made["model"] = lambda _: LoadedModel(spec=objects["model"])
    return DISK._replace(**made)


def _request(kind: type[R], name: str, given: Mapping[str, Any]) -> tuple[R, dict[str, Any]]:
    """Return the request of a call and its objects by field.

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
    return kind(**values), objects


simulate: Final = _verb(SimulateRequest, SimulateResult, "simulate:simulate")
tune: Final = _verb(TuneRequest, TuneResult, "tune:tune")
tune_measured: Final = _verb(MeasureRequest, MeasuredTuneResult, "tune_measured:tune_measured")
layout: Final = _verb(LayoutRequest, LayoutsResult, "layouts:tune_layouts", "layout")
scale: Final = _verb(ScaleRequest, ScaleResult, "scale:tune_scale", "scale")
whatif: Final = _verb(WhatIfRequest, WhatIfResult, "whatif:whatif")
validate: Final = _verb(ValidateRequest, ValidateResult, "validate:checked", "validate")
profile: Final = _verb(ProfileRequest, ProfilingResult, "profile:profile")
calibrate: Final = _verb(CalibrateRequest, CalibrateResult, "calibrate:calibrate")
