"""Benchmarks of the simulator: a number beside what measured it. May import everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Final

from domino_tune.base.tables import Table

Part = Callable[[], Iterable[Table]]


def find(part: str) -> Part:
    """Import a part's module and return its function."""
    module, _, function = part.partition(".")
    found: Part = getattr(import_module(f"{__name__}.{module}"), function)
    return found


BENCHES: Final[dict[str, tuple[str, ...]]] = {
    "baselines": (
        "Domino's gain over Megatron-LM: eight models at TP 2 to 8, BF16 and FP8; long sequences",
        "baselines.baselines", "baselines.sequence_slices", "baselines.formats",
    ),
    "power": ("what the power cap takes of that gain, at several caps", "baselines.power"),
    "admission": (
        "when a collective gets onto a busy GPU, beside our H200's records; launch orders",
        "admission.admission",
    ),
    "accuracy": (
        "errors of look-ups of withheld rows, of the contention law, and of what borrows rows",
        "accuracy.accuracy", "accuracy.contention", "accuracy.constants",
    ),
    "experts": (
        "errors of laws of experts on what was withheld; what hides their exchange",
        "accuracy.grouped", "accuracy.others", "moe.hiding",
    ),
    "published": (
        "published runs beside predictions: times, intervals, memory, FP8 over BF16, 2022's hosts",
        "published.published", "published.memory",
    ),
    "moe": ("published steps of models with experts beside predictions", "moe.moe"),
    "rivals": (
        "published rivals (Flux, AsyncTP, userbuffers), and verdicts for usual models",
        "rivals.rivals",
    ),
    "layouts": (
        "the best layouts on 8 to 4,096 GPUs, with Domino and without", "searches.layouts",
    ),
    "speed": ("the time of whole commands, and of the parts that searches call", "searches.speed"),
    "h200": ("our H200's rows withheld, and beside h100-dgx", "accuracy.h200"),
    "gpu": (
        "records of lent GPUs: power, clock, admission, gaps, FP8, experts, plans that ran",
        "gpu_records.gpu_records",
    ),
    "runtime": ("real CPU ranks: applied plans beside torch's DTensors", "runtime.applied"),
}  # fmt: skip
"""What each prints, then its parts, ``module.function`` of this package; in the order in which all
run. A part that lacks what it needs raises SkippedError; the others still run."""
