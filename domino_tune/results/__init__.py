"""Results: what the verbs return, as JSON, tables and DataFrames. May import store and below."""

from domino_tune.results.calibrate import CalibrateResult
from domino_tune.results.json_form import to_json
from domino_tune.results.layouts import LayoutResult, LayoutsResult
from domino_tune.results.pipeline import Pipeline, Stage
from domino_tune.results.plan import ExportResult, ModelsResult, PlanResult
from domino_tune.results.profile import ProfilingResult
from domino_tune.results.profiles import (
    CheckResult,
    DiffResult,
    ImportResult,
    ProfileResult,
    ProfilesResult,
)
from domino_tune.results.scale import ScalePoint, ScaleResult
from domino_tune.results.simulate import Interval, Simulated, SimulateResult, Variant
from domino_tune.results.tune import Tuned, TuneResult
from domino_tune.results.tune_measured import MeasuredTuneResult
from domino_tune.results.validate import ValidateResult
from domino_tune.results.whatif import WhatIfPoint, WhatIfResult

__all__ = [
    "CalibrateResult", "CheckResult", "DiffResult", "ExportResult", "ImportResult", "Interval",
    "LayoutResult", "LayoutsResult", "MeasuredTuneResult", "ModelsResult", "Pipeline",
    "PlanResult", "ProfileResult", "ProfilesResult", "ProfilingResult", "ScalePoint",
    "ScaleResult", "SimulateResult", "Simulated", "Stage", "TuneResult", "Tuned", "ValidateResult",
    "Variant", "WhatIfPoint", "WhatIfResult", "to_json",
]  # fmt: skip
