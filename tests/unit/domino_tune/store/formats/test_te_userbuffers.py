"""The YAML of userbuffers, read as TransformerEngine reads it."""

from __future__ import annotations

from typing import Any, Final

import pytest
import yaml

from domino_tune.verbs.plan import export_plan, export_text
from simulator.errors import InfeasiblePlanError
from simulator.overlap import GEMMS
from simulator.plan import SlicePlan
from tests.support.plans import (
    ASYNC_TP,
    DOMINO,
    SHARDED,
    USERBUFFERS,
    plan_file,
    told,
)

METHODS: Final = {
    "ring_exchange": ["qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad"],
    "pipeline": ["proj_fprop", "fc2_fprop"],
    "bulk": ["qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad"],
}
KEYS: Final = {
    "method": str, "num_sm": int, "cga_size": int, "set_sm_margin": bool, "num_splits": int,
    "aggregate": bool, "atomic_gemm": bool, "use_ce": bool, "fp8_buf": bool,
}  # fmt: skip
SUMS: Final = ["proj_fprop", "fc2_fprop", "qkv_wgrad", "fc1_wgrad"]


def initialized(text: str) -> dict[str, dict[str, Any]]:
    """Return each GEMM's config as ``initialize_ub`` makes it (transformer_engine/pytorch/module/
    base.py at fecb10b); raise ValueError where it raises."""
    config = yaml.safe_load(text)
    sums, known = list(SUMS), {name for names in METHODS.values() for name in names}
    if not config.keys() <= known:
        raise ValueError(f"no such GEMMs: {config.keys() - known}")
    for name in ("qkv_dgrad", "fc1_dgrad"):
        if config.get(name, {}).get("method", "bulk") != "bulk":
            wgrad = name.replace("dgrad", "wgrad")
            if wgrad in config:
                raise ValueError(f"{wgrad} beside a dgrad that is not bulk")
            sums.remove(wgrad)
            sums.append(name)
    made = {}
    for usual, names in METHODS.items():
        for name in names:
            told_here = config.get(name, {})
            for key, value in told_here.items():
                if type(value) is not KEYS[key]:
                    raise ValueError(f"{name}.{key} is {value!r}")
            method = told_here.get("method", usual)
            if method == "pipeline" and name not in sums:
                raise ValueError(f"{name}: pipeline is not for gathers")
            made[name] = {
                "num_sm": 1 if method == "ring_exchange" else 16,
                "num_splits": 4 if method == "pipeline" else 0,
                "set_sm_margin": False,
                **told_here,
                "method": method,
                "told": name in config,
            }
    return made


def exported(plan: SlicePlan) -> dict[str, dict[str, Any]]:
    made = export_plan(plan_file(plan), "te-userbuffers")
    assert made.arguments == ()
    # The file is also what a terminal shows, with comments before it.
    assert initialized(export_text(made)) == initialized(made.document)
    return initialized(made.document)


def test_the_usual_methods() -> None:
    made = exported(USERBUFFERS)
    assert all(entry["told"] for entry in made.values())
    for method, names in METHODS.items():
        assert {made[name]["method"] for name in names} == {method}
    assert made["fc1_fprop"]["num_sm"] == 1
    assert (made["fc2_fprop"]["num_splits"], made["fc2_fprop"]["num_sm"]) == (4, 16)
    margins = {name: entry["set_sm_margin"] for name, entry in made.items()}
    assert margins == {name: name not in METHODS["ring_exchange"] for name in margins}


def test_methods_of_single_gemms() -> None:
    made = exported(told(USERBUFFERS, "fc2_fprop=pipeline:8:24", "fc1_dgrad=bulk:8"))
    assert (made["fc2_fprop"]["num_splits"], made["fc2_fprop"]["num_sm"]) == (8, 24)
    assert (made["proj_fprop"]["num_splits"], made["proj_fprop"]["num_sm"]) == (4, 16)
    assert made["fc1_dgrad"]["num_sm"] == made["fc1_wgrad"]["num_sm"] == 8
    assert made["qkv_dgrad"]["num_sm"] == 16


def test_a_dgrad_that_sums_in_a_pipeline_has_no_bulk_wgrad() -> None:
    made = exported(told(USERBUFFERS, "fc1_dgrad=pipeline:2:8", "qkv_dgrad=pipeline"))
    assert made["fc1_dgrad"]["method"] == "pipeline"
    assert not made["fc1_wgrad"]["told"]


def test_gemms_without_overlap_are_left_out_and_said() -> None:
    plan = told(USERBUFFERS, "fc1_fprop=none", "qkv_dgrad=none")
    assert {name for name, entry in exported(plan).items() if not entry["told"]} == {
        "fc1_fprop", "qkv_dgrad", "qkv_wgrad",
    }  # fmt: skip
    (note,) = export_plan(plan_file(plan), "te-userbuffers").notes
    assert "linear_fc1.ub_overlap_ag_fprop" in note
    assert "linear_qkv.ub_bulk_dgrad and ub_bulk_wgrad" in note
    nothing = told(USERBUFFERS, *(f"{gemm}=none" for gemm in GEMMS))
    assert not any(entry["told"] for entry in exported(nothing).values())


@pytest.mark.parametrize("plan", [SHARDED, DOMINO, ASYNC_TP])
def test_other_strategies_are_refused(plan: SlicePlan) -> None:
    with pytest.raises(InfeasiblePlanError, match="of strategy userbuffers") as caught:
        export_plan(plan_file(plan), "te-userbuffers")
    assert caught.value.reason == "target"


def test_a_method_that_transformer_engine_has_not() -> None:
    with pytest.raises(InfeasiblePlanError, match="no bulk overlap for fc2_fprop"):
        export_plan(plan_file(told(USERBUFFERS, "fc2_fprop=bulk:8")), "te-userbuffers")
