"""``profile`` as a user types it, and every verb on what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from domino_tune.cli.commands import main
from domino_tune.measure.machine import machine_of, this_machine
from domino_tune.requests import ProfileRequest
from domino_tune.store.files import only_user
from domino_tune.store.plans import load_plan
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.store.shelf import dump_model
from simulator.build import build_schedule
from simulator.cost import CostModel
from simulator.op_table import listing_of
from simulator.profile import Profile
from tests.conftest import REPOSITORY
from tests.support.probing import TINY

pytestmark = pytest.mark.usefixtures("needs_torch")

JOB = ("--tp", "2", "--seq-length", "16", "--micro-batch-size", "2")
FEW = ("--samples", "3")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's home, with a model file and the profile ``here`` that real ranks measured."""
    home = tmp_path_factory.mktemp("home")
    (home / "tiny.json").write_text(dump_model(TINY))
    known = os.environ.get("DOMINO_TUNE_HOME")
    os.environ["DOMINO_TUNE_HOME"] = str(home)
    try:
        assert main(("profile", "--name", "here", *for_model(home), *JOB, *FEW)) == 0
    finally:
        os.environ.pop("DOMINO_TUNE_HOME")
        if known is not None:
            os.environ["DOMINO_TUNE_HOME"] = known
    return home


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(home))
    return home


def for_model(home: Path) -> tuple[str, ...]:
    return ("--for-model", str(home / "tiny.json"))


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(arguments) == code
    return capsys.readouterr()


