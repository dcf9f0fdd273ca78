"""Published iterations of pipelines beside predictions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import mean, median
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from lab.bench.cases import time_ms
from lab.bench.runs import Run, vtrain_runs
from lab.verdict import at_most, check_table, reported

HOST_MS: Final = 1.6
"""What a layer and micro-batch takes an eager host at least (``scripts/bench runtime``): rows that
are predicted to take less are in the host's hands."""
LARGE: Final = 3072
"""Models of this hidden size and more are large."""
WHY: Final = (
    "What is left is the host. Profiles count one launch of 6 us a kernel, 52 a layer: 0.3 ms, so "
    "no prediction waits for it. The same layer in eager PyTorch launches 110 kernels and takes "
    f"{HOST_MS} ms (`scripts/bench runtime`), and Megatron-DeepSpeed of 2022 took 3.4 ms and more "
    "on its hosts, the same at each tp. Nobody has published what its host spends."
)


class Row(NamedTuple):
    """A run and its prediction in ms."""

    run: Run
    ms: float

    @property
    def error(self) -> float:
        """Relative error of the iteration."""
        return self.run.error(self.ms)

    @property
    def kind(self) -> str:
        """Where the run belongs."""
        case = self.run.case
        layers = case.model.num_hidden_layers / case.cluster.pp
        if self.ms / case.workload.grad_accumulation / layers < HOST_MS:
            return "in the host's hands"
        return "large models" if case.model.hidden_size >= LARGE else "small models"


def vtrain() -> list[Table]:
    """Return vTrain's rows of large models, and the errors of all by kind."""
    rows = [Row(run, time_ms(run.case, run.plan)) for run in vtrain_runs()]
    return [_large(rows), _kinds(rows), _checks(rows)]


def _large(rows: Sequence[Row]) -> Table:
    return Table(
        title="vTrain's runs of large models on A100s, ms; nothing fitted",
        columns=("run, micro-batches", ">measured", ">predicted", ">error"),
        rows=[
            (one.run.label, f"{one.run.measured_ms:,.0f}", f"{one.ms:,.0f}", f"{one.error:+.1%}")
            for one in rows
            if one.run.case.model.hidden_size >= LARGE
        ],
    )


def _kinds(rows: Sequence[Row]) -> Table:
    shown = []
    for kind, group in groupby(sorted(rows, key=lambda one: one.kind), key=lambda one: one.kind):
        errors = [one.error for one in group]
        shown.append((
            kind, str(len(errors)), f"{mean(map(abs, errors)):.1%}", f"{mean(errors):+.1%}",
            f"{median(errors):+.1%}", f"{min(errors):+.1%}", f"{max(errors):+.1%}",
        ))  # fmt: skip
    return Table(
        title="vTrain's runs by what decides them",
        columns=("kind", ">runs", ">mean |error|", ">mean", ">median", ">least", ">most"),
        rows=shown,
        notes=[WHY],
    )


def _checks(rows: Sequence[Row]) -> Table:
    device = [one for one in rows if one.kind != "in the host's hands"]
    return check_table(
        "Pipelines against their limits",
        [
            at_most("vTrain, 107 runs: mean error", 0.18, mean(abs(one.error) for one in rows)),
            reported(
                f"the same of the {len(device)} runs of the device",
                f"{mean(abs(one.error) for one in device):.2%}",
            ),
        ],
    )
