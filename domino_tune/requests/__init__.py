"""Requests: one class a question, which the command line, the API, the client and the page read.

May import base and the simulator.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from domino_tune.requests.fields import JobFields, PlanFields, RanksFields, WorkloadFields
from domino_tune.requests.options import (
    Count,
    FileName,
    FileNames,
    Request,
    Several,
    Text,
    Texts,
    Whole,
    common,
    job,
    machine,
    option,
    searching,
)
from simulator.dtypes import Dtype
from simulator.errors import InputError

SearchName = Literal["exhaustive", "bayes", "random"]
Target = Literal["deepspeed"]
TuneAlso = Literal["micro_batch_size", "tp_collectives"]
ExportFormat = Literal[
    "megatron", "megatron-bridge", "deepspeed", "env", "te-userbuffers", "torchtitan"
]  # fmt: skip
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Gpus = Annotated[int, Field(ge=1, le=1 << 16)]
Rounds = Annotated[int, Field(ge=3, le=10_000)]
Samples = Annotated[int, Field(ge=3, le=1000)]
GlobalBatchSize = Annotated[Count | None, common(
    "Sequences of one iteration, over all replicas.")]  # fmt: skip
FEWEST: Final = 2
MOST_NUMBERS: Final = 32
NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")


def _numbers(value: Any, told: ValidationInfo) -> Any:
    """Return ``8,16,32``, or a list, as numbers. Raise InputError for numbers that do not rise."""
    kinds = (list,) if told.mode == "json" else (str, list, tuple)
    if not isinstance(value, kinds):
        return value
    texts = [text.strip() for text in value.split(",")] if isinstance(value, str) else value
    read = [int(one) for one in texts if NUMBER.fullmatch(str(one))]
    rising = all(low < high for low, high in pairwise(read))
    if len(read) != len(texts) or not FEWEST <= len(read) <= MOST_NUMBERS or not rising:
        raise InputError(
            f"needs {FEWEST} to {MOST_NUMBERS} rising whole numbers ≥ 1, got "
            f"{str(value)[:80]!r}; write it like 8,16,32."
        )
    return tuple(read)


Numbers = Annotated[
    tuple[Gpus, ...], Field(min_length=FEWEST, max_length=MOST_NUMBERS), BeforeValidator(_numbers)
]


class SimulateRequest(PlanFields):
    """Predict one plan, with the baseline and the no-communication bound."""


class SearchFields(WorkloadFields):
    """How the plans of one layout are searched."""

    trials: Annotated[Count | None, searching(
        "Most plans to evaluate (default: until no other can be faster; 40 for bayes and random; "
        "8 of `measure`, the baseline included, its final comparison not).")] = None  # fmt: skip
    seed: Annotated[Seed, searching(
        "Seed of --search random; the other searches draw nothing.", metavar="K")] = 0  # fmt: skip
    target: Annotated[Target | None, searching(
        "Search only plans that this framework can run.")] = None  # fmt: skip


class TuneRequest(SearchFields):
    """Find the best cut of one layout, by simulation."""

    search: Annotated[SearchName, searching(
        "exhaustive finds the fastest of all plans under this profile; bayes and random try some "
        "(default exhaustive).")] = "exhaustive"  # fmt: skip
    tune_also: Annotated[Several[TuneAlso], searching(
        "Tune this too; the global batch does not change.")] = ()  # fmt: skip


class MeasureRequest(SearchFields, RanksFields):
    """Find the plan that runs fastest on real ranks, which this starts for each plan."""

    search: Annotated[
        SearchName,
        searching("exhaustive measures every plan; bayes and random some (default bayes)."),
    ] = "bayes"
    evidence: Annotated[FileName | None, searching(
        "File of every measured run; given again, the search continues.",
        metavar="FILE")] = None  # fmt: skip
    force: Annotated[bool, machine("Allow a profile of another machine.")] = False
    gpu_hour: Annotated[Text | None, machine(
        "Price of a GPU for an hour, in any currency: answers then have costs.",
        metavar="PRICE", rare=True)] = None  # fmt: skip


class LayoutRequest(JobFields):
    """Find the best layouts of a number of GPUs for a global batch.

    Searched are tp, pp, vpp, cp, dp, micro-batch and recomputation; those that are given stay."""

    gpus: Annotated[Gpus | None, common("GPUs of the whole job.")] = None
    global_batch_size: GlobalBatchSize = None


class ScaleRequest(JobFields):
    """Find the best layouts at several numbers of GPUs, for one global batch.

    What is given of a layout stays."""

    gpus: Annotated[Numbers, common("Numbers of GPUs, from the fewest.", metavar="A,B,C")]
    global_batch_size: GlobalBatchSize = None


class WhatIfRequest(PlanFields):
    """Predict a plan on a changed machine or workload; the profile does not change."""

    change: Annotated[Texts, common(
        "Change, like link_bandwidth=2x, link_latency=5us, tp=16, contention=off; may be "
        "repeated.", metavar="KEY=VALUE")] = ()  # fmt: skip
    sweep: Annotated[Text | None, searching(
        "Change KEY to each of the values.", metavar="KEY=A,B,C")] = None  # fmt: skip
    retune: Annotated[bool, searching(
        "Find the best plan of each point; otherwise the same plan is replayed."
        )] = False  # fmt: skip


class ValidateRequest(RanksFields):
    """Run plans on real ranks, with the baseline and the bound; compare with predictions."""

    plan: Annotated[FileNames, common(
        "Plan file of `tune --out`; may be repeated for the same model and batch.",
        metavar="FILE")]  # fmt: skip
    profile: Annotated[FileName | None, common(
        "Predict with this profile, by name or file (default: the plan's).",
        metavar="NAME|FILE")] = None  # fmt: skip
    rounds: Annotated[Rounds, searching(
        "Rounds (default 10); each runs every plan once.")] = 10  # fmt: skip
    emulate_collectives: Annotated[bool, machine(
        "Run rank 0 alone, at any tp: its collectives take the profile's times, which are not "
        "measured.")] = False  # fmt: skip
    max_error: Annotated[Text | None, searching(
        "Exit with code 3 when the error of a prediction is larger than this, like 5%.",
        metavar="PERCENT")] = None  # fmt: skip
    force: Annotated[bool, machine("Allow a profile of another machine.")] = False


class ProfileRequest(RanksFields):
    """Measure this machine into a profile; run the same command again to continue."""

    name: Annotated[Text, common("Name of the profile.", metavar="NAME")]
    for_model: Annotated[FileName | None, common(
        "Measure only what plans for this model need: a preset, a Hugging Face config.json, or a "
        "model file (default: a general grid).", metavar="NAME|FILE")] = None  # fmt: skip
    tp: Annotated[Count, common("Tensor-parallel ranks.")]
    dp: Annotated[Count | None, common("Data-parallel replicas (default 1).")] = None
    seq_length: Annotated[Count | None, common(
        "Tokens of one sequence; needed with --for-model.")] = None  # fmt: skip
    micro_batch_size: Annotated[Count | None, common(
        "Sequences of one micro-batch; needed with --for-model.")] = None  # fmt: skip
    dtype: Annotated[Dtype | None, job(
        "Type of activations and weights (default bf16 on GPUs, fp32 on CPUs)."
        )] = None  # fmt: skip
    overrides: Annotated[Texts, job(
        "Override a field of the model, by its Hugging Face name; may be repeated.",
        metavar="FIELD=VALUE", flag="--set", rare=True)] = ()  # fmt: skip
    minutes: Annotated[Count | None, searching(
        "Stop after this time, in minutes (default: when all is measured).")] = None  # fmt: skip
    samples: Annotated[Samples, searching(
        "Timings of each op (default 20).")] = 20  # fmt: skip
    force: Annotated[bool, machine("Allow a profile file of another machine.")] = False


class PlanShowRequest(Request):
    """Show the contents of a plan file."""

    file: Annotated[FileName, option("Plan file.", argument=True, metavar="FILE")]


class PlanExportRequest(Request):
    """Write the arguments and environment that make a framework run the plan."""

    file: Annotated[FileName, option("Plan file.", argument=True, metavar="FILE")]
    to: Annotated[ExportFormat, option("Framework or format of the export.")]


class ModelsRequest(Request):
    """List the presets."""


class CalibrateRequest(Request):
    """Fit few physical factors of a profile to measured iterations of your own jobs."""

    profile: Annotated[FileName, common(
        "Profile to start from, by name or file.", metavar="NAME|FILE")]  # fmt: skip
    runs: Annotated[FileName | None, common(
        "Table of runs: columns are options of simulate, and measured_ms; a run without a "
        "strategy is Megatron's.", metavar="FILE.csv")] = None  # fmt: skip
    megatron_log: Annotated[FileNames, common(
        "Output of a Megatron-LM run, which prints its arguments and iteration times; may be "
        "repeated.", metavar="FILE")] = ()  # fmt: skip
    name: Annotated[Text, common("Name of the new profile.", metavar="NAME")]


QUESTIONS: Final[dict[str, type[Request]]] = {
    "tune": TuneRequest,
    "layout": LayoutRequest,
    "scale": ScaleRequest,
    "simulate": SimulateRequest,
    "whatif": WhatIfRequest,
    "measure": MeasureRequest,
    "validate": ValidateRequest,
    "profile": ProfileRequest,
    "calibrate": CalibrateRequest,
}
"""Verb -> what it asks. Job files hold these; kinds of jobs at a server are some of these verbs."""


def verb_of(request: Request) -> str:
    """Return the verb that answers a request."""
    return next(verb for verb, kind in QUESTIONS.items() if type(request) is kind)


# Requests of the profiles verbs -------------------------------------------------------------------
# List, show, check, import, diff.

UNITS: Final[dict[str, float]] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
"""Units of time, in microseconds, shortest first."""
Unit = Literal["ns", "us", "ms", "s"]


class ProfilesListRequest(Request):
    """List the bundled profiles and your own."""


class ProfilesShowRequest(Request):
    """Show a profile's machine and the source of each section."""

    profile: Annotated[FileName, option("Profile name or file.", argument=True, metavar="PROFILE")]


