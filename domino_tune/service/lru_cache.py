"""Recent: a worker's memory of the last few things it made."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by key, ``most`` of them; what was not asked for longest is forgotten first.

    With ``weigh``, their weights together are at most that.
    """

    def __init__(self, most: int, weigh: Callable[[Value], int] = lambda _: 1) -> None:
        self._most = most
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[str, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, make: Callable[[], Value]) -> Value:
        """The value of ``key``; made now where it is not remembered."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            if key in self._values:  # made by two at once
                self._weight -= self._weigh(self._values.pop(key))
            self._values[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._most:
                self._weight -= self._weigh(self._values.popitem(last=False)[1])
        return value

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._values.clear()
            self._weight = 0
