"""plan export: arguments and environment for a framework."""

from __future__ import annotations

from domino_tune.formats.deepspeed import deepspeed_arguments
from domino_tune.formats.env import environment, export_lines
from domino_tune.formats.megatron import megatron_arguments
from domino_tune.planfile import PlanFile
from domino_tune.results import ExportResult


def export_plan(plan_file: PlanFile, to: str) -> ExportResult:
    """What makes framework ``to`` run the plan.

    Raises InfeasiblePlanError (``target``) for a plan or model that it cannot run.
    """
    arguments: list[str] = []
    settings: dict[str, bool] = {}
    notes: list[str] = []
    if to == "megatron":
        arguments = megatron_arguments(plan_file.model, plan_file.workload, plan_file.cluster)
        if plan_file.plan.strategy == "domino":
            notes.append(
                f"Megatron-LM has no option for row and column slices: it runs this workload "
                f"unsliced, not {plan_file.plan.label}."
            )
    elif to == "deepspeed":
        arguments, settings = deepspeed_arguments(plan_file)
        notes.append("Set the fields of `settings` on the config that DominoTransformer is given.")
    return ExportResult(
        to=to,
        arguments=tuple(arguments),
        settings=settings,
        environment=environment(plan_file.plan),
        notes=tuple(notes),
    )


def export_text(result: ExportResult) -> str:
    """A shell file to source: exports, and the arguments in DOMINO_TUNE_ARGS."""
    lines = [f"# {note}" for note in result.notes]
    lines += [f"# setting: {name} = {value}" for name, value in result.settings.items()]
    lines += export_lines(result.environment)
    if result.arguments:
        lines += ["DOMINO_TUNE_ARGS=(", *(f"    {entry}" for entry in result.arguments), ")"]
    return "\n".join(lines) + "\n"
