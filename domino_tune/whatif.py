"""whatif: the same plan, or the best one, on a machine or workload that is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from domino_tune.case import Chosen, Setup, place
from domino_tune.options import MOST
from domino_tune.quantities import Dimension, QuantityError, parse_quantity
from domino_tune.requests import TuneRequest
from domino_tune.results import SimulateResult, WhatIfPoint, WhatIfResult
from domino_tune.simulation import simulate_plan
from domino_tune.tuning import Progress, search, silent
from simulator.errors import DominoTuneError, InputError, unknown_name
from simulator.ops import Collective

Apply = Callable[[Setup, str], Setup]
PROBE_BYTES: Final = 256 << 20
"""All-reduce from which the profile's link bandwidth and latency are read."""


def _machine(key: str, dimension: Dimension, fact: Callable[[Setup], float]) -> Apply:
    """A change of the machine: a factor, or a value set against the profile's ``fact``."""

    def apply(setup: Setup, text: str) -> Setup:
        quantity = parse_quantity(key, text, ("factor", dimension))
        factor = quantity.value
        if quantity.dimension != "factor":
            factor /= fact(setup)
        old: float = getattr(setup.changes, key)
        return replace(setup, changes=replace(setup.changes, **{key: old * factor}))

    return apply


def _probe(setup: Setup) -> tuple[Collective, float, float]:
    """A large all-reduce of the TP group: itself, its latency and its transfer, in seconds."""
    nodes, per_node = setup.cluster.tp_group
    if setup.cluster.tp == 1:
        raise InputError(
            "With tp 1 there is no link to set to a value; give a factor, or a larger --tp."
        )
    probe = Collective("all_reduce", PROBE_BYTES, nodes, per_node)
    latency_us, transfer_us = setup.profile.collective_table().shares(probe)
    return probe, latency_us * 1e-6, transfer_us * 1e-6


def link_bandwidth(setup: Setup) -> float:
    """Bus bandwidth of a large all-reduce on the profile, in bytes a second (nccl-tests' busbw)."""
    probe, _, transfer_s = _probe(setup)
    ranks = setup.cluster.tp
    return 2 * (ranks - 1) / ranks * probe.size_bytes / transfer_s


def link_latency(setup: Setup) -> float:
    """The part of an all-reduce that does not depend on its size, in seconds."""
    return _probe(setup)[1]


def _peak_flops(setup: Setup) -> float:
    rates, dtype = setup.profile.machine.peak_tflops, setup.workload.dtype
    if dtype not in rates:
        raise InputError(
            f"Profile {setup.profile.name!r} does not say its peak for {dtype}; give a factor."
        )
    return rates[dtype] * 1e12


def _contention(setup: Setup, text: str) -> Setup:
    try:
        factor = 0.0 if text == "off" else parse_quantity("contention", text, ("factor",)).value
    except QuantityError as error:
        raise QuantityError(f"{str(error).removesuffix('.')}, or off.") from None
    changes = replace(setup.changes, contention=setup.changes.contention * factor)
    return replace(setup, changes=changes)


def _count(key: str, text: str, old: int) -> int:
    """A whole number, or a multiple of what there is."""
    quantity = parse_quantity(key, text, ("number", "factor"))
    value = quantity.value * (old if quantity.dimension == "factor" else 1)
    if value < 1 or value != int(value):
        raise InputError(f"{key} must be a whole number ≥ 1, got {text!r}.")
    if value > MOST:
        raise InputError(f"{key} must be a whole number ≤ {MOST}, got {text!r}.")
    return int(value)


def _workload(key: str) -> Apply:
    def apply(setup: Setup, text: str) -> Setup:
        value = _count(key, text, getattr(setup.workload, key))
        changes: dict[str, Any] = {key: value}
        return replace(setup, workload=replace(setup.workload, **changes))

    return apply


def _tp(setup: Setup, text: str) -> Setup:
    cluster = replace(setup.cluster, tp=_count("tp", text, setup.cluster.tp), ranks_per_node=2**30)
    return replace(setup, cluster=place(cluster, setup.profile, None))


def _nodes(setup: Setup, text: str) -> Setup:
    nodes = _count("nodes", text, setup.cluster.nodes)
    return replace(setup, cluster=place(setup.cluster, setup.profile, nodes))


