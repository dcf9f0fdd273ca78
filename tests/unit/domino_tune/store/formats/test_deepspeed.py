"""What is exported to DeepSpeed's Domino, and what its example has no code for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domino_tune.results.files import ExportResult
from domino_tune.verbs.plan import export_plan
from simulator.errors import InfeasiblePlanError
from simulator.plan import SlicePlan
from simulator.presets import MODELS
from simulator.specs import ClusterSpec
from tests.support.plans import WORKLOAD, plan_file

GPT = MODELS["gpt3-2.7b"]
SHORT = replace(WORKLOAD, seq_length=2048)
TWO_SLICES = SlicePlan(row_slices=2, order="inter", wgrad="eager")


def exported(**named: Any) -> ExportResult:
    named = {"plan": TWO_SLICES, "model": GPT, "workload": SHORT, **named}
    return export_plan(plan_file(**named), "deepspeed")


def test_options_that_its_megatron_lacks_are_left_out_where_they_say_the_usual() -> None:
    rotary = replace(GPT, position_embedding="rope")
    names = {entry.partition(" ")[0] for entry in exported(model=rotary).arguments}
    assert {"--position-embedding-type", "--no-gradient-accumulation-fusion"} <= names
    assert not {"--norm-epsilon", "--rotary-base", "--context-parallel-size"} & names


def test_replicas() -> None:
    two = ClusterSpec(tp=4, dp=2)
    shared = replace(SHORT, data_parallel="distributed-optimizer")
    assert "--use-distributed-optimizer" in exported(workload=shared, cluster=two).arguments
    assert "--use-distributed-optimizer" not in exported(cluster=two).arguments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": ClusterSpec(tp=4, pp=2)}, "pipeline stages"),
        ({"cluster": ClusterSpec(tp=4, cp=2)}, "context parallelism"),
        ({"workload": replace(SHORT, recompute="full")}, "recomputation"),
        ({"workload": replace(SHORT, moments_dtype="bf16")}, "moments below fp32"),
        (
            {
                "workload": replace(SHORT, data_parallel="fsdp"),
                "cluster": ClusterSpec(tp=4, dp=2),
            },
            "run FSDP",
        ),
        ({"model": replace(GPT, position_embedding="none")}, "lack of position embeddings"),
        ({"model": replace(GPT, mlp_bias=False)}, "biases on some linears"),
        ({"model": replace(GPT, norm_eps=1e-6)}, "no option --norm-epsilon"),
        (
            {"model": replace(GPT, position_embedding="rope", rope_theta=500000.0)},
            "computes with 10000, not gpt3-2.7b's 500000",
        ),
    ],
)
def test_what_the_example_does_not_run(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InfeasiblePlanError, match=message) as caught:
        exported(**changes)
    assert caught.value.reason == "target"
