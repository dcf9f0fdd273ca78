"""One request per verb; the command line and the API are generated from these classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from domino_tune.requests.fields import PlanFields, RanksFields, Request, WorkloadFields
from domino_tune.requests.options import option
from simulator.specs import DTYPE_BYTES

SEARCH_NAMES = ("exhaustive", "bayes", "random")
TARGET_NAMES = ("deepspeed",)
TUNE_ALSO = ("micro_batch_size", "tp_collectives")
EXPORT_FORMATS = (
    "megatron", "megatron-bridge", "deepspeed", "env", "te-userbuffers", "torchtitan",
)  # fmt: skip
OBJECTIVES = ("simulate", "measure")


@dataclass(frozen=True, kw_only=True)
class SimulateRequest(PlanFields):
    """Predict one plan, with the baseline and the no-communication bound."""


@dataclass(frozen=True, kw_only=True)
class TuneRequest(WorkloadFields, RanksFields):
    """Find the best plan."""

    objective: str = option(
        "Source of a plan's time: the simulator, or runs on real ranks.",
        flag="--objective", choices=OBJECTIVES, default="simulate",
    )  # fmt: skip
    evidence: str | None = option(
        "File of every measured run; given again, the search continues (objective measure).",
        flag="--evidence", metavar="FILE", default=None,
    )  # fmt: skip
    force: bool = option(
        "Allow a profile of another machine (objective measure).",
        flag="--force", default=False,
    )  # fmt: skip

    search: str | None = option(
        "exhaustive finds the fastest of all plans under this profile, or measures every plan; "
        "bayes and random try some (default exhaustive; bayes with objective measure).",
        flag="--search", choices=SEARCH_NAMES, default=None,
    )  # fmt: skip
    trials: int | None = option(
        "Most plans to evaluate (default: until no other can be faster; 40 for bayes and random; "
        "8 with objective measure, the baseline included, its final comparison not).",
        flag="--trials", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    seed: int = option(
        "Seed of --search random; the other searches draw nothing.",
        flag="--seed", metavar="K", default=0, minimum=0, maximum=2**32 - 1,
    )  # fmt: skip
    target: str | None = option(
        "Search only plans that this framework can run.",
        flag="--target", choices=TARGET_NAMES, default=None,
    )  # fmt: skip
    gpus: int | None = option(
        "Find the best layout of this many GPUs: tp, pp, vpp, cp, dp, micro-batch and "
        "recomputation; those that are given stay as given.",
        flag="--gpus", metavar="N", default=None, minimum=1, maximum=1 << 16,
    )  # fmt: skip
    global_batch_size: int | None = option(
        "Sequences of one iteration, over all replicas; needed with --gpus and --sweep.",
        flag="--global-batch-size", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    sweep: str | None = option(
        "Find the best layout at each of these numbers of GPUs; the global batch stays the same.",
        flag="--sweep", metavar="gpus=A,B,C", default=None,
    )  # fmt: skip
    tune_also: tuple[str, ...] = option(
        "Tune this too; the global batch does not change.",
        flag="--tune-also", choices=TUNE_ALSO, default=(),
    )  # fmt: skip

    @property
    def method(self) -> str:
        """The search given, else the objective's default."""
        return self.search or ("exhaustive" if self.objective == "simulate" else "bayes")


