"""Requests: every question, validated once. May import base and the simulator."""

from domino_tune.requests.fields import JobFields, PlanFields, RanksFields, WorkloadFields
from domino_tune.requests.options import Request
from domino_tune.requests.service import (
    JobsDeleteRequest,
    JobsListRequest,
    JobsShowRequest,
    JobsStopRequest,
    SendRequest,
    ServeRequest,
    TokensAddRequest,
    TokensListRequest,
    TokensRevokeRequest,
)
from domino_tune.requests.verbs import (
    CalibrateRequest,
    LayoutRequest,
    MeasureRequest,
    ModelsRequest,
    PlanExportRequest,
    PlanShowRequest,
    ProfileRequest,
    ProfilesCheckRequest,
    ProfilesDiffRequest,
    ProfilesImportRequest,
    ProfilesListRequest,
    ProfilesShowRequest,
    ScaleRequest,
    SearchFields,
    SimulateRequest,
    TuneRequest,
    ValidateRequest,
    WhatIfRequest,
)

__all__ = [
    "CalibrateRequest", "JobFields", "JobsDeleteRequest", "JobsListRequest", "JobsShowRequest",
    "JobsStopRequest", "LayoutRequest", "MeasureRequest", "ModelsRequest", "PlanExportRequest",
    "PlanFields", "PlanShowRequest", "ProfileRequest", "ProfilesCheckRequest",
    "ProfilesDiffRequest", "ProfilesImportRequest", "ProfilesListRequest", "ProfilesShowRequest",
    "RanksFields", "Request", "ScaleRequest", "SearchFields", "SendRequest", "ServeRequest",
    "SimulateRequest", "TokensAddRequest", "TokensListRequest", "TokensRevokeRequest",
    "TuneRequest", "ValidateRequest", "WhatIfRequest", "WorkloadFields",
]  # fmt: skip
