"""Tasks of tests, small enough to be quick, and what comes of them undisturbed."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from domino_tune.requests import LayoutRequest, ScaleRequest, TuneRequest, WhatIfRequest
from domino_tune.requests.options import Request
from domino_tune.service.work import Outcome, Reporter
from domino_tune.service.work.kinds import run_job
from domino_tune.service.work.task import Task
from domino_tune.store.files import bundled_bytes
from domino_tune.store.shelf import LoadedModel
from tests.support.runs import TINY

WORKLOAD: dict[str, Any] = {
    "model": "tiny", "profile": "h100-dgx", "tp": 2, "seq_length": 256, "micro_batch_size": 2,
    "cuda_graph": True,  # launches of so small a model would hide what cuts differ by
}  # fmt: skip
OF_LAYOUTS = {name: value for name, value in WORKLOAD.items() if name not in ("tp", "micro_batch_size")}  # fmt: skip # noqa: E501
SILENT: Final = Reporter(lambda step: None, lambda: None)
"""A reporter that reports nothing."""


def task(kind: str, request: Request) -> bytes:
    """A task of a tiny model."""
    return Task(
        kind=kind, request=request.model_dump(), models={"tiny": LoadedModel(spec=TINY)},
        profile=bundled_bytes("h100-dgx"),
    ).to_bytes()  # fmt: skip


def tune_task(**options: Any) -> bytes:
    """A tune."""
    return task("tune", TuneRequest(**{**WORKLOAD, **options}))


def layout_task(**options: Any) -> bytes:
    """A search of layouts on two GPUs."""
    asked = {**OF_LAYOUTS, "gpus": 2, "global_batch_size": 4, **options}
    return task("layout", LayoutRequest(**asked))


def scale_task(**options: Any) -> bytes:
    """A search of layouts on two, three and four GPUs; three divide nothing."""
    asked = {
        **OF_LAYOUTS, "tp": 2, "recompute": "none", "global_batch_size": 4, "gpus": (2, 3, 4),
    }  # fmt: skip
    return task("scale", ScaleRequest(**{**asked, **options}))


def sweep_task(**options: Any) -> bytes:
    """A sweep over four link speeds."""
    asked = {**WORKLOAD, "sweep": "link_bandwidth=0.25x,0.5x,2x,4x", **options}
    return task("whatif", WhatIfRequest(**asked))


TASKS = {
    "tune": tune_task(search="random", trials=6),
    "layout": layout_task(tp=2, recompute="none"),
    "scale": scale_task(),
    "sweep": sweep_task(),
    "sweep, retuned": sweep_task(
        retune=True, sweep="link_bandwidth=0.5x,2x", micro_batch_size=1, row_slices=1
    ),
}


@cache
def undisturbed(task: bytes) -> Outcome:
    """Return what comes of a task that nobody interrupts."""
    return run_job(task, SILENT)
