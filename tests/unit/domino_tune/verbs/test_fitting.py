"""The smallest change that fits: it does fit, it is possible, and the original question
did not fit.
"""

from __future__ import annotations

from typing import Any

import pytest

from domino_tune.requests import TuneRequest
from domino_tune.verbs.advice import Deadline, check_may_fit, smallest_change
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.tune import tune
from simulator.errors import InfeasiblePlanError
from simulator.memory import least_peak_bytes, peak_bytes
from simulator.plan import SlicePlan

ASKED: dict[str, dict[str, Any]] = {
    "--micro-batch-size 16 --grad-accumulation 8": {
        "model": "gpt3-13b", "tp": 8, "seq_length": 2048, "micro_batch_size": 64,
        "grad_accumulation": 2,
    },
    "--data-parallel fsdp": {
        "model": "llama2-7b", "tp": 1, "dp": 4, "seq_length": 4096, "micro_batch_size": 1,
        "data_parallel": "replicas",
    },
    "--tp 8": {"model": "gpt3-13b", "tp": 1, "seq_length": 2048, "micro_batch_size": 4},
    "--pp 4 --micro-batch-size 1 --grad-accumulation 8": {
        "model": "llama3-70b", "tp": 8, "seq_length": 4096, "micro_batch_size": 4,
        "grad_accumulation": 2,
    },
}  # fmt: skip


def request(**given: Any) -> TuneRequest:
    return TuneRequest(profile="a100-sxm", search="random", trials=1, **given)


@pytest.mark.parametrize("options", ASKED)
def test_what_it_names_fits_and_what_was_asked_does_not(options: str) -> None:
    asked = request(**ASKED[options])
    case = resolve(asked)
    assert least_peak_bytes(case) > case.memory.usable_bytes
    words = options.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    changes = {
        flag[2:].replace("-", "_"): int(value) if value.isdecimal() else value
        for flag, value in pairs
    }
    assert smallest_change(case, asked, Deadline()) == changes
    with pytest.raises(
        InfeasiblePlanError, match=f"the smallest change that fits: {options}"
    ) as no:
        check_may_fit(case, asked)
    assert (no.value.reason, no.value.change) == ("memory", changes)
    changed = resolve(request(**{**ASKED[options], **changes}))
    rows = changed.workload.micro_batch_size
    plans = [
        SlicePlan(row_slices=rows, order="intra", wgrad="eager", sequence_parallel=mode)
        for mode in changed.modes
    ]
    assert min(peak_bytes(changed, plan) for plan in plans) <= changed.memory.sure_bytes


def test_tune_says_it() -> None:
    with pytest.raises(InfeasiblePlanError, match=r"the smallest change that fits: --tp 8\.$"):
        tune(request(**ASKED["--tp 8"]))


def test_where_nothing_helps() -> None:
    asked = request(
        model="gpt3-175b", tp=8, seq_length=1_000_000, micro_batch_size=1,
        overrides=("max_position_embeddings=1000000",),
    )  # fmt: skip
    hopeless = resolve(asked)
    assert smallest_change(hopeless, asked, Deadline()) == {}
    with pytest.raises(InfeasiblePlanError, match=r"GiB are recommended\.$") as no:
        check_may_fit(hopeless, asked)
    assert no.value.change == {}


def test_no_advice_where_the_time_is_over() -> None:
    asked = request(**ASKED["--tp 8"])
    assert smallest_change(resolve(asked), asked, Deadline(0)) == {}


def test_no_advice_that_the_rest_of_the_request_refuses() -> None:
    """The given nodes cannot hold more ranks; DeepSpeed's Domino has no pipeline."""
    given = {**ASKED["--pp 4 --micro-batch-size 1 --grad-accumulation 8"], "nodes": 1}
    asked = request(**given)
    assert smallest_change(resolve(asked), asked, Deadline()) == {}
    of_target = request(**ASKED["--tp 8"], target="deepspeed")
    change = smallest_change(resolve(of_target), of_target, Deadline())
    assert change == {"tp": 8}
