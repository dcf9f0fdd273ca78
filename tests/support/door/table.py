"""The door's table: every request that is refused, or odd, by its name, with its answer."""

from __future__ import annotations

from functools import cache

from tests.support.door import measurements, questions, texts, wire
from tests.support.door.made import Case


@cache
def table() -> dict[str, Case]:
    """All of it."""
    groups = [
        wire.not_http(), wire.places(), wire.parameters(), wire.callers(), wire.sizes_and_kinds(),
        texts.not_json(), texts.numbers(), texts.strict(), texts.structures(),
        questions.tunes(), questions.plans(), questions.searches(), questions.models_and_labels(),
        measurements.profiles(), measurements.imports(), measurements.calibrations(), wire.late(),
    ]  # fmt: skip
    made = {name: case for group in groups for name, case in group.items()}
    assert len(made) == sum(map(len, groups)), "a name stands twice"
    return made
