"""Completion: what shells ask, by their own protocol, and what they are answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from domino_tune.cli.commands import VERBS, main
from domino_tune.cli.completion import ASKED, NAMES
from domino_tune.requests.options import option_of

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