def _cuda_graph(setup: Setup, text: str) -> Setup:
    if text not in ("on", "off"):
        raise InputError(f"cuda_graph must be on or off, got {text!r}.")
    return replace(setup, cluster=replace(setup.cluster, cuda_graph=text == "on"))


KEYS: Final[dict[str, Apply]] = {
    "tp": _tp,
    "nodes": _nodes,
    "micro_batch_size": _workload("micro_batch_size"),
    "seq_length": _workload("seq_length"),
    "cuda_graph": _cuda_graph,
    "link_bandwidth": _machine("link_bandwidth", "bytes/s", link_bandwidth),
    "link_latency": _machine("link_latency", "s", link_latency),
    "gpu_flops": _machine("gpu_flops", "flop/s", _peak_flops),
    "memory_bandwidth": _machine(
        "memory_bandwidth", "bytes/s", lambda s: s.profile.machine.memory_bandwidth_gb_s * 1e9
    ),
    "contention": _contention,
}
"""What can be changed, by name, in the order in which changes are made: the machine's last, since
values with a unit are set against what the profile knows of the group that is then in use."""


def parse_changes(texts: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE pairs. Raises InputError for an unknown key, or one that stands twice."""
    changes: dict[str, str] = {}
    for text in texts:
        key, value = _split("--change", text)
        if key in changes:
            raise InputError(f"--change names {key} twice; keep one, or use --sweep.")
        changes[key] = value
    return changes


def parse_sweep(text: str | None) -> tuple[str, tuple[str, ...]]:
    """The swept key and its values; no key where there is no sweep."""
    if text is None:
        return "", ()
    key, listed = _split("--sweep", text)
    values = tuple(value.strip() for value in listed.split(","))
    if not all(values) or len(set(values)) != len(values):
        raise InputError(f"--sweep wants KEY=A,B,C with each value once, got {text!r}.")
    return key, values


def _split(flag: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not value:
        raise InputError(f"{flag} wants KEY=VALUE, got {text!r}; say, link_bandwidth=2x.")
    if key not in KEYS:
        raise unknown_name("key of " + flag, key, KEYS)
    return key, value


def changed(setup: Setup, changes: Mapping[str, str]) -> Setup:
    """The setup with all changes made, in the order of KEYS."""
    for key in sorted(changes, key=list(KEYS).index):
        setup = KEYS[key](setup, changes[key])
    return setup


def what_if(
    setup: Setup,
    chosen: Chosen,
    *,
    changes: Mapping[str, str],
    sweep: str | None = None,
    retune: bool = False,
    progress: Progress = silent,
) -> WhatIfResult:
    """Predict ``chosen`` as things are and at every point; with ``retune``, the best plan of each.

    A point of a sweep that cannot be is reported with its reason; a single one raises.
    """
    key, values = parse_sweep(sweep)
    if not changes and not values:
        raise InputError(f"Say what to change, --change KEY=VALUE or --sweep: {', '.join(KEYS)}.")
    if key in changes:
        raise InputError(f"{key} is both changed and swept; leave one out.")

    def predict(point: Mapping[str, str]) -> SimulateResult:
        progress(", ".join(f"{k}={v}" for k, v in point.items()) or "as it is")
        there = changed(setup, point)
        return simulate_plan(there, _best(there, progress) if retune else chosen)

    base = WhatIfPoint(changes={}, value="", result=predict({}))
    if not values:
        points = [WhatIfPoint(changes=dict(changes), value="", result=predict(changes))]
    else:
        points = [_sweep_point({**changes, key: value}, value, predict) for value in values]
        if all(point.result is None for point in points):
            raise InputError(
                f"No point of the sweep can be predicted; the first: {points[0].error}"
            )
    return WhatIfResult(
        base=base, points=tuple(points), sweep=key or None, retuned=retune, notes=setup.notes
    )


def _sweep_point(
    changes: Mapping[str, str], value: str, predict: Callable[[Mapping[str, str]], SimulateResult]
) -> WhatIfPoint:
    try:
        return WhatIfPoint(changes=dict(changes), value=value, result=predict(changes))
    except QuantityError:
        raise
    except DominoTuneError as error:
        return WhatIfPoint(changes=dict(changes), value=value, result=None, error=str(error))


def _best(setup: Setup, progress: Progress) -> Chosen:
    made = search(setup, TuneRequest(), progress)
    plan = made.found.best.plan
    return Chosen(plan=plan, order=made.problem.order(plan))