def test_a_complete_profile_says_so_and_starts_no_ranks(
    at_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("domino_tune.measure.profiling.run_job")
    command = ("profile", "--name", "here", *for_model(at_home), *JOB, *FEW)
    before = (at_home / "profiles" / "here.json").read_bytes()
    out, _ = said(capsys, *command, "--json")
    result = json.loads(out)
    assert result["complete"] is True
    assert result["seconds"] == 0
    assert result["resume"] is None
    assert result["left"] == 0
    assert result["path"] == str(at_home / "profiles" / "here.json")
    assert result["profile"]["content_id"] == load_profile("here").content_id
    rows = {item["section"]: item["rows"] for item in result["sections"]}
    assert rows["gemm"] > 30
    assert rows["contention"] is None  # a fit, no rows
    assert (at_home / "profiles" / "here.json").read_bytes() == before
    out, _ = said(capsys, *command)
    assert "Complete: nothing was left to measure" in out


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize(
    ("search", "optimality"),
    [(("--search", "random", "--trials", "20"), "best_found"), ((), "proven")],
    ids=["random", "exhaustive"],
)
def test_every_verb_takes_the_profile(
    at_home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, search: tuple[str, ...],
    optimality: str,
) -> None:  # fmt: skip
    plan = str(tmp_path / "plan.json")
    assert "measured" in said(capsys, "profiles", "show", "here")[0]
    assert "rows left out" in said(capsys, "profiles", "check", "here")[0]
    assert "here" in said(capsys, "profiles", "list")[0]
    tuned = json.loads(
        said(
            capsys, "tune", "--model", str(at_home / "tiny.json"), "--profile", "here", *JOB,
            "--dtype", "fp32", "--out", plan, "--json", *search,
        )[0]
    )  # fmt: skip
    assert tuned["optimality"] == optimality
    shares = tuned["best"]["confidence_shares"]
    # Every look-up is of a measured row; only what contention adds is a law's.
    assert set(shares) <= {"measured", "fitted"}
    assert shares["measured"] > 0
    made, cost = load_plan(plan), CostModel(load_profile(at_home / "profiles" / "here.json"))
    schedule = build_schedule(made.model, made.workload, made.cluster, made.plan, made.order)
    sources = {cost.estimate(one.signature).source for one in listing_of(schedule).played}
    assert sources == {"measured"}
    simulated = json.loads(said(capsys, "simulate", "--plan", plan, "--json")[0])
    assert simulated["iteration_ms"] == pytest.approx(made.predicted.iteration_ms, abs=1e-6)
    doubled = said(capsys, "whatif", "--plan", plan, "--change", "link_bandwidth=2x", "--json")[0]
    assert json.loads(doubled)["points"][0]["error"] is None


def test_the_next_run_measures_only_what_is_new(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A longer batch shares most with what is known. The limit of time, of which the output tells
    what is left, is one that no machine reaches."""
    (at_home / "profiles" / "grown.json").write_bytes(
        (at_home / "profiles" / "here.json").read_bytes()
    )
    more = (*JOB[:-1], "3")
    out, err = said(
        capsys, "profile", "--name", "grown", *for_model(at_home), *more, *FEW, "--minutes", "60",
        "--json",
    )  # fmt: skip
    result = json.loads(out)
    assert result["complete"] is True
    gemm = next(item for item in result["sections"] if item["section"] == "gemm")
    assert 0 < gemm["new"] < gemm["rows"]
    assert "starting 2 ranks" in err
    assert " left" in err


def test_a_profile_of_another_machine_is_refused_naming_what_differs(
    at_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = load_profile("here")
    other = replace(known.machine, gpu="Another", details={**known.machine.details, "cores": "96"})
    path = at_home / "profiles" / "other.json"
    save_profile(replace(known, name="other", machine=other), path)
    command = ("profile", "--name", "other", *for_model(at_home), *JOB, *FEW)
    monkeypatch.delattr("domino_tune.measure.profiling.run_job")
    _, err = said(capsys, *command, code=2)
    assert "gpu: profiled Another, here" in err
    assert "cores: profiled 96" in err
    assert "--force" in err
    assert "kernel" not in err
    out, _ = said(capsys, *command, "--force", "--json")
    assert json.loads(out)["complete"] is True


def test_a_forced_profile_says_so(at_home: Path) -> None:
    from domino_tune.verbs.profile import resolve_task

    machine = this_machine(5, "gloo", {})
    path = at_home / "profiles" / "forced.json"
    save_profile(Profile(name="forced", created="2026-11-20", machine=machine), path)
    request = ProfileRequest(
        name="forced", tp=2, for_model=str(at_home / "tiny.json"), seq_length=16,
        micro_batch_size=2, force=True,
    )  # fmt: skip
    forced = resolve_task(request).profile
    assert "ranks on a node: profiled 5, here 2" in forced.machine.details["forced"]
    assert forced.machine.gpus_per_node == 2
    save_profile(forced, path)
    again = resolve_task(request.but(force=False)).profile
    assert again.machine == forced.machine


def test_a_profile_in_use_is_left_alone(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("profile", "--name", "here", *for_model(at_home), *JOB, *FEW)
    with only_user(at_home / "profiles" / "here.json", "wait"):
        _, err = said(capsys, *command, code=2)
    assert "in use by another run; wait for it to end, or give another --name" in err
    said(capsys, *command)


def test_a_home_that_cannot_be_made_is_said(
    at_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (at_home / "file").write_text("")
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(at_home / "file"))
    _, err = said(capsys, "profile", "--name", "new", "--tp", "2", code=2)
    assert "Cannot make the folder" in err
    assert "DOMINO_TUNE_HOME" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--for-model", "gpt3-13b"), "--for-model needs --seq-length and --micro-batch-size"),
        (("--for-model", "gpt3-13b", "--seq-length", "8"), "needs --micro-batch-size too"),
        (("--seq-length", "8"), "--seq-length cannot be used without --for-model"),
        (("--set", "num_hidden_layers=1"), "--set cannot be used without --for-model"),
        (("--for-model", "gpt4", "--seq-length", "8", "--micro-batch-size", "1"), "Unknown model"),
        (("--nproc-per-node", "3"), "--nproc-per-node 3 does not fit tp × dp"),
        (("--backend", "nccl"), "CUDA"),
        (("--emulate-link", "fast"), "--emulate-link cannot be 'fast'"),
        (("--backend", "nccl", "--emulate-link", "1gbit"), "--emulate-link with --backend gloo"),
        (
            ("--for-model", "gpt3-13b", "--seq-length", "8", "--micro-batch-size", "1"),
            "has attention_dropout = 0.1, which real ranks do not run",
        ),
        (("--minutes", "0"), "--minutes must be a whole number"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_rank_starts(
    at_home: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], text: str
) -> None:
    if arguments == ("--backend", "nccl"):
        import torch

        if torch.cuda.is_available():
            pytest.skip("no GPU must be here for this")
    out, err = said(capsys, "profile", "--name", "new", "--tp", "2", *arguments, code=2)
    assert out == ""
    assert text in err
    assert not (at_home / "profiles" / "new.json").exists()


@pytest.mark.parametrize(
    ("memory_gib", "fits"),
    [(12, "--micro-batch-size 32 it"), (6, "--micro-batch-size 4 it")],
)
def test_what_needs_too_much_memory_is_refused_with_the_largest_job_that_fits(
    at_home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    memory_gib: int,
    fits: str,
) -> None:
    monkeypatch.setattr(
        "domino_tune.verbs.profile.machine_of",
        lambda spec: replace(machine_of(spec), gpu_memory_gib=memory_gib),
    )
    asked = ("--for-model", "llama2-7b", "--seq-length", "512", "--micro-batch-size", "32768")
    _, err = said(capsys, "profile", "--name", "new", "--tp", "2", *asked, code=2)
    assert f" GiB a rank, and a rank has {memory_gib:.1f} GiB; with {fits}" in err
    assert not (at_home / "profiles" / "new.json").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h100-dgx", "is the name of a bundled profile"),
        ("../escape", "must be 1–64 letters"),
        ("", "must be a text of 1 to 256 characters"),
    ],
)
def test_names_that_cannot_be(
    at_home: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    assert text in said(capsys, "profile", "--name", name, "--tp", "2", code=2)[1]


def test_a_damaged_file_is_not_overwritten(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = at_home / "profiles" / "damaged.json"
    path.write_text("{")
    _, err = said(capsys, "profile", "--name", "damaged", "--tp", "2", code=2)
    assert "Remove the file, or give another --name" in err
    assert path.read_text() == "{"


def test_under_torchrun_rank_0_alone_answers(at_home: Path) -> None:
    words = ["--name", "torchrun", *for_model(at_home), *JOB, *FEW]
    for word in ("Complete, in", "nothing was left to measure"):
        done = subprocess.run(
            [
                sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                "-m", "domino_tune", "profile", *words,
            ],
            capture_output=True, text=True, check=False, cwd=REPOSITORY,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("section") == 1
        assert word in done.stdout
