"""Every verb that has an option of a job answers with it, in a job that suits it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from domino_tune.requests import LayoutRequest, SimulateRequest, TuneRequest, WhatIfRequest
from domino_tune.requests.options import Request, choices_of, core_of
from domino_tune.search.simulated import CasePlans
from domino_tune.store.shelf import DISK
from domino_tune.verbs.layout_space import base_of, candidates_of
from domino_tune.verbs.resolve import Chosen, plan_of, resolve
from domino_tune.verbs.simulate import simulate, simulate_plan
from domino_tune.verbs.tune import cases_to_tune, search
from domino_tune.verbs.whatif import ask

JOB: Final[dict[str, Any]] = {
    "model": "llama3-8b", "overrides": ("num_hidden_layers=4",), "profile": "h100-dgx", "tp": 2,
    "seq_length": 1024, "micro_batch_size": 2, "grad_accumulation": 2,
}  # fmt: skip
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "model": ("llama2-7b",), "profile": ("h200-sxm",), "tp": (1, 4), "dp": (2,), "pp": (2,),
    "ep": (2,), "etp": (1,), "moe_dispatcher_sms": (32,), "moe_imbalance": ("1.5",),
    "cuda_graph_scope": ("attn",), "recompute_modules": ("layernorm,mlp",),
    "vpp": (2,), "pp_layers": ("1,3",), "cp": (2,), "nodes": (2,), "seq_length": (512,),
    "micro_batch_size": (1, 3), "grad_accumulation": (1, 3), "power_cap": ("500W",),
    "memory_margin": ("2GiB", "5%", "0"), "clock_mhz": (1500,), "recompute_layers": (2,),
    "num_layers_at_start_in_bf16": (1,), "num_layers_at_end_in_bf16": (2,),
    "implementation_set": (("nccl_algo=ring",),),
    "overrides": (("num_hidden_layers=2",),), "row_slices": (1, 2), "col_slices": (2,),
    "attn_col_slices": (2,), "mlp_col_slices": (2,), "attn_dgrad_slices": (2,),
    "mlp_dgrad_slices": (2,), "comm_ctas": (0,), "change": (("tp=4",),), "retune": (True,),
    "sweep": ("link_bandwidth=1x,2x",), "trials": (1,), "seed": (3,),
    "tp_comm_overlap": (("fc2_fprop=none",),), "gpu_hour": ("2.5",), "run_tokens": ("15e12",),
}  # fmt: skip
"""Values of options that have neither choices nor a switch."""
_EXPERTS: Final = {"model": "mixtral-8x7b", "tp": 1, "dp": 2, "ep": 2}
SUITS: Final[dict[str, dict[str, Any]]] = {
    "cuda_graph_scope": {"implementation": "megatron-te"},
    "moe_dispatcher_sms": {**_EXPERTS, "moe_dispatcher": "deepep"},
    "ep": _EXPERTS, "etp": _EXPERTS, "moe_dispatcher": _EXPERTS, "moe_imbalance": _EXPERTS,
    "vpp": {"pp": 2}, "pp_layers": {"pp": 2}, "pp_schedule": {"pp": 2}, "cp_comm": {"cp": 2},
    "overlap_p2p": {"pp": 2}, "nodes": {"dp": 2}, "slice_balance": {"slice_dim": "sequence"},
    "recompute_layers": {"recompute": "full"}, "recompute_modules": {"recompute": "selective"},
    "num_layers_at_start_in_bf16": {"fp8_recipe": "tensorwise"},
    "num_layers_at_end_in_bf16": {"fp8_recipe": "tensorwise"},
    "fp8_param_gather": {"fp8_recipe": "tensorwise"},
    "tp_comm_overlap": {"strategy": "userbuffers"},
    "seed": {"search": "random"}, "run_tokens": {"gpu_hour": "2.5"},
}  # fmt: skip
"""Further options that an option needs, as its help says."""
LACKS: Final = ("mxfp8", "nvfp4")
"""Choices that no H100 has."""
ELSEWHERE: Final = {"plan": "a file", "search": "test_search"}


def _asked(kind: type[Request], sampled: tuple[pytest.MarkDecorator, ...] = ()) -> Iterator[Any]:
    """Yield a case for each value of each option; ``sampled`` marks all but an option's last, which
    is seldom its default.
    """
    for name, item in kind.model_fields.items():
        if name in ELSEWHERE:
            continue
        values: tuple[Any, ...] = choices_of(item.annotation) or VALUES.get(name, ())
        values = tuple(value for value in values if value not in LACKS)
        if name == "tune_also":
            values = tuple((choice,) for choice in values)
        if not values:
            assert core_of(item.annotation) is bool, f"give {name} a value in VALUES"
            values = (False, True)
        for value in values:
            marks = () if value is values[-1] else sampled
            yield pytest.param({name: value}, id=f"{name}={value}", marks=marks)


def _job(asked: dict[str, Any], **more: Any) -> dict[str, Any]:
    ((name, value),) = asked.items()
    suits = dict(SUITS.get(name, {}))
    if name == "wgrad":
        suits["order"] = "greedy" if value == "fill" else "intra"
    if value == "ep-overlap":
        suits = {**_EXPERTS, "grad_accumulation": 2}
    if value == "zero-bubble":
        suits["vpp"] = 1
    if value == "dualpipev":
        suits |= {"vpp": 2, "grad_accumulation": 4}
    if (name, value) == ("slice_balance", "balanced"):
        suits = {}
    return {**JOB, **more, **suits, **asked}


def _without_power(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a profile without clocks, whose search takes half of the time, where the options need
    none, nor collectives that it lacks.
    """
    needed = {
        "power_cap", "clock_mhz", "tp_collectives", "fp8_recipe", "fp8_param_gather",
        "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "moe_dispatcher",
        "moe_dispatcher_sms",
    }  # fmt: skip
    names = set(asked) | set(asked.get("tune_also", ()))
    return {} if names & needed else {"profile": "a100-sxm"}


