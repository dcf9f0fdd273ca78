"""One GPU: works that are repeated, their power and clock, and when a collective gets in."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F

from domino_tune.runtime.clock import HeadStart, spin, timed_event
from domino_tune.runtime.lanes import MOVED_PER_BYTE, Pace
from domino_tune.runtime.lanes.streams import HIGH_PRIORITY, EmulatedWire, StreamQueue
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.ops.layers import add_product

# Events that have a time, and calls of an op between them -----------------------------------------

Work = Callable[[int], object]
"""Plays an op once; takes the number of the call."""


def recorded() -> torch.cuda.Event:
    """Return an event after all work issued to the current stream so far."""
    event = timed_event()
    event.record()
    return event


def since_ns(origin: torch.cuda.Event, event: torch.cuda.Event) -> float:
    """Return the ns between two events that have happened."""
    return 1e6 * float(origin.elapsed_time(event))


def ticks_around(work: Work, calls: int) -> list[torch.cuda.Event]:
    """Launch calls of an op; return the events around them."""
    ticks = [recorded()]
    for call in range(calls):
        work(call)
        ticks.append(recorded())
    return ticks


def spans_ns(ticks: Sequence[torch.cuda.Event]) -> list[float]:
    """Return the ns between each event and the next."""
    return [since_ns(a, b) for a, b in pairwise(ticks)]


# Works --------------------------------------------------------------------------------------------
# Ops of a layer by themselves, with operands of their own, to be called over and over.
#
# A work has several sets of operands and takes them in turn, so that none is still in the cache.

SETS: Final = 3
GEMMS: Final = (
    (8192, 1920, 5120), (8192, 5120, 640), (8192, 2560, 5120), (8192, 5120, 2560),
    (4096, 7168, 8192), (4096, 8192, 3584), (2048, 2560, 5120), (2048, 5120, 2560),
    (16384, 2752, 4096),
)  # fmt: skip
"""tokens, out, in: layers of GPT-3 13B, Llama-2 70B and 7B at TP 8."""
ATTENTIONS: Final = ((4, 5, 2048), (1, 8, 4096))
"""Sequences, heads, positions."""
POINTWISE: Final = ((8192, 5120), (4096, 8192))
"""Tokens, width."""


class NamedWork(NamedTuple):
    """A family of ops, a name in it and sizes; ``make`` allocates the operands."""

    family: str
    name: str
    shape: tuple[int, ...]
    make: Callable[[], Work]

    @property
    def case(self) -> str:
        """Family, name and sizes in one text."""
        return f"{self.family}/{self.name}/{'x'.join(map(str, self.shape))}"


def works() -> Iterator[NamedWork]:
    """Yield ops of every family."""
    for sizes in GEMMS:
        for layout in ("forward", "dgrad", "wgrad"):
            yield NamedWork("gemm", layout, sizes, _gemm(layout, *sizes))
    for batch, heads, seq in ATTENTIONS:
        for direction in ("forward", "backward"):
            make = _attention(direction, batch, heads, seq)
            yield NamedWork("attention", direction, (batch, heads, seq, 128), make)
    for tokens, wide in POINTWISE:
        for name in ("layernorm", "gelu", "add"):
            yield NamedWork("pointwise", name, (tokens, wide), _pointwise(name, tokens, wide))


def first_works() -> list[NamedWork]:
    """Return the first op of each family and name."""
    first: dict[tuple[str, str], NamedWork] = {}
    for work in works():
        first.setdefault((work.family, work.name), work)
    return list(first.values())


def _gemm(layout: str, tokens: int, out: int, wide: int) -> Callable[[], Work]:
    def make() -> Work:
        x, dy, weight = (
            [random_bf16(rows, columns) for _ in range(SETS)]
            for rows, columns in ((tokens, wide), (tokens, out), (out, wide))
        )
        gradient = torch.zeros(out, wide, device="cuda")

        def work(call: int) -> object:
            i = call % SETS
            if layout == "forward":
                return F.linear(x[i], weight[i])
            if layout == "dgrad":
                return dy[i] @ weight[i]
            add_product(gradient, dy[i], x[i], accumulate=True)
            return None

        return work

    return make


def _attention(direction: str, batch: int, heads: int, seq: int) -> Callable[[], Work]:
    def make() -> Work:
        leaves = [
            [random_bf16(batch, heads, seq, 128).requires_grad_() for _ in range(3)]
            for _ in range(SETS)
        ]
        results = [_attend(qkv) for qkv in leaves]
        upstream = torch.randn_like(results[0])

        def work(call: int) -> object:
            i = call % SETS
            if direction == "forward":
                with torch.no_grad():
                    return _attend(leaves[i])
            return torch.autograd.grad(results[i], leaves[i], upstream, retain_graph=True)

        return work

    return make


def _attend(qkv: list[torch.Tensor]) -> torch.Tensor:
    return F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)


def _pointwise(name: str, tokens: int, wide: int) -> Callable[[], Work]:
    def make() -> Work:
        x, y = ([random_bf16(tokens, wide) for _ in range(SETS)] for _ in range(2))
        weight, bias = random_bf16(wide), random_bf16(wide)

        def work(call: int) -> object:
            i = call % SETS
            if name == "layernorm":
                return torch.native_layer_norm(x[i], (wide,), weight, bias, 1e-5)
            return F.gelu(x[i], approximate="tanh") if name == "gelu" else x[i] + y[i]

        return work

    return make


def random_bf16(*shape: int) -> torch.Tensor:
    """Return normal random numbers on the GPU."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


