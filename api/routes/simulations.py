"""Simulations: one plan, predicted at once."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from api.jobs import json_response
from api.schemas import SimulateBody, SimulateResultShown
from api.tasks import answer_at_once
from api.wire import Me, Routes, body_of

routes: Final = Routes("simulations")


@routes.route("POST", "/v1/simulations", scope="read", returns=SimulateResultShown)
async def simulate(request: Request, caller: Me, body: Any = body_of(SimulateBody)) -> Response:
    """Predict one plan beside the baseline and the bound without communication."""
    return json_response(await answer_at_once(request, "simulate", body))
