"""One writer at a time, who tidies up behind killed ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from domino_tune.store.files import make_folder
from domino_tune.store.lock import only_writer
from simulator.errors import InputError

HOLDER = """
import sys
from pathlib import Path
from domino_tune.store.lock import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_writer_is_told_and_a_killed_one_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "profiles" / "here.json"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        told = r"here\.json' is being written by another run; wait"
        with pytest.raises(InputError, match=told), only_writer(path):
            pass
        holder.kill()
    with only_writer(path):
        pass


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    left = tmp_path / ".here.json.0123456789ab.tmp"
    others = [tmp_path / ".there.json.0123456789ab.tmp", tmp_path / "here.json.tmp", path]
    for file in (left, *others):
        file.write_text("{")
    with only_writer(path):
        assert not left.exists()
    assert all(file.exists() for file in others)


def test_a_folder_that_cannot_be_made_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "profiles", tmp_path / "file", Path("/proc/none/profiles")):
        with pytest.raises(InputError, match=r"Cannot make folder .* set DOMINO_TUNE_HOME"):
            make_folder(folder)
