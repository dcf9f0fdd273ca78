"""Benchmarks of the simulator: a number beside what measured it. May import everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Final, NamedTuple

from domino_tune.base.tables import Table

Part = Callable[[], Iterable[Table]]


class Bench(NamedTuple):
    """What a benchmark prints, and its parts: ``module.function`` of this package.

    A part that lacks what it needs raises SkippedError; the others still run.
    """

    prints: str
    parts: tuple[str, ...]


def find(part: str) -> Part:
    """Import a part's module and return its function."""
    module, _, function = part.partition(".")
    found: Part = getattr(import_module(f"{__name__}.{module}"), function)
    return found


def _bench(prints: str, *parts: str) -> Bench:
    return Bench(prints, parts)


BENCHES: Final[dict[str, Bench]] = {
    "baselines": _bench(
        "Domino's gain over Megatron-LM: eight models at TP 2 to 8; slices of one long sequence",
        "baselines.baselines", "baselines.sequence_slices",
    ),
    "power": _bench(
        "what the power cap takes of that gain, at several caps",
        "power.power",
    ),
    "admission": _bench(
        "when a collective gets onto a busy GPU, beside our H200's records; launch orders",
        "admission.admission",
    ),
    "accuracy": _bench(
        "errors of look-ups of withheld rows, of the contention law, and of what borrows rows",
        "accuracy.accuracy", "accuracy.contention", "constants.constants",
    ),
    "published": _bench(
        "published runs of Megatron-LM, vLLM and Domino: iteration, memory, intervals",
        "published.published",
    ),
    "vtrain": _bench(
        "107 runs of pipelines on A100s, and which of two layouts is faster", "vtrain.vtrain"
    ),
    "rivals": _bench(
        "published rivals (Flux, AsyncTP, userbuffers), and verdicts for usual models",
        "rivals.rivals",
    ),
    "calibrate": _bench(
        "how well a few measured iterations predict the others", "calibrate.calibrate"
    ),
    "layouts": _bench("the best layouts on 8 to 4,096 GPUs, with Domino and without",
                      "layouts.layouts"),
    "speed": _bench("the time of a prediction, a search and --help", "speed.speed"),
    "h200": _bench(
        "our H200's rows withheld, beside h100-dgx, their clock; records of its stages",
        "h200.h200", "gpu_records.gpu_records",
    ),
    "runtime": _bench(
        "real CPU ranks: the runtime and applied plans beside torch; an eager host's time",
        "runtime.runtime", "runtime.applied", "runtime.host",
    ),
}  # fmt: skip
"""Benchmarks by name, in the order in which all of them run."""
