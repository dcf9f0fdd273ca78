"""Hashes of values that are keys of many look-ups."""

from __future__ import annotations

from typing import Any, TypeVar

Value = TypeVar("Value")


def hashed_once(cls: type[Value]) -> type[Value]:
    """Let each value of a frozen dataclass compute its hash once. Other processes, whose texts have
    other hashes, compute their own."""
    computed = cls.__hash__

    def kept(self: Any) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = computed(self)
        return found

    def state(self: Any) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    cls.__hash__ = kept  # type: ignore[method-assign]
    cls.__getstate__ = state  # type: ignore[method-assign]
    return cls
