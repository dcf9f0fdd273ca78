"""Exports to Megatron-Bridge, held against the classes of its configs.

Its modules import CUDA's packages: the fields of their classes are read from their sources.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

from tests.long.frameworks.cases import exports
from tests.long.frameworks.environment import environment, site_packages
from tests.long.frameworks.source import fields_of

PACKAGES: Final = ("megatron-bridge==0.3.1", "megatron-core==0.16.1")
TRAINING: Final = "megatron/bridge/training"


@pytest.fixture(scope="module")
def packages(pytestconfig: pytest.Config) -> Path:
    return site_packages(environment(pytestconfig.cache, *PACKAGES))


def assigned(document: str) -> dict[str, ast.expr]:
    """Return field of the container -> the expression of its value."""
    (configure,) = (one for one in ast.parse(document).body if isinstance(one, ast.FunctionDef))
    return {
        ast.unparse(line.targets[0]).removeprefix("config."): line.value
        for line in configure.body
        if isinstance(line, ast.Assign)
    }


def test_every_field_exists(packages: Path) -> None:
    core = packages / "megatron" / "core"
    model = fields_of(core / "transformer" / "transformer_config.py", "TransformerConfig")
    model |= fields_of(core / "model_parallel_config.py", "ModelParallelConfig")
    model |= fields_of(packages / "megatron/bridge/models/gpt_provider.py", "GPTModelProvider")
    ddp = core / "distributed" / "distributed_data_parallel_config.py"
    known = {
        "model": model,
        "train": fields_of(packages / TRAINING / "config.py", "TrainingConfig"),
        "ddp": fields_of(ddp, "DistributedDataParallelConfig"),
        "optimizer": fields_of(core / "optimizer" / "optimizer_config.py", "OptimizerConfig"),
    }
    made = exports("megatron-bridge")
    assert made.keys() >= {"gpt3-13b", "llama 3.1", "qwen3", "virtual stages", "userbuffers"}
    container = fields_of(packages / TRAINING / "config.py", "ConfigContainer")
    for name, one in made.items():
        for key in assigned(one.document):
            section, _, field = key.partition(".")
            assert section in container, (name, key)
            assert section not in known or field in known[section], (name, key)


def test_what_is_called_takes_what_it_is_given(packages: Path) -> None:
    found = 0
    for one in exports("megatron-bridge").values():
        for value in assigned(one.document).values():
            for call in (node for node in ast.walk(value) if isinstance(node, ast.Call)):
                name = ast.unparse(call.func).rpartition(".")[2]
                module = "mixed_precision" if name == "MixedPrecisionConfig" else "comm_overlap"
                fields = fields_of(packages / TRAINING / f"{module}.py", name)
                assert {keyword.arg for keyword in call.keywords} <= fields, name
                found += 1
    assert found > 20
