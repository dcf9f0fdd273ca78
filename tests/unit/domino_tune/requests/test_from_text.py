"""Requests from cells of a table: as if the options had been given on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from domino_tune.requests import SimulateRequest
from domino_tune.requests.options import by_field, request_from_text
from simulator.errors import InputError


def asked(**cells: str) -> SimulateRequest:
    return request_from_text(SimulateRequest, cells)


def test_cells_have_the_types_of_their_options() -> None:
    row = {
        "model": "llama2-7b", "tp": " 8 ", "--micro-batch-size": "2", "comm-ctas": "0",
        "sequence_parallel": "no", "cuda_graph": "TRUE", "power_cap": "500W",
        "overrides": "num_hidden_layers=4 vocab_size=1000", "dtype": "",
    }  # fmt: skip
    assert request_from_text(SimulateRequest, row) == SimulateRequest(
        model="llama2-7b", tp=8, micro_batch_size=2, comm_ctas=0, sequence_parallel=False,
        cuda_graph=True, power_cap="500W",
        overrides=("num_hidden_layers=4", "vocab_size=1000"),
    )  # fmt: skip


def test_empty_cells_are_options_that_are_not_given() -> None:
    assert asked(model="", tp="  ", cuda_graph="", overrides="") == SimulateRequest()


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"tpp": "8"}, "Unknown column 'tpp'. Did you mean 'tp'?"),
        ({"micro_batch": "8"}, "Did you mean 'micro_batch_size'?"),
        ({"": "8"}, "Unknown column ''"),
        ({"tp": "eight"}, "tp must be a whole number, got 'eight'"),
        ({"tp": "9" * 5000}, "tp must be a whole number"),
        ({"tp": "0"}, "--tp must be a whole number ≥ 1, got '0'"),
        ({"tp": "9" * 18}, "--tp must be a whole number ≤"),
        ({"cuda_graph": "maybe"}, "--cuda-graph must be true or false, got 'maybe'"),
        ({"strategy": "megatorn"}, "Did you mean 'megatron'?"),
        ({"dtype": "bf61"}, "Did you mean 'bf16'?"),
    ],
)
def test_bad_cells_are_refused_by_column(cells: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        request_from_text(SimulateRequest, cells)
    assert said in str(refused.value)


def test_two_columns_of_one_option_are_refused() -> None:
    with pytest.raises(InputError, match="micro_batch_size has two columns"):
        by_field({"micro_batch_size": "1", "--micro-batch-size": "2"})
