"""Exports to Megatron-LM, made into megatron-core's own configs."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.long.frameworks.cases import exports
from tests.long.frameworks.environment import answers, environment
from tests.support.megatron_options import parsed

MEGATRON_CORE: Final = "megatron-core==0.16.1"
"""The newest on 24 November 2026."""
WRONG: Final[dict[str, dict[str, Any]]] = {
    "sequence parallelism without tensor parallelism": {"tensor_model_parallel_size": 1},
    "recompute_method must be": {"recompute_granularity": "full"},
    "some must be": {"recompute_granularity": "some"},
    "'native' or 'te'": {"cross_entropy_fusion_impl": "fast"},
    "valid integer": {"rotary_base": "many"},
    "no_such_option": {"no_such_option": True},
    "num_query_groups": {"num_query_groups": 3},
}
"""What is refused with these words -> options for Qwen3."""


def test_every_export_makes_configs(pytestconfig: pytest.Config) -> None:
    cases = {name: parsed(list(made.arguments)) for name, made in exports("megatron").items()}
    assert cases.keys() >= {"gpt3-13b", "llama 3.1", "qwen3", "virtual stages", "userbuffers"}
    wrong = {words: {**cases["qwen3"], **changes} for words, changes in WRONG.items()}
    python = environment(pytestconfig.cache, MEGATRON_CORE)
    said = answers(python, "megatron_core_job", {**cases, **wrong})
    assert {name: said[name] for name in cases} == dict.fromkeys(cases, "")
    for words in wrong:
        assert words in said[words]
