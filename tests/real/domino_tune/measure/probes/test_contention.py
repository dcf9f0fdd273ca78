"""How much ops and all-reduces stretch each other, from when each of them ran on a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("torch")

from domino_tune.measure.probes.contention import (
    TimedOp,
    _Probe,
    chunk_slowdowns,
    chunks_of,
    contention_message,
    longest_chunk_ns,
    slowdowns,
)
from domino_tune.runtime.clock import CHUNK_OPS
from domino_tune.runtime.session import Session
from simulator.ops import Collective
from simulator.schedule import TP


def ops(kinds: str, length: int, start: int = 0) -> list[TimedOp]:
    """Ops back to back; g is a GEMM, p is pointwise."""
    names = {"g": "gemm", "p": "pointwise"}
    return [
        TimedOp(names[kind], start + i * length, start + (i + 1) * length)
        for i, kind in enumerate(kinds)
    ]


def burst(length: int, count: int, start: int = 0) -> list[tuple[int, int]]:
    return [(start + i * length, start + (i + 1) * length) for i in range(count)]


def test_ops_behind_the_last_all_reduce_do_not_count() -> None:
    """A step slowed so much that the all-reduces end before it does runs its rest alone."""
    alone = ops("gp" * 3, 100, 0)
    beside = [*ops("gp", 500, 1_000), *ops("gpgp", 100, 2_000)]
    assert slowdowns(alone, beside, (0, 2_150)) == {"gemm": 3.0, "pointwise": 5.0}
    assert slowdowns(alone, beside, (0, 900)) == {}
    assert slowdowns(alone, beside, (1_100, 2_150)) == {"gemm": 1.0, "pointwise": 5.0}


def test_a_sample_holds_what_all_ranks_saw() -> None:
    """A rank that came further was slowed less: alone it would make contention look small."""
    ranks: list[tuple[dict[str, float], float | None]] = []
    context = SimpleNamespace(lanes_for=lambda ctas: {TP: None}, all_gather_objects=lambda _: ranks)
    session = SimpleNamespace(context=context, workload=SimpleNamespace(dtype="fp32"))
    probe = _Probe(cast(Session, session), Collective("all_reduce", 4096, 1, 2))

    ranks[:] = [({"gemm": 2.0, "pointwise": 1.5}, None), ({"gemm": 4.0}, 1.2)]
    probe._add_sample(*ranks[0])
    assert probe.row()["compute"] == {"gemm": 3.0}
    assert (probe.row()["samples"], probe.row()["collective"]) == (1, 1.2)

    ranks[:] = [({}, None), ({}, None)]
    probe._add_sample(*ranks[0])
    assert probe.row()["samples"] == 1

    ranks[:] = [({}, None), ({"gemm": 5.0}, None)]  # better than nothing
    probe._add_sample(*ranks[0])
    assert probe.row()["compute"] == {"gemm": 4.0}
    assert probe.row()["samples"] == 2


def test_only_what_ran_beside_the_other_counts() -> None:
    alone, beside = ops("gpgp", 100), ops("gpgp", 150)
    factors, stretch = chunk_slowdowns(alone, beside, [burst(120, 4)], one_ns=100.0)
    assert factors == {"gemm": 1.5, "pointwise": 1.5}  # the last op ended behind the last burst
    assert stretch == pytest.approx(1.2)
    factors, _ = chunk_slowdowns(alone, beside, [burst(100, 2)], one_ns=100.0)
    assert factors == {"gemm": 1.5}


def test_all_reduces_longer_than_the_ops_say_nothing_of_themselves() -> None:
    factors, stretch = chunk_slowdowns(ops("gg", 100), ops("gg", 110), [burst(1000, 5, -10)], 900.0)
    assert factors == {"gemm": pytest.approx(1.1)}
    assert stretch is None


def test_an_all_reduce_that_waited_for_other_ranks_is_left_out() -> None:
    late_first = [(0, 500), *burst(100, 4, 500)]
    _, stretch = chunk_slowdowns(ops("g" * 9, 100), ops("g" * 9, 110), [late_first], 100.0)
    assert stretch == pytest.approx(1.0)


def test_every_chunk_has_all_reduces_of_its_own() -> None:
    kinds = "g" * CHUNK_OPS + "pp"
    alone = ops(kinds, 10)
    gap = 10_000  # the next head start
    beside = [*ops(kinds[:CHUNK_OPS], 20), *ops("pp", 30, gap)]
    assert [len(chunk) for chunk in chunks_of(alone)] == [CHUNK_OPS, 2]
    assert longest_chunk_ns(alone) == 10 * CHUNK_OPS
    factors, _ = chunk_slowdowns(alone, beside, [burst(500, 9), burst(500, 3, gap)], 400.0)
    assert factors == {"gemm": 2.0, "pointwise": 3.0}
    with pytest.raises(ValueError, match="zip"):
        chunk_slowdowns(alone, beside, [burst(500, 9)], 400.0)


def test_probes_that_saw_nothing_have_no_row() -> None:
    class Probe:
        def __init__(self, samples: int, compute: dict[str, float]) -> None:
            self.samples, self.compute = samples, compute

        def warm_up(self) -> None: ...

        def measure(self) -> None: ...

        def row(self) -> dict[str, object]:
            return {"compute": self.compute}

    message = contention_message([Probe(0, {}), Probe(1, {}), Probe(1, {"gemm": 1.1})])
    assert message["rows"] == [{"compute": {"gemm": 1.1}}]
