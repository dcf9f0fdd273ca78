"""The files of a search: its plans, its page, and its timelines."""

from __future__ import annotations

from domino_tune.requests import LayoutRequest, TuneRequest
from domino_tune.requests.outputs import SearchOutputs
from domino_tune.results.layouts import LayoutsResult
from domino_tune.results.tune import TuneResult
from domino_tune.store.plans import dump_plan
from domino_tune.verbs.written import plan_file_of, strategies_of


def files_of(
    request: TuneRequest | LayoutRequest, result: TuneResult | LayoutsResult
) -> dict[str, bytes]:
    """Return the files by name: ``plan``, ``plan-STRATEGY`` of each strategy that was compared,
    ``report`` and ``trace``."""
    from domino_tune.store.formats.chrome_trace import trace_bytes

    compared = {
        f"plan-{strategy}": dump_plan(plan_file_of(result.best, strategy)).encode()
        for strategy in strategies_of(result.best)
    }
    return {
        **compared,
        "plan": dump_plan(result.best.plan_file).encode(),
        "report": _page(request, result),
        "trace": trace_bytes(result.best.timelines),
    }


def _page(request: TuneRequest | LayoutRequest, result: TuneResult | LayoutsResult) -> bytes:
    from domino_tune.report.page import report_html
    from domino_tune.verbs.report import layouts_page, tuning_page

    if isinstance(result, TuneResult):
        assert isinstance(request, TuneRequest)
        return report_html(tuning_page(request, SearchOutputs(), result)).encode()
    assert isinstance(request, LayoutRequest)
    return report_html(layouts_page(request, SearchOutputs(), result)).encode()
