"""plan show, plan export: a plan file, and what makes a framework run it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from domino_tune.requests import PlanExportRequest, PlanShowRequest
from domino_tune.results.files import ExportResult
from domino_tune.search.space import TWO_ROWS, enumerate_plans
from domino_tune.store.formats import refused
from domino_tune.store.formats.deepspeed import deepspeed_arguments, deepspeed_notes
from domino_tune.store.formats.megatron import (
    megatron_arguments,
    megatron_notes,
    shards_parameters,
    training_arguments,
    userbuffers_arguments,
)
from domino_tune.store.formats.megatron_bridge import bridge_notes, bridge_python
from domino_tune.store.formats.megatron_options import (
    pairing_arguments,
    userbuffers_notes,
    userbuffers_yaml,
)
from domino_tune.store.formats.torchtitan import torchtitan_notes, torchtitan_toml
from domino_tune.store.plans import PlanFile, load_plan
from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.dtypes import MS_PER_NS
from simulator.errors import DominoTuneError, InfeasiblePlanError
from simulator.implementation import Implementation
from simulator.overlap import EP_OVERLAP, RUNS_IN
from simulator.plan import SlicePlan
from simulator.predict import predict
from simulator.profile import Profile

DOCUMENTS: Final = ("te-userbuffers", "torchtitan", "megatron-bridge")
"""Formats that are a file which the framework reads."""
RUNS: Final = {
    "megatron": ("Megatron-LM", ("megatron", "userbuffers", EP_OVERLAP, "domino")),
    "te-userbuffers": ("TransformerEngine's userbuffers", ("userbuffers",)),
    "torchtitan": ("torchtitan", ("megatron", "async-tp", "domino")),
    "megatron-bridge": ("Megatron-Bridge", ("megatron", "userbuffers", EP_OVERLAP)),
}
"""Format -> the framework, and the strategies that are exported to it."""
_SCRIPTS: Final = {
    "megatron": "Megatron-LM's pretrain_gpt.py",
    "deepspeed": "pretrain_gpt.py of DeepSpeedExamples' training/DeepSpeed-Domino",
}
"""Format -> what takes its arguments."""
ProfileOf = Callable[[str], Profile]
"""Looks up a profile by name."""


@dataclass
class _Export:
    """What an export has so far."""

    arguments: list[str] = field(default_factory=list)
    settings: dict[str, bool] = field(default_factory=dict)
    document: str = ""
    notes: list[str] = field(default_factory=list)


def export_plan(plan_file: PlanFile, to: str, profile_of: ProfileOf = load_profile) -> ExportResult:
    """Return what makes framework ``to`` run the plan; ``profile_of`` looks up the plan's profile.

    Raise InfeasiblePlanError (``target``) for a plan or model that it cannot run.
    """
    how = plan_file.workload.implementation
    made = _Export(notes=_common_notes(plan_file))
    if to in RUNS:
        _check_strategy(plan_file.plan, to)
    if to == "deepspeed":
        _deepspeed(plan_file, made, profile_of)
    elif to in _MAKERS:
        _MAKERS[to](plan_file, made)
    graph = plan_file.cluster.cuda_graph and to != "megatron"  # which insists on one queue
    variables = environment(plan_file.plan, how, cuda_graph=graph)
    if to == "megatron" and shards_parameters(plan_file.workload, plan_file.cluster):
        variables.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)  # a note says so
    return ExportResult(
        to=to,
        document=made.document,
        arguments=tuple(made.arguments),
        settings=made.settings,
        environment=variables,
        notes=tuple(made.notes),
    )


def export_text(result: ExportResult) -> str:
    """Return a shell file to source: exports, and the arguments in DOMINO_TUNE_ARGS; or the
    framework's own file, in which what does not belong there is a comment."""
    lines = []
    if result.to in _SCRIPTS:
        lines.append(
            f'# Source this file, then give {_SCRIPTS[result.to]} "${{DOMINO_TUNE_ARGS[@]}}" and '
            "your own data, tokenizer, learning rate and checkpoints."
        )
    lines += [f"# {note}" for note in result.notes]
    lines += [f"# setting: {name} = {value}" for name, value in result.settings.items()]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in result.environment.items()]
    if result.to in DOCUMENTS:
        lines += [f"# In the shell that starts the ranks: {one}" for one in exports]
        return "".join(f"{line}\n" for line in lines) + result.document
    lines += exports
    if result.arguments:
        lines += ["DOMINO_TUNE_ARGS=(", *(f"    {entry}" for entry in result.arguments), ")"]
    return "\n".join(lines) + "\n"