@pytest.mark.parametrize("asked", list(_asked(SimulateRequest)))
def test_simulate_answers(asked: dict[str, Any]) -> None:
    """All rows that are possible; an impossible row is reported."""
    request = SimulateRequest(**_job(asked))
    case = resolve(request)
    result = simulate_plan(case, Chosen.of(case, plan_of(request, None, case)))
    assert result.iteration_ms > 0
    assert result.baseline_ms > 0
    told = any("left out" in text for text in result.warnings)
    assert told == (result.baseline_no_sp_ms is None) == (asked == {"recompute": "per-op"})


@pytest.mark.sampled(count=3)
@pytest.mark.parametrize("asked", list(_asked(SimulateRequest)))
def test_simulate_has_a_verdict(asked: dict[str, Any]) -> None:
    assert simulate(SimulateRequest(**_job(asked))).verdict


@pytest.mark.parametrize("asked", list(_asked(WhatIfRequest, (pytest.mark.sampled(count=4),))))
def test_whatif_answers(asked: dict[str, Any]) -> None:
    """One value suffices for most options: simulate, which answers the same, gets all values."""
    more: dict[str, Any] = _without_power(asked)
    if not set(asked) & {"change", "sweep"}:
        more["change"] = ("link_latency=2x",)
    question = ask(WhatIfRequest(**_job(asked, **more)))
    best = (lambda case: question.chosen) if question.retune else None
    assert all(question.point(index, best=best).prediction for index in range(question.size))


@pytest.mark.parametrize("asked", list(_asked(TuneRequest)))
def test_tune_begins(asked: dict[str, Any]) -> None:
    """The search of one plan; from there tune does the same as simulate."""
    request = TuneRequest(
        **{"search": "random", **_job(asked, **_without_power(asked)), "trials": 1}
    )
    for case in cases_to_tune(resolve(request), request.tune_also):
        assert search(CasePlans(case=case, target=None), request).found.best.iteration_ns > 0


@pytest.mark.parametrize("recompute", ["none", "selective", "per-op", "full"])
def test_layouts_begin(recompute: str) -> None:
    """Values that a layout cannot have rule out only that layout."""
    request = LayoutRequest(
        model="llama3-8b", profile="h100-dgx", gpus=8, global_batch_size=8, seq_length=2048,
        recompute=recompute, implementation="torch",
    )  # fmt: skip
    found, left_out, _ = candidates_of(base_of(request, DISK), request)
    assert all(one.best_ns() for one in found)
    assert found
    assert bool(left_out["tokens"]) == (recompute == "per-op")
