"""Job files, `--set`, and what is said where an option is no option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domino_tune.cli.asking import ASKED, NAMES, asked, instead
from domino_tune.cli.commands import VERBS, Verb, main
from domino_tune.requests import QUESTIONS, SimulateRequest
from domino_tune.requests.options import option_of
from domino_tune.requests.outputs import Asking
from domino_tune.requests.problems import in_typed_words
from domino_tune.store.formats.job_file import read_job, write_job
from simulator.errors import InputError
from tests.support.runs import Runner

JOB = """\
model: llama2-7b  # the shape
tp: 8
sequence_parallel: no
power_cap: 500
dp:
num_hidden_layers: 4
nccl_algo: ring
overrides: [vocab_size=1000]
"""


def of(text: str, tmp_path: Path, *settings: str, **typed: Any) -> SimulateRequest:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return asked(SimulateRequest, typed, Asking(job=str(path), settings=settings))


def test_a_job_file_reaches_request_implementation_and_model(tmp_path: Path) -> None:
    assert of(JOB, tmp_path) == SimulateRequest(
        model="llama2-7b", tp=8, sequence_parallel=False, power_cap="500",
        overrides=("num_hidden_layers=4", "vocab_size=1000"),
        implementation_set=("nccl_algo=ring",),
    )  # fmt: skip


def test_options_beat_settings_which_beat_the_file(tmp_path: Path) -> None:
    found = of(JOB, tmp_path, "tp=4", "grad-dtype=bf16", "n_layer=2", model="llama3-8b")
    assert (found.tp, found.grad_dtype, found.model) == (4, "bf16", "llama3-8b")
    assert found.overrides == ("num_hidden_layers=4", "vocab_size=1000", "n_layer=2")


@pytest.mark.parametrize("verb", QUESTIONS)
def test_what_is_written_is_read_again(verb: str, tmp_path: Path) -> None:
    special: dict[str, dict[str, Any]] = {
        "scale": {"gpus": (8, 16), "recompute": "full", "power_cap": "no"},
        "validate": {"plan": ("a.json", "b.json")},
        "profile": {"name": "here", "tp": 2},
        "calibrate": {"name": "mine", "profile": "h100-dgx", "runs": "ü: x.csv"},
    }
    usual = {"tp": 8, "overrides": ("n_layer=2",), "cuda_graph": True}
    request = QUESTIONS[verb](**special.get(verb, usual))
    write_job(tmp_path / "job.yaml", verb, request)
    assert asked(QUESTIONS[verb], {}, Asking(job=str(tmp_path / "job.yaml"))) == request


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("micro_batch: 4", "Unknown key 'micro_batch'. Did you mean 'micro_batch_size'?"),
        ("nccl_alg: ring", "Did you mean 'nccl_algo'?"),
        ("trials: 4", "Unknown key 'trials'"),
        ("tp: eight", "--tp must be a whole number, got 'eight'"),
        ("tp: {a: 1}", "tp must be a text or a list of texts"),
        ("- tp", "is no list of keys and values"),
        ("", "is no list of keys and values"),
        ("tp: [", "is not valid YAML at line 1"),
    ],
)
def test_faults_of_a_file(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        of(text, tmp_path)
    assert said in str(refused.value)


def test_an_answer_leaves_its_question(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    first = run("simulate", *run.workload, "--set", "merge_wgrad=true", "--save-job", str(path))
    assert first.code == 0, first.err
    assert path.read_text().startswith(f"# Ask again: domino-tune simulate --job {path}\n")
    assert dict(read_job(path))["merge_wgrad"] == "true"
    assert run("simulate", "--job", str(path)).out == first.out


def test_names_in_a_job_file_are_as_they_were_given(tmp_path: Path) -> None:
    write_job(tmp_path / "job.yaml", "simulate", SimulateRequest(model="modèle.json"))
    assert "model: modèle.json" in (tmp_path / "job.yaml").read_text("utf-8")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_field_without_an_option_is_set(verb: Verb) -> None:
    for name in verb.request.model_fields:
        flag = f"--{name.replace('_', '-')}"
        said = instead(verb.name, verb.request, flag)
        assert bool(said) == option_of(verb.request, name).rare
        assert not said or f"{flag} is not an option; write --set " in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tune --gpus 8", "`layout --gpus N --global-batch-size B` finds the best layout"),
        ("tune --sweep gpus=8,16", "`scale --gpus A,B,C --global-batch-size B`"),
        ("tune --objective measure", "`measure` finds the plan that runs fastest"),
        ("simulate --grad-dtype bf16", "--set grad_dtype=VALUE, or grad_dtype in a job file"),
        ("simulate --no-overlap-p2p", "--set overlap_p2p=false"),
        ("layout --implementation-set tf32=true", "--set KEY=VALUE"),
        ("plan show --gpus 8", "No such option: --gpus"),
    ],
)
def test_what_is_said_instead(run: Runner, words: str, said: str) -> None:
    assert said in run.refused(*words.split())


def test_errors_say_how_a_rare_field_is_typed(run: Runner) -> None:
    said = run.refused("simulate", *run.workload, "--set", "recompute_layers=1")
    assert "--set recompute_layers needs --recompute" in said
    assert in_typed_words("use --cp 4, or --cp-comm p2p and --recompute-layers 2") == (
        "use --cp 4, or --set cp_comm=p2p and --set recompute_layers=2"
    )


# Completion ---------------------------------------------------------------------------------------
# What shells ask, by their own protocol, and what they are answered.

BUNDLED = ["a100-sxm", "b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72", "h100-dgx", "h200-sxm"]
Ask = Callable[[str], list[str]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ask:
    """Ask as bash does when Tab is pressed after a text."""
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path))
    monkeypatch.setenv(ASKED, "complete_bash")

    def answer(typed: str) -> list[str]:
        words = typed.split(" ")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        assert main([]) == 0
        return capsys.readouterr().out.split()

    return answer


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("domino-tune t", ["tune", "tokens"]),
        ("domino-tune profiles ", ["list", "show", "check", "import", "diff"]),
        (
            "domino-tune tune --se",
            ["--seq-length", "--sequence-parallel", "--seed", "--search", "--set", "--server"],
        ),
        ("domino-tune simulate --model llama3", ["llama3-405b", "llama3-70b", "llama3-8b"]),
        ("domino-tune tune --profile ", BUNDLED),
        ("domino-tune simulate --tp 8 --dtype bf", ["bf16"]),
        ("domino-tune tune --search ", ["exhaustive", "bayes", "random"]),
        ("domino-tune profiles diff h100-dgx h2", ["h200-sxm"]),
        ("domino-tune profiles import --into a", ["a100-sxm"]),
        ("domino-tune plan export plan.json --to m", ["megatron", "megatron-bridge"]),
    ],
)
def test_bash_gets_commands_options_choices_and_names(
    ask: Ask, typed: str, answer: list[str]
) -> None:
    assert ask(typed) == answer


@pytest.mark.parametrize(
    "typed",
    ["plan show pl", "simulate --model ./mo", "simulate --tp ", "plans sh", "profile li"],
)
def test_without_an_answer_the_shell_completes_files(ask: Ask, typed: str) -> None:
    assert ask(f"domino-tune {typed}") == []


def test_an_unknown_command_is_no_error_yet(ask: Ask) -> None:
    assert ask("domino-tune no-such-command ") == ask("domino-tune ")


def test_profiles_of_the_user_are_names_too(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "here.json").write_text("{}")
    assert ask("domino-tune tune --profile h") == ["h100-dgx", "h200-sxm", "here"]


def test_every_field_that_takes_a_name_of_something_completes_it() -> None:
    named = {
        name
        for verb in VERBS
        for name in verb.request.model_fields
        if option_of(verb.request, name).metavar in ("NAME|FILE", "PROFILE")
    }
    assert named == set(NAMES)


def test_zsh_and_fish_get_the_help_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "domino-tune simulate --row")
    monkeypatch.setenv(ASKED, "complete_zsh")
    assert main([]) == 0
    assert '"--row-slices":"Row slices of the micro-batch (default 2)."' in capsys.readouterr().out
    monkeypatch.setenv(ASKED, "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert main([]) == 0
    assert capsys.readouterr().out == "--row-slices\tRow slices of the micro-batch (default 2).\n"


@pytest.mark.parametrize(("typed", "code"), [("simulate --model ", 0), ("plan show ", 1)])
def test_fish_is_told_whether_files_are_wanted(
    monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    monkeypatch.setenv(ASKED, "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "is-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"domino-tune {typed}")
    assert main([]) == code
