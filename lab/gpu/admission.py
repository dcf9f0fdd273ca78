"""Admission: when an emulated collective gets in that meets a GEMM, and what both then take.

A collective arrives shortly before a GEMM begins, shortly behind, or in its middle. GEMMs have one
wave of tiles, one and a half, two, four or ten, of the library's kernels and of a persistent one,
each with some SMs that it leaves free. Every CTA of the collective writes when it began.

A collective that arrives later waits for a copy from the host, which needs no SM. ``idle``, ``idle
later``: no GEMM is there; what that takes is in ``before``, or in the later ones, too. Not seen on
one GPU: a start that waits for the CTAs of other ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F

from domino_tune.runtime.head_start import HeadStart, spin
from domino_tune.runtime.lanes.emulated import Wire
from domino_tune.runtime.lanes.pace import Pace
from domino_tune.runtime.lanes.streams import HIGH_PRIORITY, StreamQueue
from lab.gpu.arena import recorded, since_ns, ticks_around
from lab.gpu.contention import COLLECTIVE_NS, moved_bytes
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.works import SETS, Work, random_bf16

SHAPES: Final = (
    (1664, 2560, 5120), (2560, 2560, 5120), (3328, 2560, 5120), (6656, 2560, 5120),
    (16384, 2560, 5120), (4096, 7168, 8192), (8192, 5120, 640),
)  # fmt: skip
"""tokens, out, in: 130, 200, 260, 520 and 1,280 tiles of 128 × 256 on 132 SMs; and two more layers,
to be predicted from the others."""
KINDS: Final = ("library", "spared", "persistent")
"""``library``: cuBLAS as it is. ``spared``: cuBLASLt, asked to leave SMs free (its
SM_COUNT_TARGET). ``persistent``: our kernel on so many SMs fewer."""
MARGINS: Final = (0, 8, 16, 32)
CTAS: Final = (4, 16, 32)
RATES: Final = (6.0, 40.0)
"""Bytes/ns through memory by CTA. With fewer the kernel takes so few registers that it would find
room beside a persistent GEMM's."""
ARRIVALS: Final = ("idle", "idle later", "before", "behind", "within")
LEAD_NS: Final = 10_000
"""Time between the one that is first and the other; a launch of an idle stream takes less."""
HOST_BYTES_PER_NS: Final = 50
"""About what a copy from the host moves over PCIe 5."""
MOST_DELAY_BYTES: Final = 64 << 20
SPIN_NS: Final = 3_000_000
CALLS: Final = 3
REPEATS: Final = 8
TRIES: Final = 3
SECONDS: Final = 2.5


class Meeting(NamedTuple):
    """One collective met GEMMs; all in ns. ``first_in``, ``all_in``, ``end``: when its first CTA
    began, its last one began, and the last one ended, from its arrival, which was ``arrived``
    behind the moment at which both could go. ``gemms``: their times. ``late``: the host was."""

    first_in: int
    all_in: int
    end: int
    arrived: int
    gemms: tuple[float, ...]
    late: bool = False


class Encounter(NamedTuple):
    """What meets: calls of a GEMM that takes ``alone_ns``, and a collective of ``ctas`` that moves
    ``rate`` bytes/ns by CTA and arrives as one of ARRIVALS says."""

    work: Work
    alone_ns: float
    ctas: int
    rate: float
    arrival: str

    @property
    def later_ns(self) -> int:
        """About how much later the collective arrives than the first GEMM begins."""
        return round(self.alone_ns / 2) if self.arrival == "within" else LEAD_NS

    @property
    def calls(self) -> int:
        """How many GEMMs it meets."""
        return 0 if self.arrival.startswith("idle") else CALLS