# Meetings -----------------------------------------------------------------------------------------
# An emulated collective that arrives near an op, and when its CTAs start.
#
# A collective arrives shortly before an op begins, shortly after, or in its middle. Each of its
# CTAs records when it began. A later arrival waits for a copy from the host, which needs no SM.
#
# ``idle`` and ``idle later`` have no op; they show how much time ``before`` and the later arrivals
# spend on other things. One GPU cannot show a start that waits for the CTAs of other ranks.

CTAS: Final = (4, 16, 32)
RATES: Final = (6.0, 40.0)
"""Bytes/ns through memory per CTA; 40 with 16 CTAs is about what an all-reduce of 280 GB/s over
NVSwitch reads and writes. Below 6 the kernel needs so few registers that it would fit on an SM next
to a persistent GEMM.
"""
COLLECTIVE_NS: Final = 150_000
ARRIVALS: Final = ("idle", "idle later", "before", "behind", "within")
LEAD_NS: Final = 10_000
"""Time from the first of the two to the other; a launch on an idle stream takes less."""
HOST_BYTES_PER_NS: Final = 50
"""Approximate rate of a copy from the host over PCIe 5."""
MOST_DELAY_BYTES: Final = 64 << 20
SPIN_NS: Final = 3_000_000
CALLS: Final = 3
TRIES: Final = 3
REPEATS: Final = 5


class Meeting(NamedTuple):
    """A collective that met ops; all times in ns. ``first_in``, ``all_in``, ``end``: when its first
    CTA began, its last one began, and its last one ended, counted from its arrival; it arrived
    ``arrived`` after both could start. ``ops``: their times. ``late``: the host was late, so the
    times do not count."""

    first_in: int
    all_in: int
    end: int
    arrived: int
    ops: tuple[float, ...]
    late: bool = False


class Encounter(NamedTuple):
    """A meeting to play: calls of an op that takes ``alone_ns``, and a collective of ``ctas`` CTAs
    that each move ``rate`` bytes/ns, with an ``arrival`` out of ARRIVALS."""

    work: Work
    alone_ns: float
    ctas: int
    rate: float
    arrival: str

    @property
    def later_ns(self) -> int:
        """Approximate time by which the collective arrives after the first op begins."""
        return round(self.alone_ns / 2) if self.arrival == "within" else LEAD_NS

    @property
    def calls(self) -> int:
        """Number of ops that it meets."""
        return 0 if self.arrival.startswith("idle") else CALLS


