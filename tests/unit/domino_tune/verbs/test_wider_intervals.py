"""Intervals of jobs whose implementation or network a profile does not know."""

from __future__ import annotations

from domino_tune.requests import SimulateRequest
from domino_tune.requests.options import request_from_text
from domino_tune.results.simulate import SimulateResult
from domino_tune.verbs.resolve import Chosen, plan_of, resolve
from domino_tune.verbs.simulate import simulate_plan

ASKED = {
    "model": "gpt3-6.7b", "profile": "a100-sxm", "tp": "8", "seq_length": "2048",
    "micro_batch_size": "4", "strategy": "megatron", "overrides": "num_hidden_layers=4",
    "implementation": "megatron-2022", "recompute": "full",
}  # fmt: skip


def answer(**changes: str) -> SimulateResult:
    case = resolve(request := request_from_text(SimulateRequest, {**ASKED, **changes}))
    return simulate_plan(case, Chosen.of(case, plan_of(request, None, case)))


def ends(found: SimulateResult) -> tuple[float, float]:
    low, high = found.interval_ms.low, found.interval_ms.high
    return 1 - low / found.iteration_ms, high / found.iteration_ms - 1


def because(found: SimulateResult) -> list[str]:
    return [text for text in found.warnings if text.startswith("The interval is wider")]


def test_kernels_of_2022_widen_upwards_and_the_answer_says_why() -> None:
    down, up = ends(answer())
    assert up > 1.2 * down
    old, *_ = because(answer())
    assert "megatron-2022 runs kernels of 2022" in old
    today = answer(implementation="megatron-te")
    assert because(today) == []


def test_a_network_that_nobody_timed_widens_and_a_timed_one_does_not() -> None:
    one_node, two = (answer(implementation="megatron-te", dp=dp) for dp in ("1", "2"))
    assert because(one_node) == []
    assert ["the network of these nodes" in text for text in because(two)] == [True]
    assert ends(two)[1] > ends(two)[0]
    timed = answer(implementation="megatron-te", dp="2", profile="h100-dgx")
    assert because(timed) == []


def test_a_pipeline_over_nodes_counts_its_messages_and_replicas() -> None:
    piped = answer(implementation="megatron-te", pp="2", dp="2", grad_accumulation="4")
    assert len(because(piped)) == 1
    assert ends(piped)[1] > ends(piped)[0]


def test_what_makes_no_difference_is_not_told() -> None:
    large = answer(micro_batch_size="32", model="gpt3-175b", overrides="num_hidden_layers=2")
    assert not any("host" in text for text in because(large))
    small = answer(micro_batch_size="1", seq_length="512", model="gpt3-1.3b")
    assert any("host" in text for text in because(small))
    graph = answer(micro_batch_size="1", seq_length="512", model="gpt3-1.3b", cuda_graph="yes")
    assert not any("host" in text for text in because(graph))
