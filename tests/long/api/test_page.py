"""The page while its server dies and comes back."""

from __future__ import annotations

from pathlib import Path

from tests.real.api.browser import chromium, watched
from tests.real.api.page_steps import SMALL, fill
from tests.real.domino_tune.serving import served
from tests.support.processes import reserved_port


def test_a_server_that_dies_comes_back_with_its_tunes(tmp_path: Path) -> None:
    port = ("--port", str(reserved_port()))
    with (
        chromium() as browser,
        served(tmp_path, *port) as server,
        watched(browser, server.url) as seen,
    ):
        page = seen.open()
        fill(page, {**SMALL, "search": "random", "trials": 150})
        page.locator("#field-tp").press("Enter")
        page.locator(".best-so-far", has_text="Best so far").wait_for()
        server.process.kill()
        server.process.wait()
        with served(tmp_path, *port):
            page.locator("#lanes canvas").first.wait_for()
            seen.errors = [said for said in seen.errors if "net::ERR_" not in said]
            seen.check()