class Gate:
    """Lets GEMMs and a collective go at known moments, the host ahead of both."""

    def __init__(self) -> None:
        self.head_start = HeadStart(SPIN_NS)
        self._wire, self._stream = Wire(), StreamQueue(HIGH_PRIORITY).stream
        pinned = torch.zeros(MOST_DELAY_BYTES, dtype=torch.uint8, pin_memory=True)
        self._delay = torch.empty_like(pinned, device="cuda"), pinned
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile and load everything, so that no meeting waits for that."""
        from lab.gpu.kernels import stamp

        stamp(torch.zeros(1, dtype=torch.int64, device="cuda"))
        for rate in RATES:
            for ctas in CTAS:
                stamps = torch.zeros(ctas, 2, dtype=torch.int64, device="cuda")
                self._wire.carry(moved_bytes(ctas, rate), Pace(COLLECTIVE_NS, ctas), stamps)
        self._wait(MOST_DELAY_BYTES)
        torch.cuda.synchronize()

    def alone_ns(self, work: Work) -> float:
        """Return the median time of a GEMM behind others, ns. The host's lead is as at first."""
        self.head_start.spin_ns = SPIN_NS
        ticks = self._back_to_back(work)
        for _ in range(TRIES):
            if not self.head_start.check():
                break
            ticks = self._back_to_back(work)
        torch.cuda.synchronize()
        return statistics.median(_spans(ticks)[1:])

    def _back_to_back(self, work: Work) -> list[torch.cuda.Event]:
        torch.cuda.synchronize()
        self.head_start.give()
        return ticks_around(work, 4 * CALLS)

    def meet(self, encounter: Encounter) -> Meeting:
        """Return one meeting; try again where the host was late."""
        found = self._meet(encounter)
        for _ in range(TRIES):
            if not found.late:
                break
            found = self._meet(encounter)
        return found

    def _meet(self, encounter: Encounter) -> Meeting:
        stamps = torch.zeros(encounter.ctas, 2, dtype=torch.int64, device="cuda")
        zero = torch.zeros(1, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        self.head_start.give()
        origin = self._stamped_origin(zero)
        if encounter.arrival in ("idle", "before"):
            arrived = self._send(encounter, stamps, origin, 0)
            spin(LEAD_NS)
            ticks = ticks_around(encounter.work, encounter.calls)
        else:
            ticks = ticks_around(encounter.work, encounter.calls)
            arrived = self._send(encounter, stamps, origin, encounter.later_ns)
        late = self.head_start.check()
        torch.cuda.synchronize()
        later_ns = round(since_ns(origin, arrived))
        return meeting(stamps.tolist(), int(zero), later_ns, _spans(ticks))._replace(late=late)

    def _stamped_origin(self, zero: torch.Tensor) -> torch.cuda.Event:
        """Return an event at the moment that ``zero`` then holds by the device's clock."""
        from lab.gpu.kernels import stamp

        stamp(zero)
        return recorded()

    def _send(
        self, encounter: Encounter, stamps: torch.Tensor, origin: torch.cuda.Event, later_ns: int
    ) -> torch.cuda.Event:
        """Launch the collective; return the event at its arrival."""
        pace = Pace(COLLECTIVE_NS, encounter.ctas)
        self._stream.wait_event(origin)
        with torch.cuda.stream(self._stream):
            if later_ns:
                self._wait(later_ns * HOST_BYTES_PER_NS)
            arrived = recorded()
            self._wire.carry(moved_bytes(encounter.ctas, encounter.rate), pace, stamps)
        return arrived

    def _wait(self, size: int) -> None:
        """Keep the current stream busy for as long as the host needs to send so many bytes."""
        target, pinned = (buffer[: min(size, MOST_DELAY_BYTES)] for buffer in self._delay)
        target.copy_(pinned, non_blocking=True)


def meeting(
    stamps: Sequence[Sequence[int]], zero_ns: int, later_ns: int, gemms_ns: Sequence[float]
) -> Meeting:
    """Return a meeting from its CTAs' (begin, end) by the device's clock, which was ``zero_ns``
    when all could go; the collective arrived ``later_ns`` behind that."""
    arrived_ns = zero_ns + later_ns  # whole: the device's clock has more digits than a float
    begun, ended = zip(*stamps, strict=True)
    return Meeting(
        min(begun) - arrived_ns, max(begun) - arrived_ns, max(ended) - arrived_ns, later_ns,
        tuple(gemms_ns),
    )  # fmt: skip


def median_meeting(found: Sequence[Meeting]) -> dict[str, Any]:
    """Return the medians of several meetings, and how far their starts lie apart."""
    starts = [one.all_in for one in found]
    gemms = zip(*(one.gemms for one in found), strict=True)
    return {
        "first_in_ns": statistics.median(one.first_in for one in found),
        "all_in_ns": statistics.median(starts),
        "end_ns": statistics.median(one.end for one in found),
        "arrived_ns": statistics.median(one.arrived for one in found),
        "late": sum(one.late for one in found),
        "gemms_ns": [statistics.median(times) for times in gemms],
        "least_in_ns": min(starts),
        "most_in_ns": max(starts),
    }  # fmt: skip


def admission_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per GEMM, kind and margin, those without a margin first."""
    gate = cache(Gate)  # made on the GPU, with the first case
    for margin in MARGINS:
        for kind in KINDS:
            if kind == "library" and margin:
                continue
            for shape in SHAPES:
                yield GpuCase(
                    name=f"{kind}/{'x'.join(map(str, shape))}/spares {margin}", seconds=SECONDS,
                    measure=partial(_admitted, gate, kind, shape, margin), tell=told,
                )  # fmt: skip


def _admitted(made: Callable[[], Gate], kind: str, shape: tuple[int, int, int], margin: int) -> Row:
    gate = made()
    work = MAKERS[kind](shape, margin)
    for call in range(SETS):
        work(call)
    alone_ns, cells = gate.alone_ns(work), []
    for arrival in ARRIVALS:
        for rate in RATES:
            for ctas in CTAS:
                encounter = Encounter(work, alone_ns, ctas, rate, arrival)
                gate.meet(encounter)  # warms up
                met = median_meeting([gate.meet(encounter) for _ in range(REPEATS)])
                cells.append({"arrival": arrival, "rate": rate, "ctas": ctas, **met})
    return {
        "kind": kind, "shape": list(shape), "margin": margin, "alone_ns": alone_ns,
        "collective_ns": COLLECTIVE_NS, "cells": cells,
    }  # fmt: skip


def _library(shape: tuple[int, int, int], margin: int) -> Work:
    x, weight, _ = _operands(shape)
    return lambda call: F.linear(x[call % SETS], weight[call % SETS])


def _spared(shape: tuple[int, int, int], margin: int) -> Work:
    x, weight, _ = _operands(shape)

    def work(call: int) -> object:
        usual = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library("cublaslt")
        torch._C._set_sm_carveout_experimental(margin)
        try:
            return F.linear(x[call % SETS], weight[call % SETS])
        finally:
            torch._C._set_sm_carveout_experimental(None)
            torch.backends.cuda.preferred_blas_library(usual)

    return work


def _persistent(shape: tuple[int, int, int], margin: int) -> Work:
    from lab.gpu.kernels import persistent_linear

    x, weight, out = _operands(shape)
    ctas = torch.cuda.get_device_properties(0).multi_processor_count - margin
    return lambda call: persistent_linear(x[call % SETS], weight[call % SETS], out, ctas)


MAKERS: Final[dict[str, Callable[[tuple[int, int, int], int], Work]]] = {
    "library": _library, "spared": _spared, "persistent": _persistent,
}  # fmt: skip


def _operands(
    shape: tuple[int, int, int],
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    tokens, out, wide = shape
    x, weight = (
        [random_bf16(rows, wide) for _ in range(SETS)] for rows in (tokens, out)
    )  # fmt: skip
    return x, weight, random_bf16(tokens, out)


def _spans(ticks: Sequence[torch.cuda.Event]) -> list[float]:
    return [since_ns(a, b) for a, b in pairwise(ticks)]


def told(row: Row) -> str:
    """Return when the last of 16 CTAs got in, by arrival, as shares of the GEMM."""
    alone_ns = row["alone_ns"]
    full = [cell for cell in row["cells"] if cell["ctas"] == 16 and cell["rate"] == RATES[-1]]
    found = ", ".join(f"{c['arrival']} {c['all_in_ns'] / alone_ns:.2f}" for c in full)
    return f"alone {alone_ns / 1e3:.1f} us; 16 CTAs in after {found} of it"
