"""The page in a browser: a question, its answer, nothing on the console, nothing for axe."""

from __future__ import annotations

from pathlib import Path

from tests.real.api.browser import axe_findings, chromium, watched
from tests.real.api.page_steps import SMALL, fill
from tests.support.service import serving


def test_a_question_is_answered(tmp_path: Path) -> None:
    with (
        chromium() as browser,
        serving(tmp_path) as service,
        watched(browser, service.url) as seen,
    ):
        page = seen.open()
        fill(page, {**SMALL, "search": "random", "trials": 2})
        page.locator("#field-tp").press("Enter")
        page.locator("#answer h1", has_text="fastest").wait_for()
        page.locator("#lanes canvas").nth(2).wait_for()
        assert axe_findings(page) == []
        seen.check()
