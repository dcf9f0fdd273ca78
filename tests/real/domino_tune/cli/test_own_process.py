"""Commands in processes of their own: exit codes, a reader that goes away, what is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("numpy", "pandas", "pydantic", "simpy", "skopt", "sklearn", "matplotlib", "torch")


def test_bad_input() -> None:
    command = [sys.executable, "-m", "domino_tune", "simulate", "--model", "gpt3-13b"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Missing --profile")
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away() -> None:
    """`domino_tune models --json | head -1` is no error."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "domino_tune", "models", "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_small_questions_import_nothing_heavy(asked: str) -> None:
    code = (
        f"import sys; from domino_tune.cli.commands import main; rc = main(['{asked}']);"
        f"print(rc, [m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "0 ['pydantic']"  # requests are its classes


def test_the_package_alone_imports_nothing_heavy() -> None:
    code = f"import domino_tune, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_simulation_imports_neither_reports_nor_what_measures() -> None:
    unused = (
        "domino_tune.measure", "domino_tune.report", "domino_tune.runtime",
        "domino_tune.verbs.tune", "domino_tune.verbs.whatif", "pandas", "scipy", "sklearn",
    )  # fmt: skip
    words = [
        "simulate", "--model", "llama2-7b", "--profile", "h100-dgx", "--tp", "8",
        "--seq-length", "1024", "--micro-batch-size", "2", "--json",
    ]  # fmt: skip
    code = (
        f"import sys; from domino_tune.cli.commands import main; rc = main({words!r});"
        f"print(rc, [m for m in {unused!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "0 []"


def test_pandas_comes_with_the_first_frame() -> None:
    code = (
        "import sys; from domino_tune import simulate;"
        "found = simulate(model='gpt3-1.3b', profile='h100-dgx', tp=2, seq_length=256,"
        " micro_batch_size=2); found._repr_html_(); print('pandas' in sys.modules);"
        "found.to_frame(); print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"
