"""TaskContext: a parsed task and the data that its quanta share; a worker keeps it between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from domino_tune.requests import TuneRequest, WhatIfRequest
from domino_tune.requests.outputs import TuneOutputs
from domino_tune.results.layouts import LayoutsResult
from domino_tune.results.tune import TuneResult
from domino_tune.search.simulated import CasePlans
from domino_tune.service.tasks.task import Task
from domino_tune.store.plans import dump_plan
from domino_tune.verbs.layouts import LayoutSpace, space_of
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.scale import requests_of, scale_base
from domino_tune.verbs.tune import cases_to_tune
from domino_tune.verbs.whatif import Question, ask
from domino_tune.verbs.written import plan_file_of, strategies_of
from simulator.case import Case


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskContext:
    """A task with the cases and plans of a tune, the layouts of a search, or the question of a
    sweep.

    ``alone``: locked by a quantum that changes the shared data, such as layouts and their results.
    """

    task: Task
    alone: Lock = field(default_factory=Lock)
    _point_plans: list[CasePlans] = field(default_factory=list)
    _spaces: list[LayoutSpace] = field(default_factory=list)

    @classmethod
    def from_json(cls, parsed: Mapping[str, Any]) -> TaskContext:
        """Return the context of a task in the JSON of ``Task.to_bytes``."""
        return cls(task=Task.from_json(parsed))

    @property
    def tuning(self) -> TuneRequest:
        """Return the request of a tune, or of a search of layouts."""
        assert isinstance(self.task.request, TuneRequest)
        return self.task.request

    @cached_property
    def cases(self) -> list[CasePlans]:
        """Return the cases that a tune searches, one for each micro-batch size."""
        case = resolve(self.tuning, shelf=self.task.shelf)
        return [
            CasePlans(case=one, target=self.tuning.target)
            for one in cases_to_tune(case, self.tuning.tune_also)
        ]

    @cached_property
    def layouts(self) -> LayoutSpace:
        """Return the layouts to search."""
        return space_of(self.tuning, self.task.shelf)

    @cached_property
    def numbers(self) -> tuple[TuneRequest, ...]:
        """Return the request for each number of GPUs that a search covers."""
        return requests_of(self.tuning)

    @cached_property
    def scaled(self) -> Case:
        """Return the case that the layouts at the first of these numbers divide."""
        return scale_base(self.tuning, self.task.shelf)

    def layouts_at(self, asked: TuneRequest) -> LayoutSpace:
        """Return the layouts at a number of GPUs, and keep them until another number is
        asked for.
        """
        if not self._spaces or self._spaces[0].request != asked:
            self._spaces[:] = [space_of(asked, self.task.shelf)]
        return self._spaces[0]

    @cached_property
    def question(self) -> Question:
        """Return the question of a sweep."""
        assert isinstance(self.task.request, WhatIfRequest)
        return ask(self.task.request, self.task.plan_file, self.task.shelf)

    def point_plans(self, case: Case) -> CasePlans:
        """Return the plans of a sweep's point, and keep them until another point is asked for."""
        if not self._point_plans or self._point_plans[0].case != case:
            self._point_plans[:] = [CasePlans(case=case)]
        return self._point_plans[0]

    def artifacts(self, result: TuneResult | LayoutsResult) -> dict[str, bytes]:
        """Return the files of a search by name: plan file, report page and timeline."""
        from domino_tune.store.formats.chrome_trace import trace_bytes

        compared = {
            f"plan-{strategy}": dump_plan(plan_file_of(result.best, strategy)).encode()
            for strategy in strategies_of(result.best)
            if strategy != result.best.plan.strategy
        }
        return {
            **compared,
            "plan": dump_plan(result.best.plan_file).encode(),
            "report": self._page(result),
            "trace": trace_bytes(result.best.timelines),
        }

    def _page(self, result: TuneResult | LayoutsResult) -> bytes:
        from domino_tune.report.html import report_html
        from domino_tune.verbs.report import report_layouts, tuning_page

        if isinstance(result, TuneResult):
            return report_html(tuning_page(self.tuning, TuneOutputs(), result)).encode()
        with TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            report_layouts(str(page), self.tuning, TuneOutputs(), result)
            return page.read_bytes()