class Gate:
    """Starts ops and a collective at known moments, with the host ahead of both."""

    def __init__(self) -> None:
        self.head_start = HeadStart(SPIN_NS)
        self._wire, self._stream = EmulatedWire(), StreamQueue(HIGH_PRIORITY).stream
        pinned = torch.zeros(MOST_DELAY_BYTES, dtype=torch.uint8, pin_memory=True)
        self._delay = torch.empty_like(pinned, device="cuda"), pinned
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile and load everything in advance, so that no meeting includes it."""
        self._stamped_origin(torch.zeros(1, dtype=torch.int64, device="cuda"))
        for rate in RATES:
            for ctas in CTAS:
                stamps = torch.zeros(ctas, 2, dtype=torch.int64, device="cuda")
                self._wire.carry(moved_bytes(ctas, rate), Pace(COLLECTIVE_NS, ctas), stamps)
        self._wait(MOST_DELAY_BYTES)
        torch.cuda.synchronize()

    def alone_ns(self, work: Work) -> float:
        """Return the median time of an op after others, ns, with the host's initial head start."""
        self.head_start.spin_ns = SPIN_NS
        for call in range(SETS):
            work(call)
        ticks = self._back_to_back(work)
        for _ in range(TRIES):
            if not self.head_start.check():
                break
            ticks = self._back_to_back(work)
        torch.cuda.synchronize()
        return statistics.median(spans_ns(ticks)[1:])

    def _back_to_back(self, work: Work) -> list[torch.cuda.Event]:
        torch.cuda.synchronize()
        self.head_start.give()
        return ticks_around(work, 4 * CALLS)

    def meet(self, encounter: Encounter) -> Meeting:
        """Return one meeting; try again if the host was late."""
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
        return meeting(stamps.tolist(), int(zero), later_ns, spans_ns(ticks))._replace(late=late)

    def _stamped_origin(self, zero: torch.Tensor) -> torch.cuda.Event:
        """Write the device's clock to ``zero``, and return an event of the same moment."""
        from domino_tune.runtime.lanes.kernels import stamp

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
        """Keep the current stream busy for as long as the host needs to send ``size`` bytes."""
        target, pinned = (buffer[: min(size, MOST_DELAY_BYTES)] for buffer in self._delay)
        target.copy_(pinned, non_blocking=True)


def moved_bytes(ctas: int, rate: float) -> int:
    """Return the bytes through memory of a collective whose CTAs each move ``rate`` bytes/ns."""
    return max(4 * MOVED_PER_BYTE, round(rate * ctas * COLLECTIVE_NS))


def meeting(
    stamps: Sequence[Sequence[int]], zero_ns: int, later_ns: int, ops_ns: Sequence[float]
) -> Meeting:
    """Return a meeting from its CTAs' (begin, end) on the device's clock, which was ``zero_ns``
    when both could start; the collective arrived ``later_ns`` after that."""
    arrived_ns = zero_ns + later_ns  # an int: the device's clock has more digits than a float
    begun, ended = zip(*stamps, strict=True)
    return Meeting(
        min(begun) - arrived_ns, max(begun) - arrived_ns, max(ended) - arrived_ns, later_ns,
        tuple(ops_ns),
    )  # fmt: skip


def waited_share(found: Sequence[Meeting], alone_ns: float) -> float:
    """Return the median time that a collective waited for the op, as a share of the op's remaining
    time."""
    left = [max(1.0, alone_ns - one.arrived) for one in found]
    return statistics.median(one.all_in / rest for one, rest in zip(found, left, strict=True))


class AdmissionProbe:
    """Rank 0's GPU: how long a collective waits if it arrives in the middle of an op, by family."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.waits: dict[str, list[float]] = {}

    def warm_up(self) -> None:
        """Do nothing: the first round of each meeting is discarded."""

    def measure(self) -> None:
        """Measure all families, once."""
        if self.context.rank == 0 and not self.waits:
            gate = Gate()
            for named in first_works():
                work = named.make()
                alone_ns = gate.alone_ns(work)
                one = Encounter(work, alone_ns, CTAS[1], RATES[-1], "within")
                found = [gate.meet(one) for _ in range(1 + REPEATS)][1:]
                waits = self.waits.setdefault(named.family, [])
                waits.append(round(waited_share(found, alone_ns), 4))
                self.context.beat()
        self.context.barrier()

    def message(self) -> dict[str, Any]:
        """Return the shares by family, or an empty message before they are measured."""
        return {"waits": self.waits} if self.waits else {}
