"""What jobs compute: the best plan, layouts, points one by one, their files; a calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from domino_tune.requests import (
    LayoutRequest,
    ScaleRequest,
    SimulateRequest,
    TuneRequest,
    WhatIfRequest,
)
from domino_tune.requests.outputs import SearchOutputs
from domino_tune.results import to_json
from domino_tune.results.layouts import LayoutsResult, ScalePoint
from domino_tune.results.tune import TuneResult
from domino_tune.results.whatif import WhatIfPoint
from domino_tune.search.layouts import LayoutSearch
from domino_tune.search.problem import DEFAULT_TRIALS, Record, choose_best
from domino_tune.search.simulated import CasePlans, check_target
from domino_tune.service.encoding import json_bytes
from domino_tune.service.work import JobStep, LastLine, Outcome, Reporter, StopError
from domino_tune.service.work.task import Task, profile_of
from domino_tune.store.plans import dump_plan
from domino_tune.store.profiles import dump_profile
from domino_tune.verbs import layouts as layouts_verb
from domino_tune.verbs.calibrate import (
    AskedRun,
    calibrated,
    check_base,
    check_predictable,
    measured,
    merged_samples,
    planned,
)
from domino_tune.verbs.layout_space import base_of
from domino_tune.verbs.layouts import LayoutSpace
from domino_tune.verbs.resolve import Chosen, resolve
from domino_tune.verbs.scale import at_first, points_of, result_of, scale_base
from domino_tune.verbs.simulate import plan_file_of, strategies_of
from domino_tune.verbs.tune import (
    cases_to_tune,
    check_some_may_fit,
    conclude,
    found_so_far,
    search_all,
)
from domino_tune.verbs.whatif import ask, best_plan, best_so_far
from simulator.case import Case
from simulator.dtypes import MS_PER_NS
from simulator.errors import DominoTuneError, InputError
from simulator.plan import SlicePlan
from simulator.specs import Workload

# The files of a search ----------------------------------------------------------------------------
# Its plans, its page, and its timelines.


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
    from domino_tune.verbs.report import layouts_page, tuning_page

    if isinstance(result, TuneResult):
        assert isinstance(request, TuneRequest)
        return tuning_page(request, SearchOutputs(), result).encode()
    assert isinstance(request, LayoutRequest)
    return layouts_page(request, SearchOutputs(), result).encode()


# What searches compute ----------------------------------------------------------------------------
# The best plan, the best layouts, and points one by one.

GAINS: Final = ("domino_gain", "domino_gain_here")
"""Fields of a layout that are unknown until the search has ended."""


def check_tune(task: Task) -> None:
    """Raise the DominoTuneError of a tune that cannot be, or whose plans all do not fit."""
    request = task.asked(TuneRequest)
    case = resolve(request, shelf=task.shelf)
    check_target(case, request.target)
    check_some_may_fit(cases_to_tune(case, request.tune_also), request)


def tune(task: Task, reporter: Reporter) -> Outcome:
    """Search the plans of every case; after a stop, return the best of those evaluated."""
    request, stopped_by = task.asked(TuneRequest), None
    case = resolve(request, shelf=task.shelf)
    cases = [
        CasePlans(case=one, target=request.target) for one in cases_to_tune(case, request.tune_also)
    ]
    records = [Record() for _ in cases]

    def evaluated() -> None:
        if reporter.stop and any(record.trials for record in records):
            raise StopError

    progress = LastLine(
        reporter, lambda: reporter.tell(_tuned_so_far(request, cases, records, progress.text))
    )
    try:
        searched = search_all(cases, request, progress, records=records, pause=evaluated)
    except StopError:
        stopped_by = reporter.stop
        searched = found_so_far(cases, records)
    result = conclude(searched, request, progress.last, stopped_by=stopped_by)
    return _found(request, result, sum(len(record.history) for record in records))


def _tuned_so_far(
    request: TuneRequest, cases: Sequence[CasePlans], records: Sequence[Record], text: str
) -> JobStep:
    done = sum(len(record.history) for record in records)
    limit = request.trials or (None if request.search == "exhaustive" else DEFAULT_TRIALS)
    total = limit and limit * len(cases)
    left = total - done if total else _left(cases, records)
    return JobStep(done=done, total=total, text=text, left=left, best=_best_plan(cases, records))


def _left(cases: Sequence[CasePlans], records: Sequence[Record]) -> int | None:
    """Return the most plans left of exhaustive searches; None before the first trial. A case that
    has not started counts like the average of the others."""
    begun = [(one, record) for one, record in zip(cases, records, strict=True) if record.history]
    left = [plans.problem.left(record) for plans, record in begun]
    known = [many for many in left if many is not None]
    if not known or len(known) < len(left):
        return None
    each = (sum(known) + sum(len(record.history) for _, record in begun)) / len(begun)
    return sum(known) + round(each * (len(cases) - len(begun)))


def _best_plan(cases: Sequence[CasePlans], records: Sequence[Record]) -> dict[str, Any] | None:
    """Return the best plan in brief; None if no plan was evaluated yet."""
    found = [
        (trial, plans.case.workload)
        for plans, record in zip(cases, records, strict=True)
        for trial in record.trials
    ]
    if not found:
        return None
    best = choose_best(trial for trial, _ in found)
    workload = next(its for trial, its in found if trial is best)
    return _brief(best.plan, best.iteration_ns * MS_PER_NS, workload)


def _brief(plan: SlicePlan, iteration_ms: float, workload: Workload) -> dict[str, Any]:
    return {
        "plan": to_json(plan),
        "iteration_ms": to_json(iteration_ms),
        "micro_batch_size": workload.micro_batch_size,
        "grad_accumulation": workload.grad_accumulation,
    }


def check_layout(task: Task) -> None:
    """Raise the DominoTuneError of a search of layouts that all do not fit."""
    _check_layout(task, task.asked(LayoutRequest))


def _check_layout(task: Task, request: LayoutRequest) -> None:
    layouts_verb.check_may_fit(base_of(request, task.shelf), request)


def layout(task: Task, reporter: Reporter) -> Outcome:
    """Search layouts; after a stop, return the best of those evaluated."""
    request = task.asked(LayoutRequest)

    def tell(search: LayoutSearch, text: str) -> None:
        best = to_json(layouts_verb.best_so_far(search))
        shown = best and {name: best[name] for name in best if name not in GAINS}
        reporter.tell(JobStep(done=search.evaluations, text=text, left=search.left, best=shown))

    reporter.tell(JobStep(text=layouts_verb.LISTING))
    space = layouts_verb.space_of(request, task.shelf)
    result, done = _search_layouts(space, reporter, tell)
    return _found(request, result, done)


def _search_layouts(
    space: LayoutSpace, reporter: Reporter, tell: Callable[[LayoutSearch, str], None]
) -> tuple[LayoutsResult, int]:
    """Return the answer of a search, and how many plans it has evaluated."""
    stopped_by = None

    def evaluated() -> None:
        if reporter.stop and search.first:
            raise StopError

    progress = LastLine(reporter, lambda: tell(search, progress.text))
    search = LayoutSearch(space.candidates, progress, edge=space.edge, pause=evaluated)
    try:
        search.run()
    except StopError:
        stopped_by = reporter.stop
    progress.last(f"{search.evaluations:,} plans done; comparing strategies")
    return layouts_verb.conclude(space, search, stopped_by=stopped_by), search.evaluations


def check_scale(task: Task) -> None:
    """Raise the error of the last number of GPUs where no number may have a layout."""
    at_first(task.asked(ScaleRequest), lambda asked: _check_layout(task, asked))


def scale(task: Task, reporter: Reporter) -> Outcome:
    """Search layouts at each number of GPUs; after a stop, return the points so far, if one has a
    layout."""
    request = task.asked(ScaleRequest)
    total, points = len(request.gpus), list[ScalePoint]()

    def search(asked: LayoutRequest) -> LayoutsResult:
        def tell(_: LayoutSearch, text: str) -> None:
            reporter.tell(_numbers(points, total, f"{asked.gpus:,} GPUs: {text}"))

        reporter.tell(_numbers(points, total, f"{asked.gpus:,} GPUs: {layouts_verb.LISTING}"))
        return _search_layouts(layouts_verb.space_of(asked, task.shelf), reporter, tell)[0]

    for point in points_of(request, search):
        points.append(point)
        reporter.tell(_numbers(points, total, f"{point.gpus:,} GPUs", new=True))
        if reporter.stop and any(one.layout for one in points):
            break
    cut = len(points) < total or any(one.optimality == "best_found" for one in points)
    stopped_by = reporter.stop if cut else None
    result = result_of(points, scale_base(request, task.shelf), request, stopped_by=stopped_by)
    return _listed(to_json(result), _numbers(points, total, "done"), reporter, cut=cut)


def _numbers(points: Sequence[ScalePoint], total: int, text: str, *, new: bool = False) -> JobStep:
    made = ((len(points) - 1, json_bytes(to_json(points[-1]))),) if new else ()
    return JobStep(done=len(points), total=total, text=text, left=total - len(points), points=made)


def check_sweep(task: Task) -> None:
    """Raise the DominoTuneError of a what-if that cannot be."""
    ask(task.asked(WhatIfRequest), task.plan_file, task.shelf)


def sweep(task: Task, reporter: Reporter) -> Outcome:
    """Predict the unchanged case and every point; after a stop, return the points so far. The best
    plan of a point that is being retuned is then the best so far."""
    question = ask(task.asked(WhatIfRequest), task.plan_file, task.shelf)
    points, cut = list[WhatIfPoint](), False

    def told(new: tuple[tuple[int, bytes], ...] = ()) -> JobStep:
        return JobStep(
            done=len(points), total=question.size, text=progress.text,
            left=question.size - len(points), points=new,
        )  # fmt: skip

    def best(case: Case) -> Chosen:
        nonlocal cut
        plans, record = CasePlans(case=case), Record()

        def evaluated() -> None:
            if reporter.stop and record.trials:
                raise StopError

        try:
            return best_plan(plans, progress, record=record, pause=evaluated)
        except StopError:
            cut = True
            return best_so_far(plans, record)

    progress = LastLine(reporter, lambda: reporter.tell(told()))
    unchanged = question.unchanged(progress, best)
    for index in range(question.size):
        if reporter.stop and points:
            cut = True
            break
        points.append(question.point(index, progress, best))
        reporter.tell(told(((index, json_bytes(to_json(points[-1]))),)))
    found = question.answer(unchanged, points, stopped_by=reporter.stop if cut else None)
    progress("done")
    return _listed(to_json(found), told(), reporter, cut=cut)


def _listed(plain: dict[str, Any], last: JobStep, reporter: Reporter, *, cut: bool) -> Outcome:
    """Return the outcome of a job of points."""
    plain.pop("seconds", None)
    return Outcome(result=json_bytes(plain), last=last, stopped_by=reporter.stop if cut else None)


def _found(
    request: TuneRequest | LayoutRequest, result: TuneResult | LayoutsResult, done: int
) -> Outcome:
    """Return the outcome of a search after ``done`` evaluations: its answer and its files."""
    answer = to_json(result)
    del answer["seconds"]  # of this run, not of the task
    if isinstance(result, TuneResult):
        found = result.best
        best = _brief(found.plan, found.iteration_ms, found.workload)
        best["baseline_ms"] = to_json(found.baseline_ms)
    else:
        best = answer["layouts"][0]
    stopped_by: Any = result.stopped_by
    total = None if stopped_by else done
    return Outcome(
        result=json_bytes(answer), files=files_of(request, result), stopped_by=stopped_by,
        last=JobStep(done=done, total=total, text="done", left=0, best=best),
    )  # fmt: skip


# What a calibration computes ----------------------------------------------------------------------
# A profile fitted to measured runs.

TOLD: Final = "of a request"
"""Where the runs come from, in the profile's provenance."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def check_calibration(task: Task) -> None:
    """Raise the DominoTuneError of a profile that cannot be calibrated, or of a run that cannot be
    predicted, placed in the request."""
    check_base(profile_of(task.profile))
    found = []
    for index, run in enumerate(_runs(task)):
        try:
            made = planned(run, task.shelf)
            check_predictable(made)
        except DominoTuneError as error:
            raise error.at("runs", *([] if task.request["listed"] is False else [index])) from None
        found.append(made)
    try:
        merged_samples(found)
    except DominoTuneError as error:
        raise error.at("runs") from None


