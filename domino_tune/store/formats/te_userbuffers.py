"""TransformerEngine's userbuffers: the method of each GEMM as YAML, and Megatron-LM's switches.

The file is what Megatron-LM gives ``initialize_ub`` (its --tp-comm-overlap-cfg;
megatron/training/initialize.py). Keys: ``initialize_ub`` in
transformer_engine/pytorch/module/base.py, at fecb10b and in 2.x alike; Megatron-Bridge 0.3.1 has
the same ones (bridge/training/comm_overlap.py). A GEMM that the file leaves out gets
TransformerEngine's usual method, so that only a switch of the layers turns an overlap off.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from simulator.errors import InfeasiblePlanError
from simulator.overlap import GATHERS, GEMMS, Overlap, gemms_of, overlap_of
from simulator.plan import SlicePlan

Entry = dict[str, str | int | bool]
CONFIG_FILE: Final = "userbuffers.yaml"
"""The name that exports give the file."""
_FORWARD: Final = gemms_of("forward")
_BACKWARD: Final = gemms_of("backward")
_BULK: Final = ("tp_comm_bulk_dgrad", "tp_comm_bulk_wgrad")
_ATTRIBUTES: Final = MappingProxyType(
    {
        "qkv_fprop": "linear_qkv.ub_overlap_ag_fprop",
        "fc1_fprop": "linear_fc1.ub_overlap_ag_fprop",
        "proj_dgrad": "linear_proj.ub_overlap_ag_dgrad",
        "fc2_dgrad": "linear_fc2.ub_overlap_ag_dgrad",
        "proj_fprop": "linear_proj.ub_overlap_rs_fprop",
        "fc2_fprop": "linear_fc2.ub_overlap_rs_fprop",
        "qkv_dgrad": "linear_qkv.ub_bulk_dgrad and ub_bulk_wgrad",
        "fc1_dgrad": "linear_fc1.ub_bulk_dgrad and ub_bulk_wgrad",
    }
)
"""GEMM -> what switches it alone, on Megatron-LM's layers (transformer_engine/pytorch/module/
linear.py and layernorm_linear.py)."""


def userbuffers_config(plan: SlicePlan) -> dict[str, Entry]:
    """Return the entries of the GEMMs that overlap, in TransformerEngine's order.

    Raise InfeasiblePlanError (``target``) for a method that TransformerEngine has not there.
    """
    config: dict[str, Entry] = {}
    for gemm in GEMMS:
        how = _overlap(plan, gemm)
        if how.method == "none":
            continue
        if how.method == "bulk" and gemm not in _BACKWARD:
            raise InfeasiblePlanError(
                f"TransformerEngine has no bulk overlap for {gemm}; make the plan with "
                f"{gemm}=pipeline or {gemm}=none.",
                reason="target",
            )
        config[gemm] = _entry(how)
        if how.method == "bulk":
            # The gather of the input runs beside the dgrad, the sum of the dgrad beside the wgrad.
            config[gemm.replace("dgrad", "wgrad")] = _entry(how)
    return config


def userbuffers_yaml(plan: SlicePlan) -> str:
    """Return the file's text; raise as ``userbuffers_config``."""
    lines: list[str] = []
    for gemm, entry in userbuffers_config(plan).items():
        lines.append(f"{gemm}:")
        lines += [f"  {key}: {_scalar(value)}" for key, value in entry.items()]
    return "\n".join(lines or ["{}"]) + "\n"


def userbuffers_switches(plan: SlicePlan) -> dict[str, bool]:
    """Return fields of Megatron-LM's ModelParallelConfig that are not as usual.

    Each is for several GEMMs, and turned where all of them are alike. Raise InfeasiblePlanError
    (``target``) where two backward methods exclude each other.
    """
    switches = {}
    if _all_off(plan, GATHERS):
        switches["tp_comm_overlap_ag"] = False
    if _all_off(plan, _FORWARD):
        switches["tp_comm_overlap_rs"] = False
    methods = {_overlap(plan, gemm).method for gemm in _BACKWARD}
    if methods == {"none"}:
        switches |= dict.fromkeys(_BULK, False)
    elif methods == {"pipeline"}:
        switches["tp_comm_overlap_rs_dgrad"] = True
    elif "pipeline" in methods:
        raise InfeasiblePlanError(
            f"Megatron-LM has one switch for the dgrads' pipelines, got {' and '.join(methods)}; "
            f"make the plan with pipeline for both of {', '.join(_BACKWARD)}, or for neither.",
            reason="target",
        )
    return switches


def userbuffers_notes(plan: SlicePlan) -> list[str]:
    """Return what the switches cannot say: GEMMs without overlap among others that have it."""
    groups = (GATHERS, _FORWARD, _BACKWARD)
    alone = [
        gemm
        for group in groups
        for gemm in group
        if _overlap(plan, gemm).method == "none" and not _all_off(plan, group)
    ]
    if not alone:
        return []
    where = ", ".join(_ATTRIBUTES[gemm] for gemm in alone)
    return [
        f"The plan has no overlap for {', '.join(alone)}. Megatron's configs switch them off only "
        "together with others, and TransformerEngine overlaps them as usual. Set to False in code: "
        f"{where}."
    ]


def _overlap(plan: SlicePlan, gemm: str) -> Overlap:
    return overlap_of(plan.strategy, plan.tp_comm_overlap, gemm)


def _all_off(plan: SlicePlan, gemms: tuple[str, ...]) -> bool:
    return all(_overlap(plan, gemm).method == "none" for gemm in gemms)


def _entry(how: Overlap) -> Entry:
    """Return the keys of a method. Copy engines do the ring's copies: it needs one SM and leaves
    the GEMM all others. The simulator keeps the SMs of the other methods free, so the margin is
    set."""
    if how.method == "ring_exchange":
        ring: Entry = {"method": how.method, "num_sm": 1, "set_sm_margin": False}
        return {**ring, "aggregate": True} if how.together > 1 else ring
    entry: Entry = {"method": how.method, "num_sm": how.num_sm, "set_sm_margin": True}
    if how.method == "pipeline":
        entry["num_splits"] = how.num_splits
        if how.fp8:
            entry["fp8_buf"] = True
    return entry


def _scalar(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