def plan_show(request: PlanShowRequest) -> PlanFile:
    """Return the content of a plan file."""
    return load_plan(request.file)


def plan_export(request: PlanExportRequest) -> ExportResult:
    """Return the export of a plan file; raise as ``export_plan`` does."""
    return export_plan(load_plan(request.file), request.to)


def deepspeed_plan(plan_file: PlanFile) -> SlicePlan:
    """Return the plan as DeepSpeed at edaa722 runs it: two slices in another order are run in its
    own, inter.

    DeepSpeed runs GPT models with two equal row slices, no column slices, order inter or intra, and
    each weight gradient beside its dgrad: the plans that ``tune --target deepspeed`` searches.
    Raise InfeasiblePlanError (``target``) for all other plans.
    """
    try:
        runnable = enumerate_plans(plan_file.model, plan_file.workload, target="deepspeed")
    except InfeasiblePlanError as error:
        # A search says which option to leave out; nobody gave it here.
        problem, _, _ = str(error).partition("; leave out")
        raise refused(
            f"{problem}; export the plan of a model and a batch that it can run."
        ) from None
    plan = plan_file.plan
    if plan.strategy == "domino" and plan.slices == TWO_ROWS:
        own = replace(plan, order="inter", wgrad="eager", merge_wgrad=False)
        for one in (plan, own):
            if replace(one, comm_ctas=0) in runnable:
                return one
    raise refused(
        f"DeepSpeed cannot run {plan.label}: it needs 2 row slices, 1 column slice, no sequence "
        "parallelism. Find its best plan with `tune --target deepspeed`."
    )


def _deepspeed(plan_file: PlanFile, made: _Export, profile_of: ProfileOf) -> None:
    plan = deepspeed_plan(plan_file)
    made.arguments, made.settings = deepspeed_arguments(plan_file, plan)
    if plan != plan_file.plan:
        made.notes.append(_order_note(plan_file, plan, _predicted_ms(plan_file, plan, profile_of)))
    made.notes += deepspeed_notes(plan_file)


def _order_note(plan_file: PlanFile, own: SlicePlan, own_ms: float | None) -> str:
    """Return in which order DeepSpeed runs the slices, and what that costs where it is known."""
    note = (
        f"DeepSpeed runs the two slices in its own order ({own.order}, each weight gradient beside "
        f"its dgrad), not {plan_file.plan.order} with wgrad={plan_file.plan.wgrad}"
    )
    if own_ms is None:
        return f"{note}."
    planned, baseline = plan_file.predicted.iteration_ms, plan_file.predicted.baseline_ms
    return (
        f"{note}: {baseline / own_ms:.2f}x instead of {baseline / planned:.2f}x ({own_ms:,.1f} ms "
        f"instead of {planned:,.1f} ms; baseline {baseline:,.1f} ms)."
    )


def _predicted_ms(plan_file: PlanFile, plan: SlicePlan, profile_of: ProfileOf) -> float | None:
    """Return the predicted iteration of a plan in place of the file's; None where the file's
    profile is not at hand, or the plan does not run on it."""
    try:
        profile = profile_of(plan_file.profile.name)
        if profile.content_id != plan_file.profile.content_id:
            return None
        case = Case(
            model=plan_file.model, workload=plan_file.workload, cluster=plan_file.cluster,
            profile=profile,
        )  # fmt: skip
        return predict(case, plan).makespan_ns * MS_PER_NS
    except DominoTuneError:
        return None


def _megatron(plan_file: PlanFile, made: _Export) -> None:
    model, workload, cluster = plan_file.model, plan_file.workload, plan_file.cluster
    plan = plan_file.plan
    made.arguments = megatron_arguments(model, workload, cluster)
    made.arguments += training_arguments(
        model, workload, cluster, sequence_parallel=plan.sequence_parallel
    )
    if plan.strategy == "userbuffers":
        made.arguments += userbuffers_arguments(plan, workload.implementation)
    made.arguments += pairing_arguments(plan)
    made.notes += [*_unsliced_notes(plan_file, "megatron"), *megatron_notes(plan_file)]


