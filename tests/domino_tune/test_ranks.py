"""CTA counts that ranks could not give their collectives are refused before anything starts."""

from __future__ import annotations

import pytest

from domino_tune.ranks import check_comm_ctas
from simulator.errors import InputError


def test_gloo_has_no_ctas() -> None:
    check_comm_ctas([0, 0], "gloo", {})
    with pytest.raises(InputError, match=r"comm_ctas = 4 .* gloo does not have; .*--backend nccl"):
        check_comm_ctas([0, 8, 4], "gloo", {})


def test_the_environment_may_not_ask_for_others() -> None:
    check_comm_ctas([0], "nccl", {"NCCL_MAX_CTAS": "16"})
    check_comm_ctas([0, 4, 8], "nccl", {})
    check_comm_ctas([4], "nccl", {"NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": "4"})
    for value in ("16", "many"):
        with pytest.raises(InputError, match=f"NCCL_MAX_CTAS={value} .* Unset NCCL_MAX_CTAS"):
            check_comm_ctas([4], "nccl", {"NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": value})
    with pytest.raises(InputError, match="comm_ctas = 4"):
        check_comm_ctas([4, 8], "nccl", {"NCCL_MIN_CTAS": "4"})
