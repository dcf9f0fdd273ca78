"""A real browser: Debian's Chromium, driven by Playwright; what it asks and says is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.processes import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS: Final = 1000 * PATIENCE_S
RESOURCE: Final = "Failed to load resource: the server responded with a status of "
"""How Chromium tells of every answer that is an error, expected or not."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser; skips where it, or Playwright, is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass(kw_only=True)
class Watched:
    """A page with all that it asked for and complained of."""

    page: Page
    origin: str
    asked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def open(self, place: str = "") -> Page:
        """Go to a place of the page, by its hash."""
        self.page.goto(f"{self.origin}/{place}")
        return self.page

    def check(self, *statuses: int) -> None:
        """Nothing was asked of others, and nothing went wrong but answers with ``statuses``."""
        own = (f"{self.origin}/", f"blob:{self.origin}/")
        assert [url for url in self.asked if not url.startswith(own)] == []
        expected = tuple(f"{RESOURCE}{status} " for status in statuses)
        assert [said for said in self.errors if not (statuses and said.startswith(expected))] == []


def axe_findings(page: Page) -> list[str]:
    """Serious and critical findings of axe-core on what the page shows, each with its elements."""
    if not page.evaluate("'axe' in window"):
        script = resources.files("axe_playwright_python") / "axe.min.js"
        page.evaluate(script.read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes']]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@contextmanager
def watched(browser: Browser, origin: str, **options: Any) -> Iterator[Watched]:
    """A page of a fresh session; ``options`` are of ``Browser.new_context``."""
    # An animation that nobody looks at would take a core while a test waits.
    context = browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(PATIENCE_MS)
    found = Watched(page=context.new_page(), origin=origin)
    page = found.page
    context.on("request", lambda request: found.asked.append(request.url))
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.on(
        "console",
        lambda said: found.errors.append(said.text) if said.type in ("error", "warning") else None,
    )
    try:
        yield found
    finally:
        context.close()
