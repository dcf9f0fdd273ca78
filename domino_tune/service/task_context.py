"""A task that was opened: what its slices share, kept by a worker between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from domino_tune.requests import TuneRequest, WhatIfRequest
from domino_tune.requests.outputs import TuneOutputs
from domino_tune.results import TuneResult
from domino_tune.search.simulated import CasePlans
from domino_tune.service.task import Task
from domino_tune.store.plans import dump_plan
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.tune import cases_to_tune
from domino_tune.verbs.whatif import Question, ask
from simulator.case import Case


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """A task, its cases with their plans, bounds and orders, or its question."""

    task: Task
    _listed: list[CasePlans] = field(default_factory=list)

    @property
    def tuning(self) -> TuneRequest:
        """The request of a tune."""
        assert isinstance(self.task.request, TuneRequest)
        return self.task.request

    @cached_property
    def cases(self) -> list[CasePlans]:
        """What a tune searches, one a micro-batch."""
        case = resolve(self.tuning, shelf=self.task.shelf)
        return [
            CasePlans(case=one, target=self.tuning.target)
            for one in cases_to_tune(case, self.tuning.tune_also)
        ]

    @cached_property
    def question(self) -> Question:
        """What a sweep asks."""
        assert isinstance(self.task.request, WhatIfRequest)
        return ask(self.task.request, self.task.plan_file, self.task.shelf)

    def listed(self, there: Case) -> CasePlans:
        """The plans of a sweep's point; those of the last point asked for are kept."""
        if not self._listed or self._listed[0].case != there:
            self._listed[:] = [CasePlans(case=there)]
        return self._listed[0]

    def artifacts(self, result: TuneResult) -> dict[str, bytes]:
        """The files of a tune, by name: plan file, page, timeline."""
        from domino_tune.report.html import report_html
        from domino_tune.store.formats.chrome_trace import trace_bytes
        from domino_tune.verbs.report import tuning_page

        page = tuning_page(self.tuning, TuneOutputs(), result)
        return {
            "plan": dump_plan(result.best.plan_file).encode(),
            "report": report_html(page).encode(),
            "trace": trace_bytes(result.best.timelines),
        }
