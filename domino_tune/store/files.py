"""Read JSON files strictly, write files whole or not at all, and find profiles' files by name."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from simulator.errors import DominoTuneError, InputError

MAX_JSON_BYTES = 64 << 20
MAX_TEXT_BYTES = 64 << 20
STALE_S = 60
"""Age in seconds above which a temporary file was left by a writer that was killed."""


def home_dir() -> Path:
    """Return ``$DOMINO_TUNE_HOME``, or ``~/.domino_tune``; it need not exist."""
    chosen = os.environ.get("DOMINO_TUNE_HOME")
    return Path(chosen) if chosen else Path.home() / ".domino_tune"


def user_profiles_dir() -> Path:
    """Return the folder of the user's profiles, ``$DOMINO_TUNE_HOME/profiles``."""
    return home_dir() / "profiles"


def bundled_names() -> list[str]:
    """Return the names of the profiles that come with the program."""
    files = [entry.name for entry in resources.files("profiles").iterdir()]
    return sorted(n[:-5] for n in files if n.endswith(".json") and n != "schema.json")


def bundled_bytes(name: str) -> bytes:
    """Return the file of a bundled profile; ``name`` is one of ``bundled_names``."""
    return resources.files("profiles").joinpath(f"{name}.json").read_bytes()


def user_names() -> list[str]:
    """Return the names of the user's own profiles."""
    folder = user_profiles_dir()
    return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []


def write_whole(path: str | Path, data: str | bytes) -> None:
    """Write ``data`` to a temporary file next to the target of ``path``, sync it, rename it.

    Symbolic links stay and their target is replaced. An existing file keeps its mode, a new one
    follows the umask. Raise InputError if ``check_writable`` does or if writing fails; then no file
    changes.
    """
    check_writable(path)
    content = data.encode() if isinstance(data, str) else data
    target = Path(os.path.realpath(path))
    temporary = _beside(target, f"{secrets.token_hex(6)}.tmp")
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException as failure:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(failure, OSError):
            raise _cannot_write(path, failure) from None
        raise


def _beside(target: Path, ending: str) -> Path:
    """Return the path of a hidden file in the same folder.

    Shorten the name, so that a name as long as the file system allows leaves room for the rest.
    """
    return target.parent / f".{target.name[:32]}.{ending}"


def make_folder(path: str | Path, instead: str) -> None:
    """Make a folder and its parents. Raise InputError, which says what to do ``instead``."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"Cannot make the folder {str(path)!r}: {error.strerror}; {instead}."
        ) from None


@contextlib.contextmanager
def only_user(path: str | Path, instead: str) -> Iterator[None]:
    """Lock ``path`` against other callers of this function, in any process, while the block runs.

    Remove the temporary files that killed writers left next to it. Raise InputError, which says
    what to do ``instead``, if another process holds the lock.
    """
    target = Path(os.path.realpath(path))
    with open(_beside(target, "lock"), "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{str(path)!r} is in use by another run; {instead}.") from None
        except OSError:  # this file system has no locks: continue without one
            pass
        for stale in target.parent.glob(_beside(target, "?" * 12 + ".tmp").name):
            with contextlib.suppress(OSError):
                if time.time() - stale.stat().st_mtime > STALE_S:
                    stale.unlink()
        yield


def check_writable(path: str | Path) -> None:
    """Raise InputError if ``path`` cannot be written, before a long computation starts.

    Only a regular file may be replaced: no device, pipe, folder or read-only file.
    """
    text = f"Cannot write {str(path)!r}"
    try:
        target = Path(os.path.realpath(path))
        mode = _mode(target)
        parent_mode = _mode(target.parent)
    except (OSError, ValueError) as failure:
        raise _cannot_write(path, failure) from None
    folder = repr(str(target.parent))
    if mode is not None and stat.S_ISDIR(mode):
        raise InputError(f"{text}: it is a folder; give a file name.")
    if mode is not None and not stat.S_ISREG(mode):
        raise InputError(
            f"{text}: it is no regular file but a device, pipe or socket; give a file name."
        )
    # Root may write any file, but the mode bits still say what the owner wants.
    if mode is not None and not (mode & 0o222 and os.access(target, os.W_OK)):
        raise InputError(f"{text}: it is read-only; make it writable or give another name.")
    if parent_mode is None or not stat.S_ISDIR(parent_mode):
        raise InputError(f"{text}: there is no folder {folder}; make it first.")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{text}: no permission in folder {folder}; choose another place.")


def _mode(path: Path) -> int | None:
    """Return kind and permissions of the file at ``path``, or None if it does not exist."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_bytes(path: str | Path) -> bytes:
    """Return a table's bytes; stop one byte above the limit, since a device may never end.

    Raise InputError if the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"File {str(path)!r} does not exist; check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"File {str(path)!r} cannot be read: {reason}.") from None


def read_text(path: str | Path) -> str:
    """Return a text file. Raise InputError if it cannot be read, is too long, or is not UTF-8."""
    data = read_bytes(path)
    if len(data) > MAX_TEXT_BYTES:
        raise InputError(
            f"File {str(path)!r} has more than {MAX_TEXT_BYTES >> 20} MiB; give a shorter one."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"File {str(path)!r} is not text in UTF-8; save it as such.") from None


def read_json(path: str | Path, *, what: str, error: type[DominoTuneError]) -> dict[str, Any]:
    """Return the JSON object in file ``path``; ``what`` names the kind of file in messages.

    Skip a byte-order mark. Raise ``error`` if the file is missing, truncated, not regular or larger
    than ``MAX_JSON_BYTES``, and for NaN, infinity and a key that occurs twice.
    """
    source = f"{what} {str(path)!r}"
    try:
        found = Path(path).stat()
        if not stat.S_ISREG(found.st_mode):  # a device or pipe may never end
            raise error(f"{source} is no regular file; give a file that holds JSON.")
        if found.st_size > MAX_JSON_BYTES:
            raise error(f"{source} is larger than {MAX_JSON_BYTES >> 20} MiB, so it is none.")
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise error(f"{source} does not exist; check the path.") from None
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise error(f"{source} cannot be read: {reason}.") from None
    return parse_json(data, source=source, error=error)


def parse_json(data: bytes, *, source: str, error: type[DominoTuneError]) -> dict[str, Any]:
    """Return the JSON object in ``data``, as strictly as ``read_json``. Raise ``error``."""

    def refuse(text: str) -> NoReturn:
        raise error(f"{source} holds {text}; every number must be finite.")

    def finite(text: str) -> float:
        value = float(text)
        return value if abs(value) != float("inf") else refuse(text)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key, value in pairs:
            if key in content:
                raise error(f"{source}: key {key!r} stands twice in one object; keep one.")
            content[key] = value
        return content

    try:
        content = json.loads(
            data.decode("utf-8-sig"), object_pairs_hook=unique, parse_constant=refuse,
            parse_float=finite,
        )  # fmt: skip
    except DominoTuneError:
        raise
    except RecursionError:
        raise error(f"{source} is nested too deeply to be one.") from None
    except ValueError as failure:
        raise error(f"{source} is not whole JSON ({failure}); is it truncated?") from None
    if not isinstance(content, dict):
        raise error(f"{source} must be one JSON object, got {type(content).__name__}.")
    return content


def _cannot_write(path: str | Path, error: OSError | ValueError) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"Cannot write {str(path)!r}: {reason}; choose another place.")
