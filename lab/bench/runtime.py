"""The runtime's unsliced baseline against the same layers in plain torch.

A slow baseline would make every speedup look too good.
"""

from __future__ import annotations

import importlib.util
import statistics
from dataclasses import asdict, replace
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from lab.fidelity.settings import MODELS
from lab.verdict import Check, SkippedError, at_most, check_table, reported
from simulator.specs import ClusterSpec

LIMIT: Final = 1.03
ROUNDS: Final = 15
LINKS: Final = {"loopback": None, "1 Gbit/s": 10**9}
JOB: Final = "lab.gpu_proof.reference_job:compare"


def runtime() -> list[Table]:
    """Return ratios at TP 2 on this machine's CPU. Each round runs both. Skip without torch."""
    if importlib.util.find_spec("torch") is None:
        raise SkippedError("no torch; pip install 'domino_tune[runtime]'")
    checks = []
    for name in ("gpt-small", "llama-small"):
        for link, bits_per_s in LINKS.items():
            checks += _checks(f"{name}, {link}", _rounds(name, bits_per_s))
    return [check_table("Megatron's schedule in the runtime / plain torch layers, TP 2", checks)]


def _rounds(name: str, bits_per_s: int | None) -> list[dict[str, Any]]:
    model, workload = MODELS[name]
    payload = {
        "model": asdict(replace(model, num_hidden_layers=2)),
        "workload": asdict(workload),
        "cluster": asdict(ClusterSpec(tp=2, ranks_per_node=1)),
        "rounds": ROUNDS,
    }
    found: list[dict[str, Any]] = []
    run_job(JOB, payload, LaunchSpec(tp=2, emulate_link_bits_per_s=bits_per_s),
            on_message=found.append)  # fmt: skip
    return found


def _checks(what: str, rounds: list[dict[str, Any]]) -> list[Check]:
    """Return the ratio of the two medians, and the quartiles of the rounds' ratios."""
    ours = statistics.median(one["ours_ns"] for one in rounds)
    theirs = statistics.median(one["theirs_ns"] for one in rounds)
    ratios = sorted(one["ours_ns"] / one["theirs_ns"] for one in rounds)
    low, _, high = statistics.quantiles(ratios, n=4)
    return [
        at_most(f"{what}: time ratio", LIMIT, ours / theirs, unit="×", digits=3),
        reported(f"{what}: middle half of the rounds", f"{low:.3f} – {high:.3f}"),
    ]
