"""The routes, one module for each noun. Add a new module's table here."""

from __future__ import annotations

from typing import Final

from api.routes import events, health, jobs, models, page, profiles, questions
from api.wire import Routes

ALL: Final[tuple[Routes, ...]] = (
    jobs.routes,
    events.routes,
    questions.routes,
    profiles.routes,
    models.routes,
    health.routes,
    page.routes,
)
