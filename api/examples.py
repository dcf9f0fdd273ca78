"""An example of each operation that takes more than a job's id; tests run them all.

The API's documentation shows each as a call of curl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_WORKLOAD: Final = {
    "model": "llama2-7b", "profile": "h100-dgx", "tp": 8, "seq_length": 4096, "micro_batch_size": 4,
}  # fmt: skip
_TABLE: Final = "m,n,k,us\n4096,12288,4096,650\n8192,12288,4096,1280\n"
_CONFIG: Final = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 2048,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Example:
    """Values of parameters, and the body: JSON, a text, or the name of a ``file`` to send."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    file: str = ""


def _named(name: str, **more: Any) -> Example:
    return Example(parameters={"name": name, **more})


EXAMPLES: Final[Mapping[str, Example]] = {
    "submit_job": Example(body={"kind": "tune", **_WORKLOAD}),
    "label_job": Example(body={"label": "before the new switches"}),
    "simulate": Example(body={**_WORKLOAD, "row_slices": 2}),
    "what_if": Example(body={**_WORKLOAD, "change": ["link_bandwidth=2x"]}),
    "get_file": _named("plan"),
    "get_profile": _named("h100-dgx"),
    "put_profile": Example(parameters={"name": "my-machine"}, file="my-machine.json"),
    "import_profile": Example(
        parameters={"name": "my-gemms", "format": "gemm-csv", "into": "h100-dgx"}, body=_TABLE
    ),
    "delete_profile": _named("my-machine"),
    "add_model": Example(parameters={"name": "my-llama"}, body=_CONFIG),
    "delete_model": _named("my-llama"),
    "static_file": _named("docs.js"),
}  # fmt: skip
"""By the name of the operation."""
