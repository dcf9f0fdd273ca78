"""What-ifs: one plan on a changed machine or workload, predicted at once."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from api.jobs import json_response
from api.schemas import WhatIfBody, WhatIfResultShown
from api.tasks import answer_at_once
from api.wire import Me, Routes, body_of

routes: Final = Routes("what-ifs")


@routes.route("POST", "/v1/what-ifs", scope="read", returns=WhatIfResultShown)
async def what_if(request: Request, caller: Me, body: Any = body_of(WhatIfBody)) -> Response:
    """Predict a plan as things are, and where machine or workload are changed. Several points, or
    the best plan of each, are a sweep."""
    return json_response(await answer_at_once(request, "whatif", body))
