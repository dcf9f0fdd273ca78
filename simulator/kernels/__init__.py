"""Compiled loops over integer arrays, and the arrays that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeVar, cast

# Kernels ------------------------------------------------------------------------------------------
# Functions over arrays that are compiled to machine code once, and then only loaded.
#
# A kernel is written in the part of Python that numba compiles without allocating or raising:
# integers, floats, and arrays that the caller owns. Called directly, it runs as plain Python.

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


@dataclass(frozen=True)
class Kernel:
    """A function to compile. ``arguments``: a letter for each, ``i`` for int64 or ``f`` for
    float64; a digit after it is the number of dimensions of an array. ``returns``: the same.
    ``entry``: whether Python calls it."""

    function: FunctionType
    arguments: tuple[str, ...]
    returns: str
    entry: bool

    @property
    def name(self) -> str:
        """The function's name, which no other kernel has."""
        return self.function.__name__


class CompiledEntry(NamedTuple):
    """An entry's C function: its symbol, and the object code that has it and all that it calls."""

    symbol: str
    code: bytes


KERNELS: Final[dict[str, Kernel]] = {}
"""All kernels, callees before callers."""


def kernel(
    arguments: str, *, returns: str = "i", entry: bool = False
) -> Callable[[AnyFunction], AnyFunction]:
    """Register a function whose ``arguments`` are like ``"i2 f1 i"``; entries return an int64."""

    def register(function: AnyFunction) -> AnyFunction:
        made = Kernel(cast("FunctionType", function), tuple(arguments.split()), returns, entry)
        KERNELS[made.name] = made
        return function

    return register
