"""The house: few entries, short chains of imports, no circle, and a request's way goes down."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from domino_tune.requests import TuneRequest
from domino_tune.verbs.tune import tune
from tests.conftest import REPOSITORY
from tests.unit.house.imports import longest_chain, modules, rooms
from tests.unit.house.way import Step, room, walked

MOST_ENTRIES = 14
LONGEST_CHAIN = 11
MOST_FILES = 21
"""Five more since a tune also answers for rivals (their plans, the verdict), for what would fit,
and for the frameworks that cannot run the best plan: DeepSpeed's export says which layouts it runs.
"""
PROGRESS = ("cli/show.py", "base/progress.py")
"""Where progress is printed, or not: the only files that are called from below."""
REPORTS = ("verbs/tune.py", "report")
"""The verb's own line about a trial, which it hands to the search as progress."""
REQUEST = TuneRequest(
    model="llama2-7b", profile="h100-dgx", tp=8, seq_length=1024, micro_batch_size=2
)


def layers() -> dict[str, int]:
    """Height of each package of domino_tune, 0 for the lowest, as import-linter enforces it."""
    text = (REPOSITORY / "pyproject.toml").read_text("utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    order = next(c["layers"] for c in contracts if c.get("containers") == ["domino_tune"])
    return {
        name: height for height, layer in enumerate(reversed(order)) for name in layer.split(" | ")
    }


def test_domino_tune_has_few_entries() -> None:
    home = REPOSITORY / "domino_tune"
    entries = {path.name for path in home.iterdir()} - {"py.typed", "__pycache__"}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)
    assert {name.removesuffix(".py") for name in entries} - {"__init__"} == set(layers())


def test_the_longest_chain_of_imports_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    chain = longest_chain(rooms())  # raises CycleError for a circle
    with capsys.disabled():
        print(f"\n{len(chain)} rooms: {' > '.join(chain)}")
    assert len(chain) <= LONGEST_CHAIN


def test_every_package_says_what_it_is() -> None:
    """Each package's docstring says what it is and what it may import."""
    home, heights = REPOSITORY / "domino_tune", layers()
    for package in sorted(path for path in home.iterdir() if (path / "__init__.py").exists()):
        doc = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
        assert "May import" in doc, package.name
        assert package.name in heights


def test_tests_mirror_the_tree() -> None:
    """Each folder of tests stands for one of ours; its own helpers aside."""
    ours = {path.parent.relative_to(REPOSITORY) for path in modules().values()}
    for ring in ("unit", "real", "long"):
        for part in ("api", "lab", "domino_tune", "simulator"):
            for test in (REPOSITORY / "tests" / ring / part).rglob("test_*.py"):
                tested = test.parent.relative_to(REPOSITORY / "tests" / ring)
                if tested != Path("api/hostile"):
                    assert tested in ours, tested


def is_progress(step: Step) -> bool:
    """Whether a step only reports how far the request is."""
    return step.callee in PROGRESS or (step.callee, step.function) == REPORTS


def climbs(steps: list[Step]) -> list[Step]:
    """Calls that enter a higher package than their caller's, progress left out."""
    heights = layers()
    return [
        step
        for step in steps
        if step.caller
        and heights[room(step.callee)] > heights[room(step.caller)]
        and not is_progress(step)
    ]


def listed(steps: list[Step]) -> str:
    return "\n".join(f"  {s.caller or '(start)'} -> {s.callee}: {s.function}" for s in steps)


def test_the_way_of_a_tune_goes_down(capsys: pytest.CaptureFixture[str]) -> None:
    steps = walked(lambda: tune(REQUEST))
    files = {step.callee for step in steps if not is_progress(step)}
    with capsys.disabled():
        print(f"\nThe way of a tune, {len(files)} files:\n{listed(steps)}")
    assert not climbs(steps), listed(climbs(steps))
    assert len(files) <= MOST_FILES
