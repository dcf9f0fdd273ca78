"""Runs for calibrate: impossible ones are refused, samples of one run count as one, and no profile
that was fitted to them beats its own peak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from domino_tune import calibrate
from domino_tune.requests import SimulateRequest
from domino_tune.requests.options import request_from_text
from domino_tune.search.calibration import MeasuredRun, fit_runs
from domino_tune.store.formats.megatron_log import read_megatron_log
from domino_tune.store.formats.run_table import RunRow, read_runs
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.store.shelf import DISK, Shelf
from domino_tune.verbs.calibrate import (
    asked_in,
    check_possible,
    check_predictable,
    measured,
    merged_samples,
    planned,
)
from domino_tune.verbs.simulate import simulate
from simulator.draws import CalibratedPart, Calibration
from simulator.dtypes import MS_PER_NS
from simulator.errors import InputError
from simulator.lookup import Provenance
from simulator.model_flops import executed_per_gpu, mfu
from simulator.ops import Attention, Gemm
from simulator.predict import predict
from simulator.profile import Profile
from tests.unit.domino_tune.store.formats.test_megatron_log import GPT, log

SEVEN: Final = {
    "model": "llama2-7b", "tp": "1", "dp": "8", "micro_batch_size": "1", "seq_length": "4096",
    "grad_accumulation": "32", "data_parallel": "distributed-optimizer",
}  # fmt: skip
EIGHT: Final = {
    "model": "llama3-8b", "tp": "8", "micro_batch_size": "2", "seq_length": "8192",
    "grad_accumulation": "4",
}  # fmt: skip


def run_of(options: dict[str, str], measured_ms: float, profile: str = "h100-dgx") -> MeasuredRun:
    row = RunRow("mine", options, measured_ms)
    return planned(asked_in(row, profile), DISK)


@pytest.mark.parametrize("check", [check_possible, check_predictable])
@pytest.mark.parametrize(
    ("profile", "possible_ms", "impossible_ms", "said"),
    [
        (
            "a100-sxm",
            23_000.0,
            15_000.0,
            "where A100 SXM 80 GB has 312 in bf16, which take 18,232.7 ms; probably the num",
        ),
        ("h100-dgx", 8_000.0, 4_000.0, "where H100 SXM 80 GB has 989.4 in bf16"),
        ("b200-sxm", 4_000.0, 1_500.0, "has 2,250 in bf16"),
    ],
)
def test_a_run_above_the_peak_is_refused(
    check: Callable[[MeasuredRun], None], profile: str, possible_ms: float, impossible_ms: float,
    said: str,
) -> None:  # fmt: skip
    check(run_of(SEVEN, possible_ms, profile))
    with pytest.raises(InputError, match=r"mine: .* ms would be [0-9,]+ TFLOP/s a GPU, ") as told:
        check(run_of(SEVEN, impossible_ms, profile))
    assert said in str(told.value)


def test_quantized_layers_may_be_faster_than_bf16() -> None:
    """NVFP4 on a GB300 at a quarter of its own peak, which is above that of BF16."""
    asked = {**EIGHT, "model": "llama3-70b", "tp": "2", "pp": "4", "micro_batch_size": "1",
             "grad_accumulation": "32", "fp8_recipe": "nvfp4"}  # fmt: skip
    run = run_of(asked, 5_900.0, "gb300-nvl72")
    assert executed_per_gpu(run.case, round(run.measured_ms / MS_PER_NS)) > 2.5e15
    check_possible(run)
    with pytest.raises(InputError, match=r"has 2,500 in bf16 and 15,000 in nvfp4, which take "):
        check_possible(replace(run, measured_ms=1_000.0))


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(InputError, match="no_comm is a bound, which no job can run"):
        check_possible(run_of({**EIGHT, "strategy": "no_comm"}, 1300.0))


def test_what_is_computed_again_counts() -> None:
    again = {**SEVEN, "recompute": "full"}
    run = run_of(SEVEN, 1.0)
    rate = 1e-12 * 1e9 * (mfu(run.case, 10**12) or 0.0)  # of 1,000 s
    within_ms = 1e6 * rate * 1e3 / 0.9  # nine tenths of the peak
    check_possible(replace(run, measured_ms=within_ms))
    with pytest.raises(InputError, match="TFLOP/s a GPU"):
        check_possible(run_of(again, within_ms))


def test_kernels_skip_the_masked_half() -> None:
    """Llama 3 8B with 131,072 tokens at six tenths of an H100's peak, as kernels run: if all scores
    counted, it would be above the peak.
    """
    asked = {**EIGHT, "model": "llama3-8b", "overrides": "max_position_embeddings=131072",
             "seq_length": "131072", "cp": "8", "micro_batch_size": "1"}  # fmt: skip
    run = run_of(asked, 1.0, "h100-dgx")
    least_ms = 1e3 * executed_per_gpu(run.case, 10**9) / 989.4e12
    check_possible(replace(run, measured_ms=least_ms / 0.65))
    with pytest.raises(InputError, match="TFLOP/s a GPU"):
        check_possible(replace(run, measured_ms=least_ms * 0.99))


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_fp32_may_be_multiplied_in_fewer_bits(dtype: str) -> None:
    """On an A100 the rate is 60 TFLOP/s: three times the peak of its fp32 units."""
    check_possible(run_of({**EIGHT, "model": "gpt3-1.3b", "tp": "4", "dtype": dtype,
                           "seq_length": "2048"}, 600.0, "a100-sxm"))  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "profile"),
    [
        ({"model": "llama3-70b", "micro_batch_size": "4"}, "h100-dgx"),
        ({"model": "llama3-70b"}, "a100-sxm"),
        ({"model": "llama3-405b", "pp": "2"}, "b200-sxm"),
        ({"micro_batch_size": "64"}, "h200-sxm"),
    ],
    ids=str,
)
def test_a_run_that_cannot_fit_is_refused(changes: dict[str, str], profile: str) -> None:
    for check in (check_possible, check_predictable):
        check(run_of(EIGHT, 1e6, profile))
        with pytest.raises(InputError, match=r"mine: it needs [0-9,]+ GiB a GPU, where ") as told:
            check(run_of({**EIGHT, **changes}, 1e6, profile))
        assert "it cannot have run as it is given" in str(told.value)


def test_a_refusal_says_how_a_log_was_read() -> None:
    row = RunRow("mine", {**EIGHT, "model": "llama3-70b"}, 1e6, note="mine: read as another.")
    with pytest.raises(InputError, match=r"leave it out\. mine: read as another\.$"):
        measured(asked_in(row, "h100-dgx"), DISK)


OTHER: Final = run_of({**EIGHT, "tp": "4", "dp": "2"}, 1300.0)


def test_runs_of_one_layout_are_samples_of_one_run() -> None:
    one, two = run_of(EIGHT, 1180.0), run_of({**EIGHT, "strategy": "megatron"}, 1200.0)
    found, notes = merged_samples([one, OTHER, replace(two, label="again", rounding_ms=5.0)])
    assert [(run.label, run.measured_ms, run.rounding_ms) for run in found] == [
        ("mine, again", 1190.0, 5.0), ("mine", 1300.0, 0.0),
    ]  # fmt: skip
    assert notes == (
        "mine, again are of one layout, so they count as 2 samples of one run, 1,190 ms.",
    )


def test_runs_that_differ_stay_apart() -> None:
    changes: list[dict[str, str]] = [
        {"grad_accumulation": "8"}, {"recompute": "full"}, {"implementation": "megatron-2022"},
        {"strategy": "domino"}, {"overrides": "num_hidden_layers=16"}, {"power_cap": "500"},
    ]  # fmt: skip
    runs = [run_of({**EIGHT, **change}, 1e4) for change in changes]
    assert merged_samples(runs) == (runs, ())


@pytest.mark.parametrize(
    "change",
    [
        {"cp_comm": "a2a"}, {"pp_schedule": "gpipe"}, {"overlap_p2p": "true"},
        {"overlap_grad_reduce": "false"}, {"overrides": "norm_eps=1e-6"},
    ],
)  # fmt: skip
def test_runs_that_differ_in_nothing_that_counts_are_one(change: dict[str, str]) -> None:
    """Options of context parallelism, pipelines and replicas that there are none of."""
    runs = [run_of(EIGHT, 1180.0), run_of({**EIGHT, **change}, 1200.0)]
    assert len(merged_samples(runs)[0]) == 2
    with pytest.raises(InputError, match="All runs are predicted to take the same time: mine, m"):
        merged_samples(runs, predicted=True)
    found, notes = merged_samples([*runs, OTHER], predicted=True)
    assert [run.measured_ms for run in found] == [1190.0, 1300.0]
    assert notes[0].startswith("mine, mine are predicted to take the same time, so they count as 2")


def test_one_layout_alone_is_refused() -> None:
    runs = [replace(run_of(EIGHT, 1180.0), label=f"run {number}") for number in range(6)]
    with pytest.raises(InputError, match=r"one layout: run 0, run 1, run 2, run 3 and 2 more\."):
        merged_samples(runs)


def test_samples_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(
        InputError, match="mine, mine are of one layout and contradict each other: "
    ):
        merged_samples([run_of(EIGHT, 1180.0), run_of(EIGHT, 1800.0), OTHER])


def fitted(gemm: float, attention: float = 1.0) -> Profile:
    """Return a profile calibrated with factors that no fit should find."""
    parts = (
        CalibratedPart(part="attention", factor=attention, error=0.05),
        CalibratedPart(part="gemm", factor=gemm, error=0.05),
    )
    provenance = Provenance(kind="fitted", source="a test", error=0.1)
    told = Calibration(parts=parts, constant_ms=0.0, runs=2, base="x", provenance=provenance)
    return replace(load_profile("a100-sxm"), calibration=told)


@pytest.mark.parametrize(
    "options", [SEVEN, {**SEVEN, "tp": "8", "dp": "1"}, {**SEVEN, "seq_length": "32768"}], ids=str
)
def test_no_calibrated_profile_beats_its_peak(options: dict[str, str]) -> None:
    case = replace(run_of(options, 1.0, "a100-sxm").case, profile=fitted(0.01, 0.01))
    peak = 1e12 * case.profile.machine.peak_tflops["bf16"]
    for op in (Gemm(4096, 12288, 4096), Attention(1, 32, 32, 4096, 128)):
        assert case.cost.estimate(op).duration_us * 1e-6 * peak >= (1 - 1e-9) * op.flops
    slow = replace(case, profile=fitted(3.0))
    assert slow.cost.estimate(Gemm(64, 64, 64)).duration_us == pytest.approx(
        3 * load_profile("a100-sxm").gemm_table().estimate(Gemm(64, 64, 64)).duration_us
    )


def test_no_mfu_is_above_one(tmp_path: Path) -> None:
    path = tmp_path / "fast.json"
    save_profile(replace(fitted(0.2, 0.2), name="fast"), path)
    asked = {**SEVEN, "profile": str(path), "strategy": "megatron"}
    found = simulate(request_from_text(SimulateRequest, asked))
    assert found.mfu is None or found.mfu <= 1
    case = run_of(SEVEN, 1.0).case
    assert mfu(case, 10**6) is None


PLAIN: Final = replace(load_profile("h100-dgx"), name="plain", power=None)
ON_PLAIN: Final = Shelf(profile=lambda _: PLAIN)


def predicted_ms(run: MeasuredRun) -> float:
    return predict(run.case, run.plan).makespan_ns * MS_PER_NS


def test_rounding_counts_for_as_little_as_it_tells() -> None:
    """A time that is rounded by a third is explained less well than an exact one."""
    shared = {**EIGHT, "overrides": "num_hidden_layers=2", "cuda_graph": "yes"}
    runs = [
        planned(asked_in(RunRow(tp, {**shared, "tp": tp}, 1e5), "plain"), ON_PLAIN)
        for tp in ("4", "8")
    ]
    four, eight = (replace(run, measured_ms=1.1 * predicted_ms(run)) for run in runs)
    eight = replace(eight, measured_ms=1.2 * eight.measured_ms)
    left = [
        eight.measured_ms - fit_runs([four, replace(eight, rounding_ms=rounding_ms)]).after_ms[1]
        for rounding_ms in (0.0, 0.3 * eight.measured_ms)
    ]
    assert 0 < 1.5 * left[0] < left[1]


def test_a_table_has_rounding_and_notes() -> None:
    table = "label,tp,measured_ms,rounding_ms,note\na,4,6800,50,not looked at: x\nb,8,7000,,\n"
    assert read_runs(table, "t") == [
        RunRow("a", {"tp": "4"}, 6800.0, 50.0, "not looked at: x"),
        RunRow("b", {"tp": "8"}, 7000.0),
    ]
    for wrong in ("-1", "nan", "some", "7000"):
        with pytest.raises(InputError, match="a: rounding_ms must be a number from 0 to measured"):
            read_runs(table.replace(",50,", f",{wrong},"), "t")


def test_the_answer_tells_notes_and_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path / "home"))
    plain = tmp_path / "plain.json"
    save_profile(PLAIN, plain)
    told: dict[str, Any] = {**GPT, "num_layers": 2, "ddp_bucket_size": 40000000}
    paths = []
    for number, (size, off) in enumerate(((1, 1.05), (1, 1.06), (2, 1.05))):
        text = log({**told, "micro_batch_size": size}, times=(1.0,))
        run = asked_in(read_megatron_log(text, "a log"), "plain")
        time_ms = off * predicted_ms(planned(run, ON_PLAIN))
        path = tmp_path / f"run-{number}.log"
        path.write_text(log({**told, "micro_batch_size": size}, times=(99.0, 99.0, time_ms)))
        paths.append(str(path))
    found = calibrate(profile=str(plain), megatron_log=tuple(paths), name="mine")
    assert [run.label for run in found.runs] == ["run-0.log, run-1.log", "run-2.log"]
    assert len(found.notes) == 4
    assert all("ddp_bucket_size = 40000000" in text for text in found.notes[:3])
    assert "are of one layout, so they count as 2 samples of one run, " in found.notes[3]
    assert found.tables()[0].notes == found.notes