class ProfilesCheckRequest(Request):
    """Validate a profile and report each section's leave-out error."""

    profile: Annotated[FileName, option("Profile name or file.", argument=True, metavar="PROFILE")]


class ProfilesImportRequest(Request):
    """Add a table of measurements to a copy of a profile, in $DOMINO_TUNE_HOME/profiles.

    Give the same --into and --name for each further table: its rows join those imported before.
    """

    file: Annotated[FileName, option("Table to import.", argument=True, metavar="FILE")]
    format: Annotated[Text, option(
        "Format of the table, like nccl-tests or gemm-csv; all stand below.",
        metavar="NAME")]  # fmt: skip
    into: Annotated[FileName, option("Profile to copy, by name or file.", metavar="NAME|FILE")]
    name: Annotated[Text, option("Name of the new profile.", metavar="NAME")]
    op: Annotated[Text | None, option(
        "Collective that was timed, if the table does not say.",
        metavar="NAME")] = None  # fmt: skip
    nodes: Annotated[Count | None, option(
        "Nodes of the group, if the table does not say.")] = None  # fmt: skip
    ranks_per_node: Annotated[Count | None, option(
        "Ranks on each node, if the table does not say.")] = None  # fmt: skip
    ctas: Annotated[Whole, option(
        "NCCL CTAs of the timings (default 0, NCCL's choice).")] = 0  # fmt: skip
    dtype: Annotated[Dtype, option("Type of the elements (default bf16).")] = "bf16"
    unit: Annotated[Unit | None, option("Unit of the column us (default us).")] = None


class ProfilesDiffRequest(Request):
    """List what differs between two profiles."""

    first: Annotated[FileName, option("Profile name or file.", argument=True, metavar="PROFILE")]
    second: Annotated[FileName, option("Profile name or file.", argument=True, metavar="PROFILE")]
