"""Requests: every question, validated once. May import base and the simulator."""

from domino_tune.requests.calibrate import CalibrateRequest
from domino_tune.requests.fields import PlanFields, RanksFields, Request, WorkloadFields
from domino_tune.requests.profiles import (
    ProfilesCheckRequest,
    ProfilesDiffRequest,
    ProfilesImportRequest,
    ProfilesListRequest,
    ProfilesShowRequest,
)
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
    ModelsRequest,
    PlanExportRequest,
    PlanShowRequest,
    ProfileRequest,
    SimulateRequest,
    TuneRequest,
    ValidateRequest,
    WhatIfRequest,
)

__all__ = [
    "CalibrateRequest",
    "JobsDeleteRequest",
    "JobsListRequest",
    "JobsShowRequest",
    "JobsStopRequest",
    "ModelsRequest",
    "PlanExportRequest",
    "PlanFields",
    "PlanShowRequest",
    "ProfileRequest",
    "ProfilesCheckRequest",
    "ProfilesDiffRequest",
    "ProfilesImportRequest",
    "ProfilesListRequest",
    "ProfilesShowRequest",
    "RanksFields",
    "Request",
    "SendRequest",
    "ServeRequest",
    "SimulateRequest",
    "TokensAddRequest",
    "TokensListRequest",
    "TokensRevokeRequest",
    "TuneRequest",
    "ValidateRequest",
    "WhatIfRequest",
    "WorkloadFields",
]  # fmt: skip
