"""plan show, plan export: a plan file, and its arguments and environment for a framework."""

from __future__ import annotations

from dataclasses import replace

from domino_tune.requests import PlanExportRequest, PlanShowRequest
from domino_tune.results import ExportResult, PlanResult
from domino_tune.search.space import enumerate_plans
from domino_tune.store.formats.deepspeed import deepspeed_arguments
from domino_tune.store.formats.env import environment, export_lines
from domino_tune.store.formats.megatron import megatron_arguments, training_arguments
from domino_tune.store.plans import PlanFile, load_plan
from simulator.errors import InfeasiblePlanError


def export_plan(plan_file: PlanFile, to: str) -> ExportResult:
    """Return arguments, settings and environment that make framework ``to`` run the plan.

    Raise InfeasiblePlanError (``target``) for a plan or model that it cannot run.
    """
    arguments: list[str] = []
    settings: dict[str, bool] = {}
    notes: list[str] = []
    launch_order = plan_file.workload.implementation.launch_order
    if launch_order == "comm_first":
        notes.append(
            "Collectives first: edges of a CUDA graph from the beginning of each collective; no "
            "environment variable makes it so."
        )
    if to == "megatron":
        arguments = megatron_arguments(plan_file.model, plan_file.workload, plan_file.cluster)
        arguments += training_arguments(
            plan_file.workload, plan_file.cluster,
            sequence_parallel=plan_file.plan.sequence_parallel,
        )  # fmt: skip
        if plan_file.plan.strategy == "domino":
            notes.append(
                f"Megatron-LM has no option for row and column slices: it runs this workload "
                f"unsliced, not {plan_file.plan.label}."
            )
    elif to == "deepspeed":
        check_deepspeed(plan_file)
        arguments, settings = deepspeed_arguments(plan_file)
        notes.append("Set the fields of `settings` on the config of DominoTransformer.")
    return ExportResult(
        to=to,
        arguments=tuple(arguments),
        settings=settings,
        environment=environment(plan_file.plan, launch_order),
        notes=tuple(notes),
    )


def export_text(result: ExportResult) -> str:
    """Return a shell file to source: exports, and the arguments in DOMINO_TUNE_ARGS."""
    lines = [f"# {note}" for note in result.notes]
    lines += [f"# setting: {name} = {value}" for name, value in result.settings.items()]
    lines += export_lines(result.environment)
    if result.arguments:
        lines += ["DOMINO_TUNE_ARGS=(", *(f"    {entry}" for entry in result.arguments), ")"]
    return "\n".join(lines) + "\n"


def plan_show(request: PlanShowRequest) -> PlanResult:
    """Return the content of a plan file."""
    return PlanResult(plan_file=load_plan(request.file))


def plan_export(request: PlanExportRequest) -> ExportResult:
    """Return the export of a plan file; raise as ``export_plan`` does."""
    return export_plan(load_plan(request.file), request.to)


def check_deepspeed(plan_file: PlanFile) -> None:
    """Raise InfeasiblePlanError (``target``) unless DeepSpeed at edaa722 can run the plan.

    DeepSpeed runs GPT models with two equal row slices, no column slices, order inter or intra, and
    each weight gradient beside its dgrad: the plans that ``tune --target deepspeed`` searches.
    """
    runnable = enumerate_plans(plan_file.model, plan_file.workload, target="deepspeed")
    if replace(plan_file.plan, comm_ctas=0) in runnable:
        return
    raise InfeasiblePlanError(
        f"DeepSpeed cannot run {plan_file.plan.label}: it needs 2 row slices, 1 column slice, "
        "order inter or intra, wgrad eager. Find its best plan with `tune --target deepspeed`.",
        reason="target",
    )
