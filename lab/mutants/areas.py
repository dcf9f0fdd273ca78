"""Areas of the code that get faults, and the tests that should notice them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

TOLD: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
AREAS: Final[dict[str, list[str]]] = {name: one["code"] for name, one in TOLD["areas"].items()}
TESTS: Final[dict[str, list[str]]] = {name: one["tests"] for name, one in TOLD["areas"].items()}
ALL_CASES: Final = tuple(name for name, one in TOLD["areas"].items() if one["all_cases"])
MUTATED: Final = tuple(folder for folders in AREAS.values() for folder in folders)
EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    (one["path"], one["old"], one["new"]): one["why"] for one in TOLD["equivalent"]
}
"""The reason, by file, line without the fault and line with it."""


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
    return {path: text for path, text in texts.items() if path not in TOLD["gpu_files"]}


def area_tests(root: Path, area: str) -> list[str]:
    """Return the paths of an area's test files under ``root``."""
    places = [place for part in TESTS[area] for place in test_folders(root, part)]
    files = {file for place in places for file in _test_files(place)}
    return sorted(file.relative_to(root).as_posix() for file in files)


def unit_tests(root: Path) -> list[str]:
    """Return the paths of all files of the unit ring under ``root``."""
    files = _test_files(root / "tests/unit")
    return sorted(file.relative_to(root).as_posix() for file in files)


def test_folders(root: Path, part: str) -> list[Path]:
    """Return what ``part``, a folder or a pattern of files, is in each ring that has it."""
    return [place for ring in TOLD["rings"] for place in sorted((root / "tests" / ring).glob(part))]


def _test_files(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from place.rglob("test_*.py")
    else:
        yield place
