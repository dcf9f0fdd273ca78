"""One request a verb; the command line and the API are generated from these classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from domino_tune.requests.fields import PlanFields, RanksFields, Request, WorkloadFields
from domino_tune.requests.options import option
from simulator.specs import DTYPE_BYTES

SEARCH_NAMES = ("exhaustive", "bayes", "random")
TARGET_NAMES = ("deepspeed",)
TUNE_ALSO = ("micro_batch_size",)
EXPORT_FORMATS = ("megatron", "deepspeed", "env")
OBJECTIVES = ("simulate", "measure")


@dataclass(frozen=True, kw_only=True)
class SimulateRequest(PlanFields):
    """Predict one plan beside the baseline and the no-communication bound."""


@dataclass(frozen=True, kw_only=True)
class TuneRequest(WorkloadFields, RanksFields):
    """Find the best plan."""

    objective: str = option(
        "What a plan is judged by: the simulator, or runs on real ranks, chosen by bayes.",
        flag="--objective", choices=OBJECTIVES, default="simulate",
    )  # fmt: skip
    evidence: str | None = option(
        "File that keeps every measured run; given again, the search goes on (objective measure).",
        flag="--evidence", metavar="FILE", default=None,
    )  # fmt: skip
    force: bool = option(
        "Go on although the profile is of another machine (objective measure).",
        flag="--force", default=False,
    )  # fmt: skip

    search: str | None = option(
        "exhaustive proves the optimum, or measures every plan; bayes and random try some "
        "(default exhaustive; bayes with objective measure).",
        flag="--search", choices=SEARCH_NAMES, default=None,
    )  # fmt: skip
    trials: int | None = option(
        "Plans to evaluate at most (default: until proven; 40 for bayes and random; 8 with "
        "objective measure, the baseline included; its last comparison of plans known is extra).",
        flag="--trials", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    seed: int = option(
        "Same seed, same answer.",
        flag="--seed", metavar="K", default=0, minimum=0, maximum=2**32 - 1,
    )  # fmt: skip
    target: str | None = option(
        "Only plans that this framework can run.",
        flag="--target", choices=TARGET_NAMES, default=None,
    )  # fmt: skip
    tune_also: tuple[str, ...] = option(
        "Tune this too; the global batch stays what it is.",
        flag="--tune-also", choices=TUNE_ALSO, default=(),
    )  # fmt: skip

    @property
    def method(self) -> str:
        """The search: the one asked for, else the objective's own."""
        return self.search or ("exhaustive" if self.objective == "simulate" else "bayes")


@dataclass(frozen=True, kw_only=True)
class WhatIfRequest(PlanFields):
    """Predict a plan on a machine or workload that is changed; the profile is not touched."""

    change: tuple[str, ...] = option(
        "Change this: link_bandwidth=2x, link_latency=5us, tp=16, contention=off …; repeat.",
        flag="--change", metavar="KEY=VALUE", default=(),
    )  # fmt: skip
    sweep: str | None = option(
        "Change this to each of the values in turn.",
        flag="--sweep", metavar="KEY=A,B,C", default=None,
    )  # fmt: skip
    retune: bool = option(
        "Tune anew at each point; else the plan is replayed as it is.",
        flag="--retune", default=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ValidateRequest(RanksFields):
    """Run plans for real, beside the baseline and without communication, and compare."""

    plan: tuple[str, ...] = option(
        "Plan file of `tune --out`; repeat for more of the same model and batch.",
        flag="--plan", metavar="FILE",
    )  # fmt: skip
    profile: str | None = option(
        "Predict with this profile, by name or file (default: the plan's).",
        flag="--profile", metavar="NAME|FILE", default=None,
    )  # fmt: skip
    rounds: int = option(
        "How often each plan is run; they take turns.",
        flag="--rounds", metavar="N", default=10, minimum=3, maximum=10_000,
    )  # fmt: skip
    emulate_collectives: bool = option(
        "Run rank 0 alone: collectives take what the profile says, whatever tp is. So their own "
        "times are put in, not measured.",
        flag="--emulate-collectives", default=False,
    )  # fmt: skip
    max_error: str | None = option(
        "Exit with code 3 when a plan's prediction is further off than this, say 5%.",
        flag="--max-error", metavar="PERCENT", default=None,
    )  # fmt: skip
    force: bool = option(
        "Go on although the profile is of another machine.", flag="--force", default=False
    )


@dataclass(frozen=True, kw_only=True)
class ProfileRequest(RanksFields):
    """Measure this machine into a profile; started again, it goes on where it was."""

    name: str = option("Name of the profile.", flag="--name", metavar="NAME")
    for_model: str | None = option(
        "Measure just what plans for this model need: a preset, a Hugging Face config.json, or a "
        "model file (default: a general grid).",
        flag="--for-model", metavar="NAME|FILE", default=None,
    )  # fmt: skip
    tp: int = option("Tensor-parallel ranks.", flag="--tp", metavar="N", minimum=1)
    dp: int | None = option(
        "Data-parallel replicas (default 1).", flag="--dp", metavar="N", default=None, minimum=1
    )
    seq_length: int | None = option(
        "Tokens of a sequence; needed with --for-model.",
        flag="--seq-length", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    micro_batch_size: int | None = option(
        "Sequences of one micro-batch; needed with --for-model.",
        flag="--micro-batch-size", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    dtype: str | None = option(
        "Type of activations and weights (default bf16 on GPUs, fp32 on CPUs).",
        flag="--dtype", choices=tuple(DTYPE_BYTES), default=None,
    )  # fmt: skip
    overrides: tuple[str, ...] = option(
        "Override a field of the model by its Hugging Face name; repeat for more.",
        flag="--set", metavar="FIELD=VALUE", default=(),
    )  # fmt: skip
    minutes: int | None = option(
        "Stop after this long with what there is (default: when all is measured).",
        flag="--minutes", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    samples: int = option(
        "Timings of each op.", flag="--samples", metavar="N", default=20, minimum=3, maximum=1000
    )
    force: bool = option(
        "Go on with a profile file of another machine.", flag="--force", default=False
    )


@dataclass(frozen=True, kw_only=True)
class PlanShowRequest(Request):
    """Show what a plan file holds."""

    file: str = option("Plan file.", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class PlanExportRequest(Request):
    """Arguments and environment that make a framework run the plan."""

    file: str = option("Plan file.", metavar="FILE")
    to: str = option("For which framework.", flag="--to", choices=EXPORT_FORMATS)


@dataclass(frozen=True, kw_only=True)
class ModelsRequest(Request):
    """List the presets."""


NOT_SERVED: Final = (*RanksFields.__dataclass_fields__, "objective", "evidence", "force")
"""Fields of a tune that a server does not take: they start ranks, or name files here."""
