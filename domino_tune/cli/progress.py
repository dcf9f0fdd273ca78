"""Progress of long commands: a status line on a terminal, else a line now and then on stderr."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from domino_tune.base.errors import printable
from domino_tune.base.progress import Progress
from domino_tune.base.tables import print_line

EVERY_S: Final = 8.0
"""From line to line, so that one comes in every ten seconds; a command that ends sooner prints
none."""


class Lines:
    """The last message and when a line was printed; ``tick`` prints one that is due."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._began = clock()
        self._due = self._began + EVERY_S
        self._message = "started"

    def __call__(self, message: str) -> None:
        """Keep the message; print it where a line is due."""
        self._message = message
        self.tick()

    def tick(self) -> None:
        """Print the last message if a line is due."""
        now = self._clock()
        if now >= self._due:
            self._due = now + EVERY_S
            self._write(f"{now - self._began:,.0f} s: {printable(self._message)}")


@contextmanager
def progress() -> Iterator[Progress]:
    """Show a status line where stderr is a terminal, else a line at least every ten seconds."""
    if not sys.stderr.isatty():
        with _ticking(Lines(lambda text: print_line(text, sys.stderr), time.monotonic)) as lines:
            yield lines
        return
    from rich.console import Console

    with Console(stderr=True).status("searching") as status:
        yield lambda message: status.update(printable(message))


@contextmanager
def _ticking(lines: Lines) -> Iterator[Lines]:
    """Tick every second, by a timer of the system: a thread would keep ``base.cores`` from copying
    this process. Without such a timer lines are printed as messages come."""
    alone = threading.current_thread() is threading.main_thread()
    if not (alone and hasattr(signal, "setitimer")):
        yield lines
        return

    def tick(number: int, frame: object) -> None:
        with suppress(RuntimeError):  # it came while another line was being printed
            lines.tick()

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
    try:
        yield lines
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def still_progress() -> Iterator[Progress]:
    """Show a status line without a spinner, which would slow ranks that are timed."""
    if not sys.stderr.isatty():
        yield Lines(lambda text: print_line(text, sys.stderr), time.monotonic)
        return
    clear, width = "\r\x1b[K", shutil.get_terminal_size().columns - 1

    def update(message: str) -> None:
        print(f"{clear}{printable(message)[:width]}", end="", file=sys.stderr, flush=True)

    try:
        yield update
    finally:
        print(clear, end="", file=sys.stderr, flush=True)
