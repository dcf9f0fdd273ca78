"""The routes, one module a noun. A new module adds its table here."""

from __future__ import annotations

from typing import Final

from api.routes import health, metrics
from api.wire import Routes

ALL: Final[tuple[Routes, ...]] = (
    health.routes,
    metrics.routes,
)