@dataclass(frozen=True, kw_only=True)
class WhatIfRequest(PlanFields):
    """Predict a plan on a changed machine or workload; the profile does not change."""

    change: tuple[str, ...] = option(
        "Change, like link_bandwidth=2x, link_latency=5us, tp=16, contention=off; may be repeated.",
        flag="--change", metavar="KEY=VALUE", default=(),
    )  # fmt: skip
    sweep: str | None = option(
        "Change KEY to each of the values.",
        flag="--sweep", metavar="KEY=A,B,C", default=None,
    )  # fmt: skip
    retune: bool = option(
        "Find the best plan of each point; otherwise the same plan is replayed.",
        flag="--retune", default=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ValidateRequest(RanksFields):
    """Run plans on real ranks, with the baseline and the bound; compare with predictions."""

    plan: tuple[str, ...] = option(
        "Plan file of `tune --out`; may be repeated for the same model and batch.",
        flag="--plan", metavar="FILE",
    )  # fmt: skip
    profile: str | None = option(
        "Predict with this profile, by name or file (default: the plan's).",
        flag="--profile", metavar="NAME|FILE", default=None,
    )  # fmt: skip
    rounds: int = option(
        "Rounds (default 10); each runs every plan once.",
        flag="--rounds", metavar="N", default=10, minimum=3, maximum=10_000,
    )  # fmt: skip
    emulate_collectives: bool = option(
        "Run rank 0 alone, at any tp: its collectives take the profile's times, which are not "
        "measured.",
        flag="--emulate-collectives", default=False,
    )  # fmt: skip
    max_error: str | None = option(
        "Exit with code 3 when the error of a prediction is larger than this, like 5%.",
        flag="--max-error", metavar="PERCENT", default=None,
    )  # fmt: skip
    force: bool = option("Allow a profile of another machine.", flag="--force", default=False)


@dataclass(frozen=True, kw_only=True)
class ProfileRequest(RanksFields):
    """Measure this machine into a profile; run the same command again to continue."""

    name: str = option("Name of the profile.", flag="--name", metavar="NAME")
    for_model: str | None = option(
        "Measure only what plans for this model need: a preset, a Hugging Face config.json, or a "
        "model file (default: a general grid).",
        flag="--for-model", metavar="NAME|FILE", default=None,
    )  # fmt: skip
    tp: int = option("Tensor-parallel ranks.", flag="--tp", metavar="N", minimum=1)
    dp: int | None = option(
        "Data-parallel replicas (default 1).", flag="--dp", metavar="N", default=None, minimum=1
    )
    seq_length: int | None = option(
        "Tokens of one sequence; needed with --for-model.",
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
        "Override a field of the model, by its Hugging Face name; may be repeated.",
        flag="--set", metavar="FIELD=VALUE", default=(),
    )  # fmt: skip
    minutes: int | None = option(
        "Stop after this time, in minutes (default: when all is measured).",
        flag="--minutes", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    samples: int = option(
        "Timings of each op (default 20).",
        flag="--samples", metavar="N", default=20, minimum=3, maximum=1000,
    )  # fmt: skip
    force: bool = option("Allow a profile file of another machine.", flag="--force", default=False)


@dataclass(frozen=True, kw_only=True)
class PlanShowRequest(Request):
    """Show the contents of a plan file."""

    file: str = option("Plan file.", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class PlanExportRequest(Request):
    """Write the arguments and environment that make a framework run the plan."""

    file: str = option("Plan file.", metavar="FILE")
    to: str = option("Framework or format of the export.", flag="--to", choices=EXPORT_FORMATS)


@dataclass(frozen=True, kw_only=True)
class ModelsRequest(Request):
    """List the presets."""


LAYOUT_FIELDS: Final = ("gpus", "global_batch_size")
"""Fields that ask for layouts; a search of layouts needs both."""
NOT_OF_LAYOUTS: Final = (
    "grad_accumulation",
    "pp_layers",
    "tune_also",
    "target",
    "search",
    "trials",
    "seed",
)
"""Fields of one layout, or of another search, that a search of layouts refuses."""
NOT_SERVED: Final = (
    *RanksFields.__dataclass_fields__, "objective", "evidence", "force", *LAYOUT_FIELDS, "sweep",
)  # fmt: skip
"""Fields of a tune that a server refuses: they start ranks, name files of this machine, or search
layouts."""
LAYOUTS_NOT_SERVED: Final = (
    *(name for name in NOT_SERVED if name not in LAYOUT_FIELDS), *NOT_OF_LAYOUTS,
)  # fmt: skip
"""Fields of a search of layouts that a server refuses."""
SCALE_NOT_SERVED: Final = (
    *(name for name in LAYOUTS_NOT_SERVED if name != "sweep"), "gpus",
)  # fmt: skip
"""Fields of a search at several numbers of GPUs that a server refuses."""
