"""Load the compiled kernels; compile them first if this machine has no code for them.

Code is stored under a key of all kernels' sources and of the compiler's version, so a changed
kernel never runs old code. It runs on any CPU of an architecture, so images ship it. llvmlite loads
it in a tenth of numba's time. Where no folder is writable, the code is compiled in memory, and a
message says so.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import numpy as np

from simulator.kernels import (
    KERNELS,
    CompiledEntry,
    Kernel,
    clocks,
    compiler,
    lives,
    periodic,
    pipeline,
    planner,
    player,
    windows,
)

MODULES: Final = (clocks, compiler, lives, periodic, pipeline, planner, player, windows)
"""The modules that have kernels; importing a module registers its kernels."""
FOLDER_VARIABLE: Final = "DOMINO_TUNE_KERNELS"
"""Environment variable: the folder of compiled code."""
_CALLED_BY_NOBODY: Final = (
    "NRT_Free", "NRT_MemInfo_call_dtor", "NRT_Allocate", "NRT_MemInfo_alloc_safe_aligned",
    "numba_do_raise", "numba_gil_ensure", "numba_gil_release",
    "numba_runtime_build_excinfo_struct", "numba_unpickle",
)  # fmt: skip
"""Symbols of numba's runtime: kernels neither allocate nor raise, so nothing calls them."""
_PYTHON: Final = (
    "PyBytes_FromStringAndSize", "PyErr_Clear", "PyErr_SetNone", "PyErr_SetString",
    "PyErr_WriteUnraisable", "PyUnicode_FromString", "Py_DecRef", "PyExc_RuntimeError",
    "PyExc_StopIteration", "PyExc_SystemError",
)  # fmt: skip


def call(name: str, *arguments: Any) -> int:
    """Call a compiled entry with integers, floats and C-contiguous arrays of int64 or float64."""
    function = _functions()[name]
    given: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            # An eighth of the time of ``argument.ctypes``; it refuses what is not contiguous.
            given.append(_address(_first_byte(argument)) if argument.size else None)
            given += argument.shape
        else:
            given.append(argument)
    return function(*given)


_address: Final = ctypes.addressof
_first_byte: Final[Callable[[Any], ctypes.c_char]] = ctypes.c_char.from_buffer


def prepare() -> None:
    """Load the kernels; compile them first if this machine has no code for them."""
    _functions()


@cache
def _functions() -> dict[str, Callable[..., int]]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    _add_symbols(llvm)
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    symbols = {}
    for name, (symbol, code) in _compiled().items():
        engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
        symbols[name] = symbol
    engine.finalize_object()
    _functions.engine = engine  # type: ignore[attr-defined]  # it owns the code
    return {
        name: _prototype(KERNELS[name])(engine.get_function_address(symbol))
        for name, symbol in symbols.items()
    }


def _prototype(kernel: Kernel) -> Any:
    types: list[Any] = []
    for argument in kernel.arguments:
        scalar = ctypes.c_int64 if argument[0] == "i" else ctypes.c_double
        dimensions = int(argument[1:] or 0)
        types += [ctypes.c_void_p, *[ctypes.c_int64] * dimensions] if dimensions else [scalar]
    return ctypes.CFUNCTYPE(ctypes.c_int64, *types)


def _add_symbols(llvm: Any) -> None:
    abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    for name in _CALLED_BY_NOBODY:
        llvm.add_symbol(name, abort)
    for name in _PYTHON:
        if name.startswith("PyExc"):
            address = ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.pythonapi, name))
        else:
            address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        llvm.add_symbol(name, address)


# The folder ---------------------------------------------------------------------------------------


def _compiled() -> dict[str, CompiledEntry]:
    try:
        return _kept(kernels_folder(), _key())
    except (OSError, RuntimeError) as error:  # no home is a RuntimeError
        return _compile(f" They cannot be kept ({error}); set {FOLDER_VARIABLE}.")


def _kept(folder: Path, key: str) -> dict[str, CompiledEntry]:
    if not (folder / key).is_dir():
        with _locked(folder):
            if not (folder / key).is_dir():
                _write(folder / key, _compile(""))
    return _read(folder / key)


