"""Exports to NeMo, held against the modules that read them.

Its models import some tens of packages, and CUDA: what they ask their config for is read from their
sources, and the dataclasses of userbuffers are run alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.long.frameworks.cases import exports
from tests.long.frameworks.environment import environment, site_packages
from tests.long.frameworks.source import asked_of, fields_of, texts_of

NEMO: Final = ("nemo_toolkit==2.2.1", "megatron-core==0.11.0")
"""The last with models that Hydra configures, of 2025, and megatron-core of its release."""
ENTRIES: Final = {
    "ring_exchange": "RingExchangeOverlapCfg", "pipeline": "PipelineOverlapCfg",
    "bulk": "BulkOverlapCfg",
}  # fmt: skip
MODELS: Final = "nemo/collections/nlp/models/language_modeling"


@pytest.fixture(scope="module")
def packages(pytestconfig: pytest.Config) -> Path:
    return site_packages(environment(pytestconfig.cache, *NEMO))


def settings(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Return key -> value, as Hydra reads them."""
    model = [entry for entry in arguments if not entry.startswith("trainer.")]
    pairs = [entry.removeprefix("++model.").partition("=") for entry in model]
    assert len({key for key, _, _ in pairs}) == len(pairs)
    return {key: yaml.safe_load(value) for key, _, value in pairs}


def test_every_key_is_asked_for(packages: Path) -> None:
    core = packages / "megatron" / "core"
    known = fields_of(core / "transformer" / "transformer_config.py", "TransformerConfig")
    known |= fields_of(core / "model_parallel_config.py", "ModelParallelConfig")
    for module in ("megatron_gpt_model.py", "megatron_base_model.py"):
        known |= asked_of(packages / MODELS / module)
    made = exports("nemo")
    assert made.keys() >= {"gpt3-13b", "llama 3.1", "qwen3", "virtual stages", "userbuffers"}
    for name, one in made.items():
        for key in settings(one.arguments):
            section, _, rest = key.partition(".")
            assert section in known, (name, key)
            assert section != "optim" or rest in known, (name, key)
    assert "no_such_key" not in known
    assert "tensor_model_parallel_size" in known


def test_entries_of_userbuffers_have_the_fields_of_their_classes(packages: Path) -> None:
    path = packages / "nemo/collections/llm/recipes/tp_overlap_configs/userbuffers.py"
    layers = fields_of(path, "TransformerLayerTPOverlapCfg")
    found = 0
    for one in exports("nemo").values():
        entries: dict[str, dict[str, Any]] = {}
        for key, value in settings(one.arguments).items():
            if key.startswith("ub_tp_comm_overlap_cfg."):
                _, gemm, field = key.split(".")
                entries.setdefault(gemm, {})[field] = value
        assert entries.keys() <= layers
        for entry in entries.values():
            assert entry.keys() <= fields_of(path, ENTRIES[entry["method"]])
            found += 1
    assert found > 20


def test_words_are_those_that_nemo_turns_into_megatrons(packages: Path) -> None:
    activations = texts_of(packages / "nemo/collections/nlp/parts/utils_funcs.py")
    model = texts_of(packages / MODELS / "megatron_gpt_model.py")
    granularities = texts_of(packages / "megatron/core/transformer/transformer_config.py")
    for one in exports("nemo").values():
        told = settings(one.arguments)
        assert told["activation"] in activations
        assert told["normalization"] in model
        assert told["activations_checkpoint_granularity"] in {None, *granularities}