def _te_userbuffers(plan_file: PlanFile, made: _Export) -> None:
    if plan_file.model.num_experts:
        raise refused(
            "TransformerEngine's userbuffers overlap the linears of dense layers, and "
            f"{plan_file.model.name} has experts; export the plan of a model without."
        )
    made.document = userbuffers_yaml(plan_file.plan)
    made.notes += userbuffers_notes(plan_file.plan)


def _torchtitan(plan_file: PlanFile, made: _Export) -> None:
    made.document = torchtitan_toml(plan_file)
    made.notes += [*_unsliced_notes(plan_file, "torchtitan"), *torchtitan_notes(plan_file)]


def _megatron_bridge(plan_file: PlanFile, made: _Export) -> None:
    made.document = bridge_python(plan_file)
    made.notes += bridge_notes(plan_file)


_MAKERS: Final[dict[str, Callable[[PlanFile, _Export], None]]] = {
    "megatron": _megatron, "te-userbuffers": _te_userbuffers, "torchtitan": _torchtitan,
    "megatron-bridge": _megatron_bridge,
}  # fmt: skip


def _check_strategy(plan: SlicePlan, to: str) -> None:
    """Raise InfeasiblePlanError (``target``) for a strategy that is not exported to ``to``."""
    framework, strategies = RUNS[to]
    if plan.strategy in strategies:
        return
    where = RUNS_IN.get(plan.strategy)
    runs = f"it runs in {where}" if where else "it is a bound, which nothing runs"
    raise refused(
        f"{framework} cannot run strategy {plan.strategy!r}: {runs}. Export a plan of strategy "
        f"{' or '.join(strategies)}."
    )


def _common_notes(plan_file: PlanFile) -> list[str]:
    """Return what no framework sets: collectives first, and limits of GPUs."""
    cluster, notes = plan_file.cluster, []
    if plan_file.workload.implementation.launch_order == "comm_first" and not cluster.cuda_graph:
        notes.append(
            "Collectives first: by the priority of their stream, with as many hardware queues as "
            "usual (CUDA_DEVICE_MAX_CONNECTIONS not set)."
        )
    if cluster.power_cap_w:
        notes.append(f"Predicted for GPUs limited to {cluster.power_cap_w:g} W (nvidia-smi -pl).")
    if cluster.clock_mhz:
        notes.append(f"Predicted for GPUs locked to {cluster.clock_mhz} MHz (nvidia-smi -lgc).")
    return notes


def _unsliced_notes(plan_file: PlanFile, to: str) -> list[str]:
    """Return what a framework without slices gives up of a Domino plan."""
    if plan_file.plan.strategy != "domino":
        return []
    predicted = plan_file.predicted
    return [
        f"{RUNS[to][0]} has no option for row and column slices: it runs this workload unsliced, "
        f"not {plan_file.plan.label}. Predicted: {predicted.iteration_ms:,.1f} ms as planned, "
        f"{predicted.baseline_ms:,.1f} ms unsliced."
    ]


def environment(
    plan: SlicePlan, implementation: Implementation, *, cuda_graph: bool = False
) -> dict[str, str]:
    """Return the variables for every rank; ``cuda_graph``: steps are graphs.

    ``CUDA_DEVICE_MAX_CONNECTIONS=1``, where the launch order is ``ordered``: one hardware queue, so
    that the device starts kernels in the order of the schedule. ``TORCH_NCCL_HIGH_PRIORITY=1``:
    PyTorch runs NCCL on a high-priority stream, so that a collective that waits gets the next SMs.
    ``NCCL_MIN_CTAS`` and ``NCCL_MAX_CTAS`` (NCCL ≥ 2.17): the plan's CTAs, where it chose some.
    ``NCCL_ALGO=Ring``, and ``NVTE_ALLOW_NONDETERMINISTIC_ALGO=0`` (TransformerEngine's attention),
    where the implementation says so.
    """
    ordered = implementation.starts(cuda_graph=cuda_graph) == "ordered"
    found = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if ordered else {}
    if plan.strategy == "domino":
        found["TORCH_NCCL_HIGH_PRIORITY"] = "1"
    if plan.comm_ctas:
        found |= {"NCCL_MIN_CTAS": str(plan.comm_ctas), "NCCL_MAX_CTAS": str(plan.comm_ctas)}
    if implementation.nccl_algo == "ring":
        found["NCCL_ALGO"] = "Ring"
    if implementation.deterministic_attention:
        found["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"
    return found