def kernels_folder() -> Path:
    """Return the folder of compiled code."""
    told = os.environ.get(FOLDER_VARIABLE)
    if told:
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "domino_tune/kernels"


def _compile(why: str) -> dict[str, CompiledEntry]:

    print(
        f"Compiling the simulator's loops, once on this machine (10 to 20 s).{why}", file=sys.stderr
    )
    return dict(compile_kernels())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that of several first starts one compiles."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(folder: Path, compiled: dict[str, CompiledEntry]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        for name, (_, code) in compiled.items():
            (made / f"{name}.o").write_bytes(code)
        index = {name: symbol for name, (symbol, _) in compiled.items()}
        (made / "index.json").write_text(json.dumps(index), "utf-8")
        made.rename(folder)


def _read(folder: Path) -> dict[str, CompiledEntry]:
    index = json.loads((folder / "index.json").read_text("utf-8"))
    return {
        name: CompiledEntry(symbol, (folder / f"{name}.o").read_bytes())
        for name, symbol in index.items()
    }


def _key() -> str:
    """Return a text that differs wherever compiled code may."""
    from importlib.metadata import version  # late: what plays nothing needs none

    parts = [version("numba"), version("llvmlite"), platform.python_version(), platform.machine()]
    files = {Path(one.function.__code__.co_filename) for one in KERNELS.values()}
    for file in [*sorted(files), Path(__file__)]:
        parts.append(file.read_text("utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


# Build --------------------------------------------------------------------------------------------
# Compile kernels to object code with numba; only a first start needs this, and imports numba.


def compile_kernels() -> dict[str, CompiledEntry]:
    """Return each entry's C function, which takes a pointer and the sizes of each array."""
    numba: Any = import_module("numba")
    # Code for any CPU of the architecture: it moves with images, and rounds alike everywhere.
    numba.config.CPU_NAME, numba.config.CPU_FEATURES = "generic", ""
    made: dict[str, Any] = {}
    for one in KERNELS.values():
        # Globals are looked up when numba compiles: callees are then those compiled before.
        own = {**one.function.__globals__, **made}
        plain = FunctionType(one.function.__code__, own, one.name)
        types = [_type(numba, argument) for argument in one.arguments]
        made[one.name] = numba.njit(
            _scalar(numba, one.returns)(*types),
            error_model="numpy",
            no_cpython_wrapper=True,
            no_cfunc_wrapper=True,
            forceinline=not one.entry,  # an array is seven arguments, a call of many costs more
        )(plain)
    entries = [one for one in KERNELS.values() if one.entry]
    return {one.name: _entry(numba, one, made[one.name]) for one in entries}


def _scalar(numba: Any, argument: str) -> Any:
    return numba.int64 if argument[0] == "i" else numba.float64


def _type(numba: Any, argument: str) -> Any:
    scalar = _scalar(numba, argument)
    return scalar if len(argument) == 1 else numba.types.Array(scalar, int(argument[1:]), "C")


def _entry(numba: Any, kernel: Kernel, compiled: Any) -> CompiledEntry:
    names, arrays, types = list[str](), list[str](), list[Any]()
    for number, argument in enumerate(kernel.arguments):
        scalar = _scalar(numba, argument)
        if len(argument) == 1:
            names.append(f"a{number}")
            types.append(scalar)
            continue
        sizes = [f"n{number}_{axis}" for axis in range(int(argument[1:]))]
        names += [f"p{number}", *sizes]
        types += [numba.types.CPointer(scalar), *(numba.int64 for _ in sizes)]
        arrays.append(f"    a{number} = carray(p{number}, ({', '.join(sizes)},))")
    taken = ", ".join(f"a{number}" for number in range(len(kernel.arguments)))
    lines = [f"def entry({', '.join(names)}):", *arrays, f"    return compiled({taken})"]
    scope: dict[str, Any] = {"carray": numba.carray, "compiled": compiled}
    exec("\n".join(lines), scope)
    made = numba.cfunc(numba.int64(*types))(scope["entry"])
    # Numba has no public way to keep code of another process's; tests hold this one.
    return CompiledEntry(made.native_name, made._library._get_compiled_object())
