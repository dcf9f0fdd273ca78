"""Run the command line: ``python -m domino_tune`` and the ``domino-tune`` command."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from domino_tune.base.origin import REMEDY, hidden_packages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

INTERRUPTED = 130  # equals domino_tune.base.errors, which may not be imported yet
STRICT = ("strict", "surrogateescape")


def ready_streams() -> None:
    """Make stdout and stderr usable, whatever the caller passed.

    A character that stdout cannot encode becomes ``?``. On a closed stdout (None in Python) every
    write fails, so that a lost result is an error. A closed stderr drops all text.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (stays open)
    if sys.stdout is None:
        read_only = os.open(os.devnull, os.O_RDONLY)
        sys.stdout = open(read_only, "w", encoding="utf-8")  # noqa: SIM115 (stays open)
    elif isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in STRICT:
        sys.stdout.reconfigure(errors="replace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on ``argv`` (default: ``sys.argv[1:]``) and return its exit code.

    Return 2 when one of our packages would be imported from another place, 130 when interrupted.
    Call this last in a process: it leaves SIGINT ignored, unless the caller handles SIGINT.
    """
    ready_streams()
    interrupts: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        code = run(argv)
    except BaseException:
        # Libraries turn an interrupt of their import into other errors.
        if not interrupts:
            raise
        print("error: interrupted.", file=sys.stderr)
        code = INTERRUPTED
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    if interrupts and code == INTERRUPTED:
        # After an interrupt inside exec(), which makes dataclasses and namedtuples, Python exits by
        # the signal and not with this code.
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)
    return code


def run(argv: Sequence[str] | None) -> int:
    """Check where our packages come from, then run the command line."""
    hidden = hidden_packages()
    if hidden:
        for sentence in hidden:
            print(f"error: {sentence}", file=sys.stderr)
        print(f"{REMEDY}, or run the `domino-tune` command.", file=sys.stderr)
        return 2
    from domino_tune.cli.commands import main as run_cli

    return run_cli(argv)


def command() -> NoReturn:
    """Run the command line and end the process, without a last look for cycles among all objects:
    after a search it takes up to a second."""
    code = main()
    from domino_tune.base.memory import freeze  # late: an interrupt of any import is told by main

    freeze()
    sys.exit(code)


if __name__ == "__main__":
    command()
