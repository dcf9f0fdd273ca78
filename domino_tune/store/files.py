"""Files read strictly and written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from simulator.errors import DominoTuneError, InputError

MAX_JSON_BYTES = 64 << 20


def write_whole(path: str | Path, data: str | bytes) -> None:
    """Write ``data`` to a temporary file beside ``path``, fsync it, rename it.

    Raises InputError when the place cannot be written; then nothing is left behind.
    """
    target = Path(path)
    content = data.encode() if isinstance(data, str) else data
    try:
        handle, temporary = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"
        )
    except OSError as error:
        raise _cannot_write(target, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException as failure:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(failure, OSError):
            raise _cannot_write(target, failure) from None
        raise


def check_writable(path: str | Path) -> None:
    """Raise InputError now, rather than after a long computation, if ``path`` cannot be written."""
    target = Path(path)
    if target.is_dir():
        raise InputError(f"Cannot write {str(path)!r}: it is a folder; give a file name.")
    if not target.parent.is_dir():
        raise InputError(
            f"Cannot write {str(path)!r}: there is no folder {str(target.parent)!r}; make it first."
        )
    if not os.access(target.parent, os.W_OK):
        raise InputError(
            f"Cannot write {str(path)!r}: no permission in folder {str(target.parent)!r}; "
            "choose another place."
        )


def read_json(path: str | Path, *, what: str, error: type[DominoTuneError]) -> dict[str, Any]:
    """The JSON object in file ``path``; ``what`` names the kind of file in messages.

    Raises ``error`` for a missing, truncated or doubtful file: NaN, infinity and keys that stand
    twice are refused.
    """
    source = f"{what} {str(path)!r}"
    try:
        if Path(path).stat().st_size > MAX_JSON_BYTES:
            raise error(f"{source} is larger than {MAX_JSON_BYTES >> 20} MiB, so it is none.")
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise error(f"{source} does not exist; check the path.") from None
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise error(f"{source} cannot be read: {reason}.") from None
    return parse_json(data, source=source, error=error)


def parse_json(data: bytes, *, source: str, error: type[DominoTuneError]) -> dict[str, Any]:
    """The JSON object in ``data``, as strictly as ``read_json``."""

    def refuse(text: str) -> NoReturn:
        raise error(f"{source} holds {text}; every number must be finite.")

    def finite(text: str) -> float:
        value = float(text)
        return value if abs(value) != float("inf") else refuse(text)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise error(f"{source}: key {key!r} stands twice in one object; keep one.")
            found[key] = value
        return found

    try:
        plain = json.loads(
            data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse,
            parse_float=finite,
        )  # fmt: skip
    except DominoTuneError:
        raise
    except RecursionError:
        raise error(f"{source} is nested too deeply to be one.") from None
    except ValueError as failure:
        raise error(f"{source} is not whole JSON ({failure}); is it truncated?") from None
    if not isinstance(plain, dict):
        raise error(f"{source} must be one JSON object, got {type(plain).__name__}.")
    return plain


def _cannot_write(target: Path, error: OSError) -> InputError:
    return InputError(f"Cannot write {str(target)!r}: {error.strerror}; choose another place.")
