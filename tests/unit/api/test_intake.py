"""Large bodies: how many bytes of them are held at once, and that they are let go."""

from __future__ import annotations

import pytest

from api.intake import SMALL_BYTES, Intake
from api.problems import ProblemError

MIB = 1 << 20


def test_a_body_is_held_as_far_as_it_has_come_and_let_go() -> None:
    intake = Intake()
    with intake.body("a") as take:
        take(bytes(SMALL_BYTES))
        assert intake.held_bytes == 0
        take(bytes(MIB))
        take(bytes(MIB))
        assert intake.held_bytes == SMALL_BYTES + 2 * MIB
        with intake.body("b") as other:
            other(bytes(SMALL_BYTES + 1))
            assert intake.held_bytes == 2 * MIB + 2 * SMALL_BYTES + 1
    assert intake.held_bytes == 0


def test_small_bodies_are_always_taken() -> None:
    with Intake(most_bytes=0, share_bytes=0).body("a") as take:
        take(bytes(SMALL_BYTES))


def test_a_caller_has_a_share_and_all_have_a_whole() -> None:
    intake = Intake(most_bytes=4 * MIB, share_bytes=3 * MIB)
    with intake.body("a") as first, intake.body("a") as second, intake.body("b") as third:
        first(bytes(2 * MIB))
        with pytest.raises(ProblemError, match="of yours") as own:
            second(bytes(2 * MIB))
        with intake.body("a") as other:
            other(bytes(MIB))
        with pytest.raises(ProblemError, match="take 4 MiB already") as all_of_them:
            third(bytes(3 * MIB))
    assert (own.value.status, all_of_them.value.status) == (429, 503)
    assert own.value.headers["Retry-After"] == all_of_them.value.headers["Retry-After"] == "1"
    with intake.body("a") as again:
        again(bytes(3 * MIB))


def test_what_was_refused_or_failed_is_let_go() -> None:
    intake = Intake(most_bytes=MIB, share_bytes=MIB)

    def held(*sizes: int) -> None:
        with intake.body("a") as take:
            for size in sizes:
                take(bytes(size))
            raise RuntimeError("later")

    for _ in range(3):
        with pytest.raises(ProblemError):
            held(MIB, 1)
        with pytest.raises(RuntimeError, match="later"):
            held(MIB)
    assert intake.held_bytes == 0


@pytest.mark.parametrize("entry", [b"1,", b"{},", b"[],"])
def test_values_are_counted_while_they_come(entry: bytes) -> None:
    with Intake().body("a", most_values=10) as take:
        take(b"[" + 4 * entry)
        with pytest.raises(ProblemError, match="at most 10 values") as many:
            take(6 * entry)
    assert (many.value.status, [one.pointer for one in many.value.faults]) == (422, ["#"])
    with Intake().body("a") as take:
        take(100 * entry)
