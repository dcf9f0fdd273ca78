"""The routes, one module for each noun. Add a new module's table here."""

from __future__ import annotations

from typing import Final

from api.routes import (
    calibrations,
    events,
    health,
    jobs,
    layouts,
    metrics,
    models,
    page,
    profiles,
    scales,
    simulations,
    sweeps,
    tunes,
    validations,
    what_ifs,
)
from api.wire import Routes

ALL: Final[tuple[Routes, ...]] = (
    tunes.routes,
    sweeps.routes,
    layouts.routes,
    scales.routes,
    calibrations.routes,
    jobs.routes,
    events.routes,
    validations.routes,
    simulations.routes,
    what_ifs.routes,
    profiles.routes,
    models.routes,
    health.routes,
    metrics.routes,
    page.routes,
)
