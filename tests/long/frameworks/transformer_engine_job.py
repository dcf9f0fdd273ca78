"""Give TransformerEngine's own ``initialize_ub`` exported files, and report what it makes
of them.
"""

from __future__ import annotations

import json
import os
import sys
import typing
import warnings
from enum import Enum
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml

from tests.long.frameworks.one_rank import one_rank
from tests.long.frameworks.source import function_of


def main() -> None:
    cases: dict[str, Any] = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    with one_rank():
        found = {name: answer(**case) for name, case in cases.items()}
    print(json.dumps(found))


def answer(text: str, tp: int) -> Any:
    """Return the arguments of each GEMM's buffer, or why the file is refused."""
    base = Path(str(distribution("transformer_engine").locate_file("transformer_engine")))
    names = _names()
    path = base / "pytorch" / "module" / "base.py"
    mode = function_of(path, "UserBufferQuantizationMode", names)
    initialize_ub = function_of(path, "initialize_ub", names)
    try:
        initialize_ub(
            [4096, 1024], tp, quantization_modes=[mode.NONE], ub_cfgs=yaml.safe_load(text)
        )
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return {name: buffer for (name, _), buffer in names["_ub_communicators"].items()}


def _names() -> dict[str, Any]:
    """Return the globals that the function needs. Its compiled half (``tex``) needs a GPU: here a
    buffer is represented by its arguments.
    """
    compiled = SimpleNamespace(
        device_supports_multicast=lambda: True,
        ubuf_built_with_mpi=lambda: False,
        get_stream_priority_range=lambda: (0, -5),
        CommOverlapType=SimpleNamespace(RS="sum", AG="gather"),
        CommOverlapHelper=lambda *groups: None,
        CommOverlapP2P=_ring,
        CommOverlap=_pipeline,
    )
    return {
        **vars(typing), "os": os, "torch": torch, "warnings": warnings, "tex": compiled,
        "Enum": Enum, "_ub_communicators": None, "_ub_with_cublasmp": False,
        "_ub_initialized": False, "_NUM_MAX_UB_STREAMS": 3, "_MIN_STREAM_PRIORITY": None,
        "_MAX_STREAM_PRIORITY": None, "layers_atomic_ring_exchange": [],
    }  # fmt: skip


def _ring(shape: Any, dtype: Any, helper: Any, tp: int, does: str, **told: Any) -> dict[str, Any]:
    return {"copies": "ring", "does": does, **_plain(told)}


def _pipeline(shape: Any, dtype: Any, helper: Any, tp: int, **told: Any) -> dict[str, Any]:
    # Older versions say it only for rings.
    return {"copies": "kernel", "does": told.pop("comm_type", None), **_plain(told)}


def _plain(told: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments; raise TypeError, as the compiled half does, for one of another type."""
    wanted = {"num_comm_sm": int, "num_splits": int, "set_sm_margin": bool}
    found = {}
    for name, kind in wanted.items():
        if name in told and type(told[name]) is not kind:
            raise TypeError(f"{name} is {told[name]!r}")
        found[name] = told.get(name)
    return found


if __name__ == "__main__":
    main()
