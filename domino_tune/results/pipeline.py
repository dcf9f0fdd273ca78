"""The pipeline of a result: where each stage's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from domino_tune.base.tables import Table
from domino_tune.results.texts import ms


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage's times in ms. ``layers``: of each of its virtual stages; ``exposed_comm_ms``:
    exposed collectives; ``p2p_wait_ms``: waits for messages; ``bubble_ms``: waits for other stages.
    """

    layers: tuple[int, ...]
    compute_ms: float
    exposed_comm_ms: float
    p2p_wait_ms: float
    bubble_ms: float

    @property
    def waits_ms(self) -> float:
        """All waits for other stages and their messages."""
        return self.p2p_wait_ms + self.bubble_ms


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The chosen plan's pipeline. ``message_mib``, ``message_ms``: size of the message that one
    stage sends the next for a micro-batch, and the longest time of one. ``busiest_stage`` counts
    from 0.
    """

    schedule: str
    busiest_stage: int
    message_mib: float
    message_ms: float
    stages: tuple[Stage, ...]

    @property
    def busiest(self) -> Stage:
        """The stage with the most work, which the table of variants describes."""
        return self.stages[self.busiest_stage]


def stages_table(pipeline: Pipeline, memory_gib: Sequence[float]) -> Table:
    """Return one row per stage of the chosen plan's pipeline."""
    rows = [
        (
            str(number), "+".join(map(str, stage.layers)), ms(stage.compute_ms),
            ms(stage.exposed_comm_ms), ms(stage.p2p_wait_ms), ms(stage.bubble_ms),
            f"{held:.1f} GiB",
        )
        for number, (stage, held) in enumerate(
            zip(pipeline.stages, memory_gib, strict=True)
        )
    ]  # fmt: skip
    return Table(
        title=f"Stages of the chosen plan, {pipeline.schedule}",
        columns=("stage", ">layers", ">compute", ">exposed", ">p2p", ">bubble", ">memory"),
        rows=rows,
        marked=(pipeline.busiest_stage,),
        notes=(
            f"A message is {pipeline.message_mib:.1f} MiB and takes at most "
            f"{pipeline.message_ms:.2f} ms.",
        ),
    )
