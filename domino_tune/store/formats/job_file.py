"""Job files: the fields of a question as YAML, to ask it again or with other options.

model: llama3-8b
profile: h100-dgx
gpus: 64
global_batch_size: 256
seq_length: 8192
num_hidden_layers: 16     # a field of the model, by its Hugging Face name
nccl_algo: ring           # a key of the implementation
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from domino_tune.requests.options import Request
from domino_tune.store.files import read_text, write_whole
from simulator.errors import InputError

NOTHING: Final = ("", "null", "~")
"""Values that are as if the key were not there."""


def read_job(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield each key with its value: a text, or a list of texts. Raise InputError for another file.

    Values stay texts: the request gives them their types.
    """
    try:
        content = yaml.load(read_text(path), Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        line = f" at line {place.line + 1}" if place else ""
        raise InputError(f"Job file {str(path)!r} is not valid YAML{line}; correct it.") from None
    if not isinstance(content, dict):
        raise InputError(
            f"Job file {str(path)!r} is no list of keys and values; write lines like `tp: 8`."
        )
    for key, value in content.items():
        entries = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str) for one in (key, *entries)):
            raise InputError(f"Job file {str(path)!r}: {key} must be a text or a list of texts.")
        if value not in NOTHING:
            yield key, value


def write_job(path: str | Path, verb: str, request: Request) -> None:
    """Write the fields of a question that are not at their default. Raise InputError."""
    given = {k: list(v) if isinstance(v, tuple) else v for k, v in request.given().items()}
    head = f"# Ask again: domino-tune {verb} --job {shlex.quote(str(path))}\n"
    write_whole(path, head + yaml.safe_dump(given, sort_keys=False, allow_unicode=True))
