"""calibrate: from measured runs to a profile that others can use, and what it refuses."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

import domino_tune
from domino_tune import CalibrateResult, InputError, calibrate, simulate
from domino_tune.requests import CalibrateRequest, SimulateRequest
from domino_tune.requests.options import request_from_text
from domino_tune.results import to_json
from domino_tune.store.files import bundled_names
from domino_tune.store.formats.megatron_log import read_megatron_log
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.verbs.calibrate import calibrate as calibrate_verb
from domino_tune.verbs.resolve import plan_of, resolve
from simulator.draws import PARTS, Draw
from simulator.dtypes import MS_PER_NS
from simulator.predict import predict
from tests.support.runs import Done, Runner
from tests.unit.domino_tune.store.formats.test_megatron_log import GPT, log

LAYERS: Final = "num_hidden_layers=2"
TRUTH: Final = {"gemm": 1.1, "pointwise": 1.2}
CONSTANT_MS: Final = 0.3
SHARED: Final = {
    "model": "gpt3-6.7b", "overrides": LAYERS, "seq_length": "2048", "cuda_graph": "yes",
}  # fmt: skip
COLUMNS: Final = ("label", "tp", "pp", "micro_batch_size", "grad_accumulation", "strategy")
RUNS: Final = tuple(
    dict(zip(COLUMNS, cells, strict=True))
    for cells in (
        ("tp 8", "8", "", "4", "", ""),
        ("tp 4", "4", "", "2", "2", ""),
        ("tp 2, pp 2", "2", "2", "1", "4", "megatron"),
        ("userbuffers", "8", "", "2", "", "userbuffers"),
    )
)
ASKED: Final = (
    "--model", "gpt3-6.7b", "--set", LAYERS, "--seq-length", "2048", "--cuda-graph", "--tp", "4",
    "--micro-batch-size", "4",
)  # fmt: skip


def measured(options: dict[str, str]) -> str:
    """What a run takes on a machine that is off by ``TRUTH``, in ms."""
    usual = {"strategy": "megatron", "profile": "h100-dgx"}
    given = {name: cell for name, cell in options.items() if cell and name != "label"}
    request = request_from_text(SimulateRequest, {**usual, **given})
    case = resolve(request)
    there = case.drawn(Draw(factors={one: TRUTH[part] for part in TRUTH for one in PARTS[part]}))
    time_ns = predict(there, plan_of(request, None, case)).makespan_ns
    return f"{time_ns * MS_PER_NS + CONSTANT_MS:.4f}"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    found = []
    for run in RUNS:
        options = {**SHARED, **run}
        found.append({**options, "measured_ms": measured(options)})
    return found


def written(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", newline="") as file:
        file.write("# Runs of a test.\n")
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture
def table(tmp_path: Path, rows: list[dict[str, str]]) -> str:
    return written(tmp_path / "runs.csv", rows)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A profile without a law of power, which is quicker to fit."""
    path = tmp_path_factory.mktemp("profiles") / "plain.json"
    save_profile(replace(load_profile("h100-dgx"), name="plain", power=None), path)
    return str(path)


def command(profile: str, *runs: str, name: str = "mine") -> tuple[str, ...]:
    return ("calibrate", "--profile", profile, *runs, "--name", name)


def answered(done: Done) -> Any:
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_calibrated_profile_is_used_like_any_other(run: Runner, plain: str, table: str) -> None:
    told = answered(run(*command(plain, "--runs", table, "--json")))
    assert told["path"] == str(run.folder / "home" / "profiles" / "mine.json")
    assert [one["label"] for one in told["runs"]] == [one["label"] for one in RUNS]
    assert told["after_error"] < 0.01 < 0.05 < told["before_error"]
    assert told["left_out_error"] < told["before_error"]
    assert told["warnings"] == []

    profile = load_profile("mine")
    assert profile.calibration is not None
    assert profile.calibration.base == "plain"
    assert profile.calibration.runs == len(RUNS)
    assert profile.calibration.provenance.source == "4 measured iterations: runs.csv"
    assert replace(profile, name="plain", calibration=None) == load_profile(plain)
    assert {one.part: one.factor for one in profile.calibration.parts} == {
        one["part"]: pytest.approx(one["factor"], abs=1e-6) for one in told["parts"]
    }

    before, after = (
        answered(run("simulate", "--profile", name, *ASKED, "--json")) for name in (plain, "mine")
    )
    assert after["iteration_ms"] > 1.04 * before["iteration_ms"]
    widths = [
        (one["interval_ms"]["high"] - one["interval_ms"]["low"]) / one["iteration_ms"]
        for one in (before, after)
    ]
    assert widths[1] < 0.9 * widths[0]
    assert after["warnings"][0] == "Profile mine is plain, calibrated to 4 measured iterations."
    assert not any("calibrated" in text for text in before["warnings"])
    assert after["verdict"]["contestants"][0]["speedup"] == 1.0


