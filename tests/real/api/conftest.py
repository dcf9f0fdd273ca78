"""A server with a tune that is done, and a browser that looks at its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.real.api.browser import Watched, chromium, watched
from tests.real.api.page_steps import LAYOUTS, SCALE, SMALL, done
from tests.real.domino_tune.serving import Served, served
from tests.support.processes import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for one file: while it is there, Playwright's loop runs in this thread, and no
    other test can run its own."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture
def seen(browser: Browser, server: Served) -> Iterator[Watched]:
    with watched(browser, server.url) as page:
        yield page


@pytest.fixture(scope="package")
def tuned(server: Served) -> str:
    """The id of a tune that is done."""
    return done(server, "tune", SMALL)


@pytest.fixture(scope="package")
def scaled(server: Served) -> str:
    """The id of a search at several numbers of GPUs that is done."""
    return done(server, "scale", SCALE)


@pytest.fixture(scope="package")
def swept(server: Served, tuned: str) -> str:
    """The id of a sweep of the tune's plan that is done."""
    plan = httpx.get(f"{server.url}/v1/jobs/{tuned}/files/plan", timeout=PATIENCE_S).text
    sweep = '"sweep": "link_bandwidth=0.5x,1x"'
    return done(server, "whatif", f'{{"kind": "whatif", "plan": {plan}, {sweep}}}')


@pytest.fixture(scope="package")
def calibrated(server: Served) -> str:
    """The id of a calibration that is done."""
    runs = [{**SMALL, "tp": tp, "measured_ms": 200.0 / tp} for tp in (4, 2)]
    for run in runs:
        del run["profile"]
    body = {"profile": "h100-dgx", "name": "fitted", "runs": runs}
    return done(server, "calibrate", body)


@pytest.fixture(scope="package")
def laid_out(server: Served) -> str:
    """The id of a search of layouts that is done."""
    return done(server, "layout", LAYOUTS)
