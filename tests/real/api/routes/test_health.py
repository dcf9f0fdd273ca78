"""Liveness and readiness of a real service."""

from __future__ import annotations

import resource
from pathlib import Path

from tests.support.asked import SMALL, good, refused
from tests.support.service import serving


def test_not_ready_while_nothing_can_be_stored(tmp_path: Path) -> None:
    """Its files may not grow for a while, as on a disk that is full."""
    with serving(tmp_path, workers=0) as service, service.client() as client:
        assert good(client.get("/readyz")) == {"status": "ok"}
        pid, kind = service.process.pid, resource.RLIMIT_FSIZE
        before = resource.prlimit(pid, kind)
        resource.prlimit(pid, kind, (0, before[1]))
        refused(client.post("/v1/tunes", json=SMALL), 507)
        problem = refused(client.get("/readyz"), 503)
        assert "disk" in problem["detail"]
        assert good(client.get("/healthz")) == {"status": "ok"}
        resource.prlimit(pid, kind, before)
        assert good(client.get("/readyz")) == {"status": "ok"}
        good(client.post("/v1/tunes", json=SMALL), 202)
