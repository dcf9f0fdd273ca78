"""Compile kernels to object code with numba; only a first start needs this, and imports numba."""

from __future__ import annotations

from importlib import import_module
from types import FunctionType
from typing import Any

from simulator.kernels.kernel import KERNELS, Compiled, Kernel


def compile_kernels() -> dict[str, Compiled]:
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


def _entry(numba: Any, kernel: Kernel, compiled: Any) -> Compiled:
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
    return Compiled(made.native_name, made._library._get_compiled_object())
