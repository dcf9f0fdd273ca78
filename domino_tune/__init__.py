"""Measure a machine, predict the iteration time of every plan, choose one, validate it.

The names below are the program from Python; docs/python.md shows them. They are imported at their
first use, so that ``import domino_tune`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from domino_tune.base.origin import REMEDY, hidden_packages
from domino_tune.base.origin import VERSION as __version__

if TYPE_CHECKING:
    from domino_tune.results.layouts import LayoutsResult, ScaleResult
    from domino_tune.results.measured import ValidateResult
    from domino_tune.results.profile import CalibrateResult, ProfilingResult
    from domino_tune.results.simulate import SimulateResult
    from domino_tune.results.tune import TuneResult
    from domino_tune.results.whatif import WhatIfResult
    from domino_tune.store.plans import PlanFile, load_plan, save_plan
    from domino_tune.store.profiles import load_profile, save_profile
    from domino_tune.verbs.calls import (
        calibrate,
        layout,
        profile,
        scale,
        simulate,
        tune,
        tune_measured,
        validate,
        whatif,
    )
    from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError
    from simulator.profile import Profile
    from simulator.specs import ModelSpec

_PLACES: Final = {
    "domino_tune.results.layouts": ("LayoutsResult", "ScaleResult"),
    "domino_tune.results.measured": ("ValidateResult",),
    "domino_tune.results.profile": ("CalibrateResult", "ProfilingResult"),
    "domino_tune.results.simulate": ("SimulateResult",),
    "domino_tune.results.tune": ("TuneResult",),
    "domino_tune.results.whatif": ("WhatIfResult",),
    "domino_tune.store.plans": ("PlanFile", "load_plan", "save_plan"),
    "domino_tune.store.profiles": ("load_profile", "save_profile"),
    "domino_tune.verbs.calls": (
        "calibrate", "layout", "profile", "scale", "simulate", "tune", "tune_measured", "validate",
        "whatif",
    ),
    "simulator.errors": ("DominoTuneError", "InfeasiblePlanError", "InputError"),
    "simulator.profile": ("Profile",),
    "simulator.specs": ("ModelSpec",),
}  # fmt: skip
_NEEDED: Final = ("simulator", "profiles")

__all__ = [
    "CalibrateResult", "DominoTuneError", "InfeasiblePlanError", "InputError", "LayoutsResult",
    "ModelSpec", "PlanFile", "Profile", "ProfilingResult", "ScaleResult", "SimulateResult",
    "TuneResult", "ValidateResult", "WhatIfResult",
    "__version__", "calibrate", "layout", "load_plan", "load_profile", "profile", "save_plan",
    "save_profile", "scale", "simulate", "tune", "tune_measured", "validate", "whatif",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return one of ``__all__``. Raise ImportError where another project's package hides ours."""
    for place, names in _PLACES.items():
        if name in names:
            hidden = hidden_packages(_NEEDED)
            if hidden:
                raise ImportError(f"{' '.join(hidden)} {REMEDY}.")
            value = globals()[name] = getattr(import_module(place), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names that users need."""
    return __all__
