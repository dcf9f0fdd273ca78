"""Files are replaced whole, and only where a file may stand; only files are read."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from domino_tune.store.files import (
    STALE_S,
    check_writable,
    make_folder,
    only_user,
    read_json,
    write_whole,
)
from simulator.errors import InputError


@pytest.fixture
def umask() -> Iterator[None]:
    """A umask that is nobody's default."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def refused(path: Path) -> str:
    """The message that checking and writing both refuse ``path`` with."""
    with pytest.raises(InputError) as checked:
        check_writable(path)
    with pytest.raises(InputError) as written:
        write_whole(path, "new")
    assert str(written.value) == str(checked.value)
    return str(checked.value)


@pytest.mark.usefixtures("umask")
def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    write_whole(tmp_path / "new", "text")
    assert mode(tmp_path / "new") == 0o640
    assert (tmp_path / "new").read_text() == "text"


@pytest.mark.usefixtures("umask")
def test_an_old_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_text("old")
    path.chmod(0o606)
    write_whole(path, b"new")
    assert (mode(path), path.read_text()) == (0o606, "new")
    assert os.listdir(tmp_path) == ["old"]


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    assert "no regular file" in refused(tmp_path / "pipe")
    assert "no regular file" in refused(tmp_path / "link")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("old", "missing"):
        (tmp_path / name).symlink_to(Path("folder") / name)
    (tmp_path / "folder" / "old").write_text("old")
    for name in ("old", "missing"):
        write_whole(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "folder" / name).read_text() == "new"


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "symbolic links" in refused(tmp_path / "a")


def test_a_read_only_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_text("old")
    path.chmod(0o444)
    assert "read-only" in refused(path)
    assert (mode(path), path.read_text()) == (0o444, "old")


def test_names_too_long_and_just_short_enough(tmp_path: Path) -> None:
    assert "too long" in refused(tmp_path / ("x" * 300))
    write_whole(tmp_path / ("x" * 255), "text")
    assert os.listdir(tmp_path) == ["x" * 255]


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "no folder" in refused(tmp_path / "file" / "below")


def test_a_name_no_file_can_have() -> None:
    assert "null" in refused(Path("a\0b"))


def test_json_is_read_from_regular_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for place in (tmp_path / "link", tmp_path):
        with pytest.raises(InputError, match="no regular file"):
            read_json(place, what="Model file", error=InputError)


def test_json_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(tmp_path / "a.json", what="Model file", error=InputError) == {"a": 1}


def test_a_file_has_one_user_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    with only_user(path, "wait"):
        with only_user(tmp_path / "other.json", "wait"):
            pass
        with (
            pytest.raises(InputError, match="in use by another run; wait"),
            only_user(path, "wait"),
        ):
            pass
        write_whole(path, "{}")
    with only_user(path, "wait"):
        assert path.read_text() == "{}"


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 20 + ".json")
    stale, young = (tmp_path / f".{path.name[:32]}.{digit * 12}.tmp" for digit in "01")
    others = tmp_path / ".other.json.000000000000.tmp"
    for file in (stale, young, others):
        file.write_text("half")
    for file in (stale, others):
        os.utime(file, (time.time() - 2 * STALE_S,) * 2)
    with only_user(path, "wait"):
        assert not stale.exists()
        assert young.exists()
        assert others.exists()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b", "try elsewhere")
    make_folder(tmp_path / "a" / "b", "try elsewhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"Cannot make the folder .*file/c.*; try elsewhere\."):
        make_folder(tmp_path / "file" / "c", "try elsewhere")
