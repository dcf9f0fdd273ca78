"""Exports to torchtitan, read by its own ConfigManager."""

from __future__ import annotations

from typing import Final

import pytest

from domino_tune.verbs.plan import export_text
from simulator.specs import ClusterSpec
from tests.long.frameworks.cases import CASES, exports
from tests.long.frameworks.environment import answers, environment
from tests.support.plans import CLUSTER, LLAMA

TORCHTITAN: Final = (
    "torchtitan==0.2.2", "tyro==1.0.17", "docstring-parser==0.18.0", "typeguard==4.6.0",
)  # fmt: skip
"""The last with TOML files, of February 2026; and what its ConfigManager imports."""
WRONG: Final = {
    "Invalid field names": ("tensor_parallel_degree", "tensor_parallel_size"),
    "Invalid parallel dims": ("tensor_parallel_degree = 2", "tensor_parallel_degree = 3"),
    "valid boolean": ("tensor_parallel = false", "tensor_parallel = 1"),
    "'bfloat16' or 'float32'": ("bfloat16", "float8"),
    "Unknown schedule name": ("Interleaved1F1B", "Twisted1F1B"),
    "micro-batches": ("microbatch_size = 2", "microbatch_size = 3"),
}
"""What is refused with these words -> a change of the file of virtual stages."""


def test_every_export_is_read(pytestconfig: pytest.Config) -> None:
    made = exports("torchtitan")
    cases = {
        name: {
            "text": export_text(one),
            "ranks": CASES[name].get("cluster", CLUSTER).world_size,
            "layers": CASES[name].get("model", LLAMA).num_hidden_layers,
        }
        for name, one in made.items()
    }
    assert cases.keys() >= {"gpt3-13b", "llama 3.1", "qwen3", "fsdp", "async-tp", "uneven stages"}
    good = cases["virtual stages"]
    wrong = {}
    for words, (old, new) in WRONG.items():
        assert old in good["text"]
        wrong[words] = {**good, "text": good["text"].replace(old, new)}
    python = environment(pytestconfig.cache, *TORCHTITAN)
    said = answers(python, "torchtitan_job", {**cases, **wrong})
    for name in cases:
        cluster = CASES[name].get("cluster", ClusterSpec(tp=8))
        if cluster.pp == 1:
            assert said[name] == []
            continue
        layers = [sum("layers." in module for module in stage) for stage in said[name]]
        even = (LLAMA.num_hidden_layers // (cluster.pp * cluster.vpp),) * cluster.pp * cluster.vpp
        assert tuple(layers) == (even if name != "uneven stages" else (17, 15)), said[name]
    for words in wrong:
        assert words in said[words]
