"""A task that was opened: what its slices share, kept by a worker between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from domino_tune.case import Setup, resolve
from domino_tune.jobs.task import Task
from domino_tune.outputs import TuneOutputs
from domino_tune.planfile import dump_plan
from domino_tune.requests import TuneRequest, WhatIfRequest
from domino_tune.results import TuneResult
from domino_tune.tuning import SetupPlans, setups_to_tune
from domino_tune.whatif import Question, ask


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """A task, its setups with their plans, bounds and orders, or its question."""

    task: Task
    _listed: list[SetupPlans] = field(default_factory=list)

    @property
    def tuning(self) -> TuneRequest:
        """The request of a tune."""
        assert isinstance(self.task.request, TuneRequest)
        return self.task.request

    @cached_property
    def setups(self) -> list[SetupPlans]:
        """What a tune searches, one a micro-batch."""
        setup = resolve(self.tuning, shelf=self.task.shelf)
        return [
            SetupPlans(setup=one, target=self.tuning.target)
            for one in setups_to_tune(setup, self.tuning.tune_also)
        ]

    @cached_property
    def question(self) -> Question:
        """What a sweep asks."""
        assert isinstance(self.task.request, WhatIfRequest)
        return ask(self.task.request, self.task.plan_file, self.task.shelf)

    def listed(self, there: Setup) -> SetupPlans:
        """The plans of a sweep's point; those of the last point asked for are kept."""
        if not self._listed or self._listed[0].setup != there:
            self._listed[:] = [SetupPlans(setup=there)]
        return self._listed[0]

    def artifacts(self, result: TuneResult) -> dict[str, bytes]:
        """The files of a tune, by name: plan file, page, timeline."""
        from domino_tune.formats.chrome_trace import trace_bytes
        from domino_tune.report.html import report_html
        from domino_tune.reporting import tuning_page

        page = tuning_page(self.tuning, TuneOutputs(), result)
        return {
            "plan": dump_plan(result.best.plan_file).encode(),
            "report": report_html(page).encode(),
            "trace": trace_bytes(result.best.timelines),
        }
