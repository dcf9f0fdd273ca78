"""From what a user types to a request, and the completion of it while it is typed.

``--set`` and job files reach every field of the request, every key of the implementation, and
every field of the model by its Hugging Face name. Entries of a list add up; an option replaces it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import typer

from domino_tune.requests.options import Asked, Request, field_name, from_values, is_list, option_of
from domino_tune.requests.outputs import Asking, Outputs
from simulator.errors import InputError

ELSEWHERE: Final = {
    ("tune", "gpus"): "`layout --gpus N --global-batch-size B` finds the best layout of N GPUs; "
    "`tune` cuts one layout",
    ("tune", "global_batch_size"): "`layout --gpus N --global-batch-size B` finds the best layout "
    "for a global batch; `tune` cuts one layout",
    ("tune", "sweep"): "`scale --gpus A,B,C --global-batch-size B` finds the best layout at each "
    "number of GPUs",
    ("tune", "objective"): "`measure` finds the plan that runs fastest on real ranks",
}
"""Verb and field -> the verb that answers it."""


def asked(kind: type[Asked], typed: Mapping[str, Any], asking: Asking) -> Asked:
    """Return the request. Raise InputError for an unknown key or a wrong value."""
    values: dict[str, Any] = {}
    for key, value in _pairs(asking):
        name, entry = _placed(kind, key, value)
        if is_list(kind.model_fields[name].annotation) and name != "gpus":
            new = entry if isinstance(entry, list) else [entry]
            values[name] = [*values.get(name, ()), *new]
        else:
            values[name] = entry
    return from_values(kind, values | dict(typed))


def _pairs(asking: Asking) -> Iterator[tuple[str, Any]]:
    if asking.job is not None:
        from domino_tune.store.formats.job_file import read_job

        yield from read_job(asking.job)
    for text in asking.settings:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise InputError(f"--set wants KEY=VALUE, got {text!r}; say, num_hidden_layers=40.")
        yield key, value


def _placed(kind: type[Request], key: str, value: Any) -> tuple[str, Any]:
    """Return the field that a key is of, and the value or the entry for it. Raise InputError."""
    from domino_tune.store.formats.hf_config import FIELD_NAMES
    from simulator.implementation import KEYS

    name = field_name(key)
    if name in kind.model_fields:
        return name, value
    known = [*kind.model_fields]
    for field, keys in (("implementation_set", KEYS), ("overrides", FIELD_NAMES)):
        if field in kind.model_fields:
            known += keys
            if key in keys:
                return field, f"{key}={value}"
    near = get_close_matches(key, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(
        f"Unknown key {key!r}.{hint} Keys are the fields that --help lists, and those of the model "
        "by their Hugging Face names."
    )


def check_places(outputs: Outputs) -> None:
    """Raise InputError for a file that cannot be written, before a long computation starts."""
    from domino_tune.store.files import check_writable

    for path in outputs.files().values():
        check_writable(path)


def instead(verb: str, kind: type[Request], flag: str) -> str:
    """Return how to say what an option that does not exist would say; nothing where unknown."""
    name = field_name(flag)
    if told := ELSEWHERE.get((verb, name)):
        return f"{flag} is not an option: {told}."
    wanted = "VALUE"
    if name not in kind.model_fields and name.startswith("no_"):
        name, wanted = name.removeprefix("no_"), "false"
    if name not in kind.model_fields or not option_of(kind, name).rare:
        return ""
    setting = "KEY=VALUE" if name in ("implementation_set", "overrides") else f"{name}={wanted}"
    return f"{flag} is not an option; write --set {setting}, or {name} in a job file (--job)."


# Completion in bash, zsh and fish -----------------------------------------------------------------
# Answers what the shell asks while a user types a command.
#
# A shell asks by running the program with ``_DOMINO_TUNE_COMPLETE`` in its environment, at every
# press of Tab: nothing heavy may be imported here. Without an answer it completes names of files.

PROGRAM: Final = "domino-tune"
ASKED: Final = "_DOMINO_TUNE_COMPLETE"


def _models() -> Iterable[str]:
    from simulator.presets import MODELS

    return MODELS


def _profiles() -> Iterable[str]:
    from domino_tune.store.files import bundled_names, user_names

    return {*bundled_names(), *user_names()}


NAMES: Final[dict[str, Callable[[], Iterable[str]]]] = {
    "model": _models,
    "for_model": _models,
    "profile": _profiles,
    "into": _profiles,
    "first": _profiles,
    "second": _profiles,
}
"""Field of a request -> the names that it takes."""


def completer(field: str, choices: Sequence[str]) -> Callable[[str], list[str]] | None:
    """Return what completes a field's value: its choices or its names; None for anything else."""
    names = NAMES.get(field)
    if not (choices or names):
        return None

    def complete(incomplete: str) -> list[str]:
        known = choices or sorted(names() if names else ())
        return [name for name in known if name.startswith(incomplete)]

    return complete


def answer(app: typer.Typer) -> int:
    """Print the answer to the shell's question; return the exit code that it expects."""
    try:
        app([], prog_name=PROGRAM, standalone_mode=False)
    except SystemExit as end:
        sys.stdout.flush()
        return end.code if isinstance(end.code, int) else 0
    return 0


def is_asked() -> bool:
    """Return whether a shell asks for completion."""
    return ASKED in os.environ
