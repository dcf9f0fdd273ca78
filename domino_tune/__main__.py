"""``python -m domino_tune``, and the ``domino-tune`` command."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import FrameType

OUR_PACKAGES = ("simulator", "profiles", "api")
INTERRUPTED = 130  # as in domino_tune.base.errors, which is not imported yet when this is needed
STRICT = ("strict", "surrogateescape")


def foreign_packages(home: Path) -> dict[str, str]:
    """Return where each of our packages comes from that does not lie in ``home``.

    Their names are common ones, and Python looks in the current folder first under ``python -m``:
    a stranger's ``simulator.py`` there must not run in place of ours.
    """
    from importlib.util import find_spec
    from pathlib import Path

    foreign = {}
    for name in OUR_PACKAGES:
        spec = find_spec(name)
        places = list(spec.submodule_search_locations or [spec.origin or ""]) if spec else []
        if [Path(place).resolve() for place in places] != [home / name]:
            foreign[name] = ", ".join(places) or "nowhere"
    return foreign


def ready_streams() -> None:
    """Make stdout and stderr usable, whatever they are.

    A character that stdout's encoding lacks becomes ``?``. A closed stdout (None in Python) becomes
    one where every write fails, so that a lost result is noticed; a closed stderr swallows.
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

    2 when a package of ours would be imported from somewhere else, 130 when interrupted. This is
    a process's last act: from its end on interrupts are ignored, where they were not already.
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
        # Libraries turn an interrupt of their import into errors of all kinds.
        if not interrupts:
            raise
        print("error: interrupted.", file=sys.stderr)
        code = INTERRUPTED
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    if interrupts and code == INTERRUPTED:
        # Python would end by the signal, not by this code, had it struck within exec(): dataclasses
        # and namedtuples are made so.
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)
    return code


def run(argv: Sequence[str] | None) -> int:
    """Check where our packages come from, then run the command line."""
    from pathlib import Path

    home = Path(__file__).resolve().parent.parent
    foreign = foreign_packages(home)
    if foreign:
        for name, place in foreign.items():
            print(f"error: package {name!r} comes from {place}, not from {home}.", file=sys.stderr)
        print(
            "Something there has the name of a part of domino_tune. Run the `domino-tune` command, "
            "or `python -P -m domino_tune`, or start from another folder, or take that place off "
            "PYTHONPATH.",
            file=sys.stderr,
        )
        return 2
    from domino_tune.cli.commands import main as run_cli

    return run_cli(argv)


if __name__ == "__main__":
    sys.exit(main())
