"""Logs of Megatron-LM: its arguments and the time of its iterations, as a run.

Megatron-LM prints every argument once, as ``  name ........ value``, and for each logged iteration
``elapsed time per iteration (ms): 1234.5`` (megatron/training/arguments.py, training.py).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Final

from domino_tune.store.formats.run_table import RunRow
from simulator.errors import InputError

_ARGUMENT: Final = re.compile(r"^(?:\s*\d+:)?\s+(\w+) \.{2,} (.*)$")
_ELAPSED: Final = re.compile(r"elapsed time per iteration \(ms\): *([0-9.]+)")
WARM_UP: Final = 2
"""Logged iterations to leave out: the first ones compile, allocate and warm up."""
SAME: Final = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "micro_batch_size": "micro_batch_size",
    "seq_length": "seq_length",
}
"""Argument -> option of simulate that means the same."""
SHAPE: Final = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "ffn_hidden_size": "intermediate_size",
    "padded_vocab_size": "vocab_size",
}
"""Argument -> field of a model, to be set on the preset that is nearest in kind."""
MOE: Final = "num_experts"


def read_megatron_log(text: str, source: str) -> RunRow:
    """Return the run of a log, with the median of its iterations.

    Raise InputError where arguments or iterations are missing, or cannot be simulated.
    """
    arguments = _arguments(text)
    times = [float(found) for found in _ELAPSED.findall(text)]
    timed = times[WARM_UP:] or times
    if not timed:
        raise InputError(
            f"{source} has no line with `elapsed time per iteration (ms):`; give the output of "
            "rank 0 or of the last rank, with --log-interval."
        )
    missing = [name for name in (*SAME, "world_size", *SHAPE) if name not in arguments]
    if missing:
        raise InputError(
            f"{source} does not print {', '.join(missing)}; give a log from its beginning, where "
            "Megatron-LM prints its arguments."
        )
    if arguments.get(MOE, "None") != "None":
        raise InputError(f"{source} is of a model with experts, which is not simulated.")
    return RunRow(source, _options(arguments), statistics.median(timed))


def _arguments(text: str) -> dict[str, str]:
    found = (_ARGUMENT.match(line) for line in text.splitlines())
    return {one[1]: one[2].strip() for one in found if one}


def _options(arguments: Mapping[str, str]) -> dict[str, str]:
    options = {option: arguments[name] for name, option in SAME.items()}
    ranks = int(options["tp"]) * int(options["pp"]) * int(options["cp"])
    dp = int(arguments["world_size"]) // ranks
    batch = int(arguments["global_batch_size"])
    chunk = arguments.get("num_layers_per_virtual_pipeline_stage", "None")
    layers = int(arguments["num_layers"])
    gated = arguments.get("swiglu") == "True"
    kv = arguments.get("num_query_groups", "1") if _is(arguments, "group_query_attention") else (
        arguments["num_attention_heads"]
    )  # fmt: skip
    shape = [f"{field}={arguments[name]}" for name, field in SHAPE.items()]
    options |= {
        "model": "llama2-7b" if gated else "gpt3-2.7b",
        "overrides": " ".join([*shape, f"num_key_value_heads={kv}"]),
        "dp": str(dp),
        "grad_accumulation": str(batch // (dp * int(options["micro_batch_size"]))),
        "sequence_parallel": "true" if _is(arguments, "sequence_parallel") else "false",
        "dtype": "bf16" if _is(arguments, "bf16") else "fp16" if _is(arguments, "fp16") else "fp32",
        "recompute": {"full": "full", "selective": "selective"}.get(
            arguments.get("recompute_granularity", "None"), "none"
        ),
        "strategy": "userbuffers" if _is(arguments, "tp_comm_overlap") else "megatron",
        "implementation": "megatron-te",
    }
    if _is(arguments, "use_distributed_optimizer"):
        options["data_parallel"] = "distributed-optimizer"
    if chunk != "None":
        options["vpp"] = str(layers // int(options["pp"]) // int(chunk))
    return options


def _is(arguments: Mapping[str, str], name: str) -> bool:
    return arguments.get(name) == "True"
