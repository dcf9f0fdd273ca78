"""The page: one HTML file with everything inside."""

from __future__ import annotations

from pathlib import Path

from domino_tune.report.data import ReportData
from domino_tune.store.files import write_whole


def write_report(path: str | Path, data: ReportData) -> None:
    """Write the page of ``data`` to ``path``, whole or not at all.

    The same data give the same bytes. Raises InputError when ``path`` cannot be written.
    """
    write_whole(path, report_html(data))


def report_html(data: ReportData) -> str:
    """The page as text."""
    return f"<!doctype html><title>{len(data.title)}</title>"
