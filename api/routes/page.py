"""The page and the API's documentation: files of this package only.

A file is looked up by name in a dict of packaged files: no name from outside becomes a path.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.problems import ProblemError
from api.wire import PAGE_CSP, Routes
from domino_tune.report.page import lanes_script, static

MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "Cache-Control": "no-cache",  # cache it, but check by ETag whether it has changed
    "Content-Security-Policy": PAGE_CSP,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LANES: Final = "export const drawLanes = (data, host, legendBox) => {{\n{script}}};\n"
PLOT: Final = "export const drawPlot = host => {{\n{script}}};\n"
routes: Final = Routes("page")


@dataclass(frozen=True, kw_only=True)
class Asset:
    """One file as it is served."""

    body: bytes
    media_type: str

    @classmethod
    def of(cls, name: str, body: bytes) -> Asset:
        """Return the file ``name`` with this content."""
        return cls(body=body, media_type=MEDIA_TYPES[PurePosixPath(name).suffix])


@cache
def assets() -> dict[str, Asset]:
    """Return all files by name: the page's own, and those that it shares with the report, and
    Swagger UI's, which FastAPI itself would load from elsewhere."""
    own = {
        entry.name: entry.read_bytes()
        for entry in (resources.files("api") / "static").iterdir()
        if PurePosixPath(entry.name).suffix in MEDIA_TYPES
    }
    shared = {
        "report.css": static("page.css").encode(),
        "lanes.js": LANES.format(script=lanes_script()).encode(),
        "plot.js": PLOT.format(script=static("plot.js")).encode(),
    }
    swagger = {
        name: (resources.files("fastapi_offline") / "static" / name).read_bytes()
        for name in ("swagger-ui-bundle.js", "swagger-ui.css")
    }
    found = {**own, **shared, **swagger}
    return {name: Asset.of(name, body) for name, body in found.items()}


@routes.route("GET", "/", scope=None, media_type="text/html")
async def page(request: Request) -> Response:
    """The page: choose model, cluster and batch, tune, look at what comes out."""
    return _answer(request, "index.html")


@routes.route("GET", "/docs", scope=None, media_type="text/html")
async def docs(request: Request) -> Response:
    """The API's documentation: Swagger UI, served by this server."""
    return _answer(request, "docs.html")


@routes.route("GET", "/static/{name}", scope=None, media_type="*/*")
async def static_file(request: Request, name: str) -> Response:
    """A file of the page; 404 for a name that is none."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    asset = assets().get(name)
    if asset is None:
        raise ProblemError(404, "There is no such file.")
    return Response(asset.body, media_type=asset.media_type, headers=HEADERS)
