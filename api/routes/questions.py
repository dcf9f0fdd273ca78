"""Questions that are answered at once: one plan, as things are or on a changed machine."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.schemas import SimulateBody, SimulateResultShown, WhatIfBody, WhatIfResultShown
from api.tasks import answer_at_once
from api.wire import Me, Routes, body_of

routes: Final = Routes("questions")


@routes.route("POST", "/v1/simulations", scope="read", returns=SimulateResultShown)
async def simulate(request: Request, caller: Me, body: Any = body_of(SimulateBody)) -> Response:
    """Predict one plan beside the baseline and the bound without communication."""
    return json_response(await answer_at_once(request, caller, "simulate", body))


@routes.route("POST", "/v1/what-ifs", scope="read", returns=WhatIfResultShown)
async def what_if(request: Request, caller: Me, body: Any = body_of(WhatIfBody)) -> Response:
    """Predict a plan as things are, and where machine or workload are changed. Several points, or
    the best plan of each, are a job of kind `whatif`."""
    return json_response(await answer_at_once(request, caller, "whatif", body))
