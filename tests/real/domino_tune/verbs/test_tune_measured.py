"""`measure`: plans on real ranks, their evidence, and how it continues."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from domino_tune.cli import show
from domino_tune.measure.profiling import add_message
from domino_tune.requests import MeasureRequest
from domino_tune.requests.command_line import command_line
from domino_tune.results import to_json
from domino_tune.results.measured import MeasuredTuneResult
from domino_tune.runtime import plan_runs
from domino_tune.store.evidence import LaunchRecord, PlanRun
from domino_tune.store.plans import load_plan
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.verbs.tune_measured import ROUNDS, tune_measured
from simulator.errors import InfeasiblePlanError, InputError
from simulator.ops import Collective
from simulator.plan import MEGATRON
from tests.real.domino_tune.verbs.measured_cases import launches, measured_request
from tests.support.runs import Runner
from tests.support.validation_cases import FOUR

pytestmark = pytest.mark.usefixtures("needs_torch")

BASELINE = replace(MEGATRON, sequence_parallel=True)


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> MeasureRequest:
    return measured_request(tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="module")
def result(request_: MeasureRequest) -> MeasuredTuneResult:
    """Three plans, run for real on two ranks."""
    found = tune_measured(request_)
    assert isinstance(found, MeasuredTuneResult)
    return found


def copied(request: MeasureRequest, folder: Path, lines: int | None = None) -> MeasureRequest:
    """Return the same question with the first ``lines`` of its evidence in a file of its own."""
    first = Path(str(request.evidence)).read_bytes().splitlines(keepends=True)[:lines]
    path = folder / "evidence.jsonl"
    path.write_bytes(b"".join(first))
    return request.but(evidence=str(path))


def write_down(request: MeasureRequest, record: LaunchRecord) -> None:
    """Add a launch to the request's evidence, as a run would have."""
    line = {"kind": record.kind, "runs": to_json(list(record.runs))}
    for entry in line["runs"]:
        del entry["plan"]["label"]
    launches(request)  # creates the file if it is missing
    with Path(str(request.evidence)).open("a") as file:
        file.write(json.dumps(line) + "\n")


def words(request: MeasureRequest, *options: str) -> list[str]:
    """Return the request as arguments of the command line."""
    return [*shlex.split(command_line(request))[3:], *options]


def test_the_baseline_first_then_each_plan_beside_it(
    request_: MeasureRequest, result: MeasuredTuneResult
) -> None:
    evaluations = [one for one in launches(request_) if one.kind == "evaluation"]
    assert [len(one.runs) for one in evaluations] == [1, 2, 2]
    assert {one.runs[0].plan for one in evaluations} == {BASELINE}
    assert all(len(run.makespans_ns) == ROUNDS for one in evaluations for run in one.runs)
    assert [one.plan for one in result.measured] == [one.runs[-1].plan for one in evaluations]
    assert (result.evaluations, result.new_runs, result.optimality) == (3, 3, "all_measured")
    assert result.warnings == ()


def test_numbers_belong_together(result: MeasuredTuneResult) -> None:
    baseline_ms = result.baseline.measured_ms
    assert baseline_ms is not None
    for one in result.measured:
        assert one.speedup is not None
        assert one.speedup_interval is not None
        assert one.measured_ms == pytest.approx(baseline_ms / one.speedup)
        assert one.speedup_interval.low <= one.speedup <= one.speedup_interval.high
        assert one.predicted_ms * one.predicted_speedup == pytest.approx(
            result.baseline.predicted_ms
        )
    assert result.chosen.speedup == max(one.speedup or 0 for one in result.measured)
    assert result.best.plan == result.chosen.plan
    assert result.best.iteration_ms == pytest.approx(result.chosen.predicted_ms)


def test_given_again_nothing_is_run(request_: MeasureRequest, result: MeasuredTuneResult) -> None:
    again = tune_measured(request_)
    assert isinstance(again, MeasuredTuneResult)
    assert again.new_runs == 0
    assert again.measured == result.measured
    assert again.chosen == result.chosen


def test_on_the_command_line(
    run: Runner, request_: MeasureRequest, result: MeasuredTuneResult
) -> None:
    path = run.folder / "plan.json"
    done = run(*words(request_, "--json", "--out", str(path)))
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["best"]["plan"]["label"] == result.chosen.plan.label
    assert answer["chosen"]["measured_ms"] == to_json(result.chosen.measured_ms)
    assert answer["baseline"]["measured_ms"] == to_json(result.baseline.measured_ms)
    assert len(answer["measured"]) == answer["evaluations"] == 3
    assert load_plan(path).plan == result.chosen.plan


def test_the_table(result: MeasuredTuneResult, capsys: pytest.CaptureFixture[str]) -> None:
    show.tables(result)
    out = capsys.readouterr().out
    for text in ("measured", "predicted", "chosen", "megatron", "every plan", result.evidence):
        assert text in out


def test_the_frame(result: MeasuredTuneResult) -> None:
    frame = result.to_frame()
    assert len(frame) == len(result.measured)
    assert frame["speedup"].is_monotonic_decreasing
    assert frame["measured_ms"][0] == result.chosen.measured_ms
    assert frame["chosen"].tolist() == [True, False, False]
    assert (frame["speedup_low"] <= frame["speedup_high"]).all()


