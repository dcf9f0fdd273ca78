"""Areas of the code that get faults, and the tests that should notice them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

AREAS: Final[dict[str, tuple[str, ...]]] = {
    "simulator": ("simulator",),
    "search": ("domino_tune/search",),
    "formats": ("domino_tune/store/formats",),
    "service": ("domino_tune/service", "api"),
    "runtime": ("domino_tune/runtime",),
}
"""Folders of the code, by area."""
MUTATED: Final = tuple(folder for folders in AREAS.values() for folder in folders)

TESTS: Final[dict[str, tuple[str, ...]]] = {
    "simulator": ("simulator", "contracts"),
    "search": ("domino_tune/search",),
    "formats": ("domino_tune/store/formats",),
    "service": (
        "domino_tune/service", "api", "domino_tune/client", "domino_tune/cli/test_serve.py",
        "domino_tune/cli/test_tokens.py",
    ),
    "runtime": (
        "domino_tune/runtime", "domino_tune/verbs/test_profile.py",
        "domino_tune/verbs/test_validate*.py",
    ),
}  # fmt: skip
"""Folders and files of the tests that should notice an area's faults, in each ring."""
RINGS: Final = ("unit", "real")
"""Folders of tests/ that are looked through. Tests in others run too long, or elsewhere."""
ALL_CASES: Final = ("simulator", "search", "formats")
"""Areas whose tests run with all cases; of the others these would take too long."""

GPU_FILES: Final = (
    "domino_tune/runtime/graphs.py", "domino_tune/runtime/head_start.py",
    "domino_tune/runtime/lanes/kernels.py", "domino_tune/runtime/lanes/launch_edges.py",
    "domino_tune/runtime/lanes/streams.py",
)  # fmt: skip
"""Files that get no fault: streams, graphs and a kernel that reads a GPU's clock do nothing without
one."""


def area_of(path: str) -> str:
    """Return the area of a file of MUTATED."""
    return next(
        area
        for area, folders in AREAS.items()
        if any(Path(path).is_relative_to(folder) for folder in folders)
    )


def sources(root: Path) -> dict[str, str]:
    """Return the text of each file that may get a fault, by its path under ``root``."""
    files = (path for folder in MUTATED for path in sorted((root / folder).rglob("*.py")))
    texts = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in files}
    return {path: text for path, text in texts.items() if path not in GPU_FILES}


def area_tests(root: Path, area: str) -> list[str]:
    """Return the paths of an area's test files under ``root``."""
    places = [place for part in TESTS[area] for place in test_folders(root, part)]
    files = {file for place in places for file in _test_files(place)}
    return sorted(file.relative_to(root).as_posix() for file in files)


def test_folders(root: Path, part: str) -> list[Path]:
    """Return what ``part``, a folder or a pattern of files, is in each ring that has it."""
    return [place for ring in RINGS for place in sorted((root / "tests" / ring).glob(part))]


def _test_files(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from place.rglob("test_*.py")
    else:
        yield place