def test_the_answer_shows_runs_and_parts_and_is_the_same_again(
    run: Runner, plain: str, table: str
) -> None:
    done = run(*command(plain, "--runs", table))
    assert done.code == 0
    for text in ("tp 2, pp 2", "gemm", "pointwise", "What 4 runs told; profile mine is calibrated"):
        assert text in done.out
    assert "Mean error: " in done.out
    assert "mine.json" in done.out.replace("\n", "")
    made = load_profile("mine")
    assert run(*command(plain, "--runs", table)) == done
    assert load_profile("mine") == made
    said = run.refused(*command("mine", "--runs", table, name="again"))
    assert "Profile 'mine' is calibrated already; start from plain" in said


def test_a_table_may_name_the_profile_that_it_was_measured_on(
    run: Runner, plain: str, rows: list[dict[str, str]]
) -> None:
    named = [{**row, "--profile": plain} for row in rows[:2]]
    assert run(*command(plain, "--runs", written(run.folder / "a.csv", named))).code == 0
    other = [{**row, "--profile": "h200-sxm"} for row in rows[:2]]
    said = run.refused(*command(plain, "--runs", written(run.folder / "b.csv", other)))
    assert "tp 8: it is of profile 'h200-sxm'; calibrate one at a time" in said


def test_logs_of_megatron_count_as_runs(
    run: Runner, plain: str, rows: list[dict[str, str]]
) -> None:
    paths = []
    for number, size in enumerate((1, 2)):
        text = log({**GPT, "num_layers": 2, "micro_batch_size": size}, times=(1.0,))
        options = read_megatron_log(text, "a log").options
        time_ms = round(float(measured(options)), 1)
        path = run.folder / f"run-{number}.log"
        path.write_text(
            log({**GPT, "num_layers": 2, "micro_batch_size": size}, times=(99.0, 50.0, time_ms))
        )
        paths += ["--megatron-log", str(path)]
    told = answered(run(*command(plain, *paths, "--json")))
    assert [one["label"] for one in told["runs"]] == ["run-0.log", "run-1.log"]
    assert told["after_error"] < 0.02 < told["before_error"]
    made = load_profile("mine").calibration
    assert made is not None
    assert made.provenance.source == "2 measured iterations: run-0.log, run-1.log"


def test_a_factor_beyond_the_profiles_errors_is_told(
    run: Runner, plain: str, rows: list[dict[str, str]]
) -> None:
    """Twice the time of everything is more than any error of GEMMs allows."""
    slow = [{**row, "measured_ms": str(2.2 * float(row["measured_ms"]))} for row in rows]
    done = run(*command(plain, "--runs", written(run.folder / "runs.csv", slow)))
    assert done.code == 0
    assert "warning: The factor of " in done.err
    assert "hardly explains: measure that part of the profile again" in done.err


@pytest.mark.parametrize("name", bundled_names())
def test_bundled_names_are_refused(run: Runner, plain: str, table: str, name: str) -> None:
    said = run.refused(*command(plain, "--runs", table, name=name))
    assert f"{name!r} is the name of a bundled profile" in said


@pytest.mark.parametrize("name", ["../mine", "a b", "x" * 65, "", "/tmp/mine"])
def test_names_that_are_none_are_refused_before_the_fit(
    run: Runner, plain: str, table: str, name: str
) -> None:
    run.refused(*command(plain, "--runs", table, f"--name={name}")[:-2])
    assert run.files() == {"tiny.json", "runs.csv"}


def test_a_measured_profile_is_not_lost(run: Runner, plain: str, table: str, home: Path) -> None:
    own = home / "profiles" / "own.json"
    save_profile(replace(load_profile("h100-dgx"), name="own"), own)
    kept = own.read_bytes()
    said = run.refused(*command(plain, "--runs", table, name="own"))
    assert "'own' is a profile of yours that is not calibrated" in said
    said = run.refused(*command("own", "--runs", table, name="own"))
    assert "'own' is the profile to start from" in said
    assert own.read_bytes() == kept
    assert run(*command("own", "--runs", table)).code == 0


@pytest.mark.parametrize("label", ["tp 4", ""])
def test_a_run_that_contradicts_the_others_is_named(
    run: Runner, plain: str, rows: list[dict[str, str]], label: str
) -> None:
    wrong = [dict(row) for row in rows]
    wrong[1] |= {"measured_ms": str(4 * float(rows[1]["measured_ms"])), "label": label}
    said = run.refused(*command(plain, "--runs", written(run.folder / "runs.csv", wrong)))
    assert "The runs contradict each other: with the factors that explain them best, " in said
    assert f"best, {label or 'run 2'} is predicted -" in said
    assert not (run.folder / "home" / "profiles" / "mine.json").exists()


