"""Fixtures of the program's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.domino_tune.runs import Runner


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Runner:
    """The command line, with a user's home of its own."""
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path / "home"))
    return Runner(capsys, tmp_path)


@pytest.fixture(scope="session")
def needs_torch() -> None:
    """Skip without torch, which collection does not import."""
    pytest.importorskip("torch")
