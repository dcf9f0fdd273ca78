"""A memory of the last few things, by their number or by their weight."""

from __future__ import annotations

from domino_tune.service.lru_cache import Recent


def made(memory: Recent[bytes], key: str, value: bytes) -> bool:
    """Whether it was made just now."""
    calls: list[str] = []

    def make() -> bytes:
        calls.append(key)
        return value

    assert memory.get(key, make) == value
    return bool(calls)


def test_what_was_not_asked_for_longest_is_forgotten() -> None:
    memory: Recent[bytes] = Recent(2)
    assert [made(memory, key, key.encode()) for key in "abac"] == [True, True, False, True]
    assert [made(memory, key, key.encode()) for key in "acb"] == [False, False, True]


def test_by_weight() -> None:
    memory: Recent[bytes] = Recent(10, len)
    assert [made(memory, key, key.encode() * 4) for key in "abab"] == [True, True, False, False]
    assert made(memory, "c", b"123")
    assert not made(memory, "b", b"bbbb")
    assert made(memory, "large", b"x" * 11)
    memory.clear()
    assert made(memory, "d", b"x" * 10)
    assert not made(memory, "d", b"x" * 10)
