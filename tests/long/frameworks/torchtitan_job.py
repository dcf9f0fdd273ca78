"""Read exported files with torchtitan's own ConfigManager, and say what it refuses.

Beyond its config classes: the types that they tell, its ParallelDims, and its stages.
"""

from __future__ import annotations

import json
import sys
import tempfile
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torchtitan
from pydantic import ConfigDict, TypeAdapter
from torch.distributed.pipelining.schedules import get_schedule_class
from torchtitan.config import ConfigManager, JobConfig
from torchtitan.distributed import ParallelDims

from tests.long.frameworks.source import function_of


def main() -> None:
    cases: dict[str, Any] = json.load(sys.stdin)
    print(json.dumps({name: answer(**case) for name, case in cases.items()}))


def answer(text: str, ranks: int, layers: int) -> Any:
    """Return the modules of each stage, or why torchtitan refuses the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        path.write_text(text)
        try:
            return _stages(_read(path, ranks), layers)
        except (AssertionError, TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"


def _read(path: Path, ranks: int) -> JobConfig:
    config = ConfigManager().parse_args([f"--job.config_file={path}"])
    _check(config)
    told = config.parallelism
    ParallelDims(
        dp_replicate=told.data_parallel_replicate_degree,
        dp_shard=told.data_parallel_shard_degree, cp=told.context_parallel_degree,
        tp=told.tensor_parallel_degree, pp=told.pipeline_parallel_degree,
        ep=told.expert_parallel_degree, etp=told.expert_tensor_parallel_degree, world_size=ranks,
    )  # fmt: skip
    return config


def _check(config: Any) -> None:
    """Raise ValueError for a value of another type than its field tells."""
    hints = typing.get_type_hints(type(config))
    for one in fields(config):
        value = getattr(config, one.name)
        if is_dataclass(value):
            _check(value)
            continue
        strict = ConfigDict(arbitrary_types_allowed=True, strict=True)
        TypeAdapter(hints[one.name], config=strict).validate_python(value)


def _stages(config: JobConfig, layers: int) -> list[list[str]]:
    """Return the modules of each stage, as ``pipeline_llm`` splits them."""
    told = config.parallelism
    get_schedule_class(told.pipeline_parallel_schedule)
    batch, micro = config.training.local_batch_size, told.pipeline_parallel_microbatch_size
    assert told.pipeline_parallel_degree == 1 or batch % micro == 0, "micro-batches"
    if told.module_fqns_per_model_part is not None:
        return list(told.module_fqns_per_model_part)
    if told.pipeline_parallel_layers_per_stage is None:
        return []
    less = (
        told.pipeline_parallel_first_stage_less_layers,
        told.pipeline_parallel_last_stage_less_layers,
    )
    stages = -(-(layers + sum(less)) // told.pipeline_parallel_layers_per_stage)
    # Its module imports the trainer's metrics and data loaders, too.
    path = Path(torchtitan.__file__).parent / "distributed" / "pipeline_parallel.py"
    split = function_of(path, "generate_llm_fqn_per_model_part", {})
    return list(split(stages, layers, *less))


if __name__ == "__main__":
    main()
