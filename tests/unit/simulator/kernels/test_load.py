"""Compiled code: where it lies, when it is compiled again, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.kernels import CompiledEntry, load

COMPILED = {"play_program": CompiledEntry("symbol", b"code")}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Times of compiling, which takes seconds and is left out."""
    times: list[str] = []

    def compile_kernels(why: str) -> dict[str, CompiledEntry]:
        times.append(why)
        return COMPILED

    monkeypatch.setattr(load, "_compile", compile_kernels)
    return times


def test_code_is_kept_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    monkeypatch.setenv(load.FOLDER_VARIABLE, str(tmp_path / "kernels"))
    assert load._compiled() == load._compiled() == COMPILED
    assert compiled == [""]


def test_a_changed_kernel_never_meets_old_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    """Also one in another file than its caller's."""
    monkeypatch.setenv(load.FOLDER_VARIABLE, str(tmp_path))
    load._compiled()
    read = Path.read_text
    for changed in ("player.py", "clocks.py", "load.py"):

        def read_changed(path: Path, encoding: str, changed: str = changed) -> str:
            return read(path, encoding) + "# changed" * (path.name == changed)

        monkeypatch.setattr(Path, "read_text", read_changed)
        load._compiled()
    assert len(compiled) == 4


def test_without_a_place_to_write_it_is_compiled_in_memory_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(load.FOLDER_VARIABLE, str(tmp_path / "file"))
    assert load._compiled() == COMPILED
    assert "cannot be kept" in compiled[0]
    assert load.FOLDER_VARIABLE in compiled[0]


def test_code_that_is_there_needs_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    """Images bring it along, and their file system may be read-only."""
    monkeypatch.setenv(load.FOLDER_VARIABLE, str(tmp_path))
    load._compiled()
    monkeypatch.setattr(load, "_locked", None)
    assert load._compiled() == COMPILED


def test_the_folder_is_that_of_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(load.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load.kernels_folder() == tmp_path / "domino_tune" / "kernels"
