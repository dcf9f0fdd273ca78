"""The routes, one module for each noun. Add a new module's table here."""

from __future__ import annotations

from typing import Final

from api.routes import health, jobs, library, page
from api.wire import Routes

ALL: Final[tuple[Routes, ...]] = (
    jobs.routes,
    jobs.question_routes,
    library.routes,
    library.model_routes,
    health.routes,
    page.routes,
)
