"""A SQLite database that was cut anywhere opens whole, or is refused; never half."""

from __future__ import annotations

from pathlib import Path

import pytest

from domino_tune.base.errors import StorageError
from domino_tune.service.sql.database import open_database
from tests.unit.domino_tune.service import cut
from tests.unit.domino_tune.service.cut import Crashed


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    return cut.crash(tmp_path_factory.mktemp("crashed"))


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "domino_tune.service.sql.database.TRUNCATION_CHECKS", 1
    )  # no other process is at work


def test_a_cut_log_keeps_what_was_acknowledged_before_the_cut(
    crashed: Crashed, tmp_path: Path
) -> None:
    outcome = cut.cut_log(crashed, tmp_path / "cut")
    assert (outcome.damaged, outcome.lost, outcome.refused) == ([], [], 0)
    assert outcome.opened > 30


def test_a_cut_database_is_refused(crashed: Crashed, tmp_path: Path) -> None:
    outcome = cut.cut_database(crashed, tmp_path / "cut")
    assert (outcome.damaged, outcome.lost) == ([], [])
    assert outcome.refused > 20


def test_a_checkpoint_that_was_killed_is_done_again(crashed: Crashed, tmp_path: Path) -> None:
    outcome = cut.kill_checkpoint(crashed, tmp_path / "cut")
    assert (outcome.damaged, outcome.lost, outcome.refused) == ([], [], 0)
    assert outcome.opened > 20


def test_a_cut_database_without_a_log_is_refused(crashed: Crashed, tmp_path: Path) -> None:
    outcome = cut.cut_closed(crashed, tmp_path / "cut")
    assert (outcome.damaged, outcome.lost, outcome.opened) == ([], [], 0)
    assert outcome.refused > 40


def test_a_refused_database_stays_as_it_is(crashed: Crashed, tmp_path: Path) -> None:
    file = cut.lay(tmp_path / "cut", b"", crashed.log)
    with pytest.raises(StorageError, match="Restore it with its -wal file"):
        open_database(f"sqlite:///{file}")
    assert file.read_bytes() == b""
    assert Path(f"{file}-wal").read_bytes() == crashed.log