def test_a_plan_that_ran_out_of_memory_is_told_and_not_run_again(
    request_: MeasureRequest, result: MeasuredTuneResult, tmp_path: Path
) -> None:
    lost = result.measured[-1].plan
    asked = copied(request_, tmp_path, lines=3)
    record = LaunchRecord(
        kind="evaluation",
        runs=(
            launches(asked)[0].runs[0],
            PlanRun(plan=lost, makespans_ns=(), peak_bytes=None, failed="out of memory"),
        ),
    )
    write_down(asked, record)
    found = tune_measured(asked.but(trials=3))
    assert isinstance(found, MeasuredTuneResult)
    assert found.new_runs == 0
    assert found.infeasible["memory"] == 1
    failed = next(one for one in found.measured if one.plan == lost)
    assert (failed.failed, failed.speedup) == ("out of memory", None)
    assert found.chosen.plan != lost


def test_a_baseline_that_ran_out_of_memory_is_an_answer_and_no_evidence(
    request_: MeasureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may be free next time: records of an earlier version are skipped, too."""
    asked = request_.but(evidence=str(tmp_path / "evidence.jsonl"), trials=1)
    with monkeypatch.context() as patched:
        patched.setattr(plan_runs, "JOB", "tests.support.rank_jobs:validate_without_memory")
        with pytest.raises(InfeasiblePlanError, match="baseline cannot run") as caught:
            tune_measured(asked)
    assert caught.value.reason == "memory"
    assert launches(asked) == []
    failed = PlanRun(plan=BASELINE, makespans_ns=(), peak_bytes=None, failed="out of memory")
    write_down(asked, LaunchRecord(kind="evaluation", runs=(failed,)))
    found = tune_measured(asked)
    assert isinstance(found, MeasuredTuneResult)
    assert (found.new_runs, found.chosen.plan) == (1, BASELINE)


def test_evidence_of_plans_that_the_target_cannot_run_is_passed_over(
    request_: MeasureRequest, result: MeasuredTuneResult, tmp_path: Path
) -> None:
    asked = copied(request_, tmp_path)
    baseline = launches(asked)[0].runs[0]
    fast = tuple(time_ns // 2 for time_ns in baseline.makespans_ns)
    outside = PlanRun(plan=FOUR, makespans_ns=fast, peak_bytes=1)
    write_down(asked, LaunchRecord(kind="evaluation", runs=(baseline, outside)))
    found = tune_measured(asked)
    assert isinstance(found, MeasuredTuneResult)
    assert found.new_runs == 0
    assert found.chosen.plan == result.chosen.plan
    assert FOUR not in [one.plan for one in found.measured]


def test_the_comparison_is_told(result: MeasuredTuneResult, request_: MeasureRequest) -> None:
    compared = [one for one in launches(request_) if one.kind == "comparison"]
    assert result.comparisons == len(compared)
    assert any(one.compared for one in result.measured) == bool(compared)


class TestRefused:
    def test_evidence_of_another_question(
        self, run: Runner, request_: MeasureRequest, result: MeasuredTuneResult
    ) -> None:
        text = run.refused(*words(request_.but(micro_batch_size=2)))
        assert "workload.micro_batch_size: there 4, asked 2" in text

    def test_evidence_of_another_profile(
        self, run: Runner, request_: MeasureRequest, result: MeasuredTuneResult
    ) -> None:
        text = run.refused(*words(request_.but(profile="h100-dgx", force=True)))
        assert "profile.name: there 'here', asked 'h100-dgx'" in text

    def test_a_profile_of_another_machine(self, run: Runner, request_: MeasureRequest) -> None:
        text = run.refused(*words(request_.but(profile="h100-dgx")))
        assert "gpu: profiled H100 SXM 80 GB" in text
        assert "--force" in text

    def test_cta_counts_over_gloo(
        self, run: Runner, request_: MeasureRequest, tmp_path: Path
    ) -> None:
        """The profile has CTA counts, so its plans cannot be run."""
        few = Collective("all_reduce", 1 << 20, 1, 2, 4)
        profile = add_message(
            load_profile(str(request_.profile)),
            {"kind": "collective", "signature": list(few), "median_us": 9.0, "spread_us": 0.1,
             "samples": 3},
        )  # fmt: skip
        save_profile(profile, tmp_path / "counted.json")
        text = run.refused(*words(request_.but(profile=str(tmp_path / "counted.json"))))
        assert "comm_ctas = 4 is a number of NCCL CTAs, which gloo does not have" in text

    def test_attention_dropout(self, run: Runner, request_: MeasureRequest) -> None:
        text = run.refused(*words(request_), "--set", "attention_dropout=0.1")
        assert "attention_dropout = 0.1, which real ranks do not run" in text
        assert "--set attention_dropout=0" in text

    def test_missing_cuda_before_another_machine(
        self, run: Runner, request_: MeasureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        text = run.refused(*words(request_.but(backend="nccl")))
        assert "torch sees no CUDA device" in text

    def test_measuring_thousands(self, run: Runner, request_: MeasureRequest) -> None:
        asked = request_.but(search="exhaustive", target=None, evidence=None)
        assert "--trials" in run.refused(*words(asked))

    def test_under_a_launcher(
        self, request_: MeasureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("RANK", "WORLD_SIZE"):
            monkeypatch.setenv(name, "1")
        with pytest.raises(InputError, match="torchrun"):
            tune_measured(request_)
