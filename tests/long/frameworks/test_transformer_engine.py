"""The YAML of userbuffers, given to TransformerEngine's own ``initialize_ub``."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.long.frameworks.cases import exports
from tests.long.frameworks.environment import answers, environment

VERSIONS: Final = ("transformer-engine==2.20.2", "transformer-engine==2.11.0")
"""The newest on 24 November 2026, and the newest that megatron-core 0.16 asks for: their modules of
Python, without the compiled half."""
WRONG: Final = {
    "unknown key": "fc2_fprop: {num_sms: 8}",
    "gather in a pipeline": "qkv_fprop: {method: pipeline}",
    "wgrad beside a pipeline": "{qkv_dgrad: {method: pipeline}, qkv_wgrad: {num_sm: 8}}",
    "number as text": "fc2_fprop: {num_sm: eight}",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_file_makes_the_planned_buffers(pytestconfig: pytest.Config, version: str) -> None:
    files = {name: made.document for name, made in exports("te-userbuffers").items()}
    cases = {name: {"text": text, "tp": 8} for name, text in {**files, **WRONG}.items()}
    python = environment(pytestconfig.cache, version)
    said = answers(python, "transformer_engine_job", cases)
    usual, own = said["userbuffers"], said["userbuffers, own methods"]
    assert made(usual["qkv_fprop"]) == ("ring", 1, False)
    assert made(usual["fc2_fprop"]) == ("kernel", 16, True)
    assert usual["fc2_fprop"]["num_splits"] == 4
    assert made(usual["fc1_dgrad"]) == ("kernel", 16, True)
    assert made(usual["fc1_wgrad"]) == ("kernel", 16, True)
    assert made(own["fc2_fprop"]) == ("kernel", 24, True)
    assert own["fc2_fprop"]["num_splits"] == 8
    assert made(own["fc1_dgrad"]) == ("kernel", 8, True)
    dgrads = said["userbuffers, dgrads in pipelines"]
    assert made(dgrads["fc1_dgrad"]) == ("kernel", 8, True)
    assert (dgrads["fc1_dgrad"]["num_splits"], dgrads["qkv_dgrad"]["num_splits"]) == (2, 4)
    for told, gemm, does in (
        (usual, "qkv_fprop", "gather"), (usual, "fc2_fprop", "sum"), (usual, "fc1_dgrad", "gather"),
        (usual, "fc1_wgrad", "sum"), (dgrads, "qkv_dgrad", "sum"),
    ):  # fmt: skip
        assert told[gemm]["does"] in (does, None)
    assert said["userbuffers, GPT"] == usual
    assert {name for name, told in said.items() if isinstance(told, str)} == WRONG.keys()


def made(buffer: dict[str, Any]) -> tuple[str, int, bool]:
    return buffer["copies"], buffer["num_comm_sm"], buffer["set_sm_margin"]