def test_a_contradiction_is_found_among_runs_of_one_name(
    run: Runner, plain: str, rows: list[dict[str, str]]
) -> None:
    wrong = [{**row, "label": "same"} for row in rows]
    wrong[0]["measured_ms"] = str(4 * float(rows[0]["measured_ms"]))
    said = run.refused(*command(plain, "--runs", written(run.folder / "runs.csv", wrong)))
    assert "contradict each other" in said


def test_fewer_than_two_runs_are_refused(
    run: Runner, plain: str, rows: list[dict[str, str]]
) -> None:
    assert "There are 0 runs; give two or more by --runs" in run.refused(*command(plain))
    one = written(run.folder / "runs.csv", rows[:1])
    assert "There are 1 runs; give two or more" in run.refused(*command(plain, "--runs", one))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"micro_batchsize": "2"}, "tp 8: Unknown column 'micro_batchsize'. Did you mean"),
        ({"tp": "eight"}, "tp 8: --tp must be a whole number, got 'eight'"),
        ({"tp": "3"}, "tp 8: "),
        ({"measured_ms": "soon"}, "Run 1 of "),
        ({"model": "gpt3-6.8b"}, "tp 8: Unknown model 'gpt3-6.8b'. Did you mean 'gpt3-6.7b'?"),
        ({"model": ""}, "tp 8: Missing --model"),
        ({"strategy": "megatorn"}, "Did you mean 'megatron'?"),
        (
            {"strategy": "domino", "micro_batch_size": "1", "row_slices": "2"},
            "tp 8: row_slices = 2 needs",
        ),
        ({"plan": "plan.json"}, "tp 8: it gives a plan file; give the plan's options instead"),
        ({"--tp": "8"}, "tp 8: tp has two columns; keep one of them"),
    ],
)
def test_bad_runs_are_refused_by_their_label(
    run: Runner, plain: str, rows: list[dict[str, str]], changes: dict[str, str], said: str
) -> None:
    wrong = [{**dict.fromkeys(changes, ""), **row} for row in rows[:2]]
    wrong[0] |= changes
    assert said in run.refused(*command(plain, "--runs", written(run.folder / "runs.csv", wrong)))


def test_a_table_without_times_is_refused(
    run: Runner, plain: str, rows: list[dict[str, str]]
) -> None:
    untimed = [{k: v for k, v in row.items() if k != "measured_ms"} for row in rows]
    said = run.refused(*command(plain, "--runs", written(run.folder / "runs.csv", untimed)))
    assert "has no column measured_ms" in said
    assert "does not exist" in run.refused(*command(plain, "--runs", "nowhere.csv"))


def test_a_log_that_is_none_is_refused(run: Runner, plain: str, table: str) -> None:
    for text in ("", "elapsed time per iteration (ms): 5.0", log({**GPT, "world_size": "some"})):
        path = run.folder / "bad.log"
        path.write_text(text)
        said = run.refused(*command(plain, "--runs", table, "--megatron-log", str(path)))
        assert "bad.log" in said


def test_a_home_that_cannot_be_written_is_told_before_the_fit(
    run: Runner, plain: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.folder / "file").write_text("")
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(run.folder / "file"))
    assert "$DOMINO_TUNE_HOME" in run.refused(*command(plain, "--runs", table))


def test_python_has_the_verb_too(home: Path, plain: str, table: str) -> None:
    lines: list[str] = []
    given = load_profile(plain)
    found = calibrate(profile=given, runs=Path(table), name="mine", progress=lines.append)
    assert isinstance(found, CalibrateResult)
    assert lines == ["4 runs"]
    assert list(found.to_frame()["label"]) == [one["label"] for one in RUNS]
    asked = CalibrateRequest(profile=plain, runs=table, name="mine")
    assert to_json(calibrate_verb(asked)) == to_json(found)
    small: dict[str, Any] = {"tp": 8, "seq_length": 2048, "micro_batch_size": 2}
    there = simulate(model="gpt3-6.7b", profile="mine", overrides=(LAYERS,), **small)
    assert there.profile == found.profile
    assert found.path is not None
    assert Path(found.path) == home / "profiles" / "mine.json"


def test_python_names_arguments(home: Path, plain: str, table: str) -> None:
    with pytest.raises(InputError, match="by runs or megatron_log"):
        calibrate(profile=plain, name="mine")
    with pytest.raises(TypeError, match="Did you mean 'runs'"):
        calibrate(profile=load_profile(plain), run=table, name="mine")
    assert not home.exists()
    assert "calibrate" in dir(domino_tune)