def calibrate(task: Task, reporter: Reporter) -> Outcome:
    """Fit the profile. Raise InputError for runs that contradict each other, or take longer than a
    job may compute."""
    runs = [measured(one, task.shelf) for one in _runs(task)]
    counted = _CountedAhead(reporter, len(runs))
    profile = profile_of(task.profile)
    made, result = calibrated(profile, task.request["name"], runs, TOLD, counted)
    answer = to_json(result)
    del answer["path"]
    done = counted.done
    return Outcome(
        result=json_bytes(answer), files={"profile": dump_profile(made)},
        last=JobStep(done=done, total=done, text="done", left=0),
    )  # fmt: skip


class _CountedAhead:
    """An Ahead that computes in turn, and counts."""

    def __init__(self, reporter: Reporter, runs: int) -> None:
        self._reporter = reporter
        self._runs = runs
        self.done = 0

    def __call__(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Callable[[], Result]]]:
        """Go through ``items`` in order."""
        for item in items:
            yield item, lambda item=item: self._result(function, item)  # type: ignore[misc]

    def _result(self, function: Callable[[Item], Any], item: Item) -> Any:
        if self._reporter.stop == "time":
            raise InputError(
                "These runs take longer to fit than a job may compute; give fewer of them, or "
                "shorter ones: fewer layers, or fewer micro-batches."
            )
        found = function(item)
        self.done += 1
        if self._reporter.due:
            text = f"{self.done:,} predictions of {self._runs} runs"
            self._reporter.tell(JobStep(done=self.done, text=text))
        return found


def _runs(task: Task) -> list[AskedRun]:
    return [
        AskedRun(**{**run, "request": SimulateRequest(**run["request"])})
        for run in task.request["runs"]
    ]
