"""Optional dependencies: which extra of this package installs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from simulator.errors import InputError

EXTRAS: Final = {
    "anyio": "api",
    "cachetools": "api",
    "dask": "dask",
    "distributed": "dask",
    "fastapi": "api",
    "h11": "api",
    "httpx": "client",
    "prometheus_client": "api",
    "psutil": "api",
    "psycopg": "postgres",
    "sqlalchemy": "api",
    "starlette": "api",
    "uvicorn": "api",
}
"""Package -> the extra that installs it."""


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Run imports; raise InputError that names the extra of a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        raise InputError(
            f"{what} needs {missing}, which is not installed; get it with "
            f"`pip install 'domino_tune[{EXTRAS[missing]}]'`."
        ) from None
