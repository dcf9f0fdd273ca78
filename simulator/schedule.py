"""Schedule: one total issue order of ops, without durations. Timeline: when each op ran.

A schedule is stored as a stack of equal layers: ``Segment`` holds the op templates of one
repetition and the number of repetitions, ``Repeat`` nests segments (micro-batches). Templates name
values relative to their layer; ``Schedule.ops`` yields the fully named ops.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from simulator.errors import ScheduleError
from simulator.implementation import LaunchOrder
from simulator.ops import Signature
from simulator.values import Ref

COMPUTE: Final = 0
LANES: Final = ("compute", "tp", "dp", "cp", "ep")
STEP: Final = "step."
"""Prefix of the roles of the optimizer's step."""
RECOMPUTED_SUFFIX: Final = ".again"
"""Ends the role of the op that recomputes a value."""
TP: Final = 1
DP: Final = 2
CP: Final = 3
EP: Final = 4


class OpTemplate(NamedTuple):
    """One op of a repeated pattern. ``offset`` counts layers from the repetition's first layer.
    ``replayed``: it is in a CUDA graph of a part of the layer. ``earlier``: it is of the
    micro-batch before, and goes back (``simulator.overlapped``). ``sizes``: bytes of the values
    that it writes; 0 of one that is in another's memory (an all-reduce works in place) or only an
    event. Without any, all are 0."""

    role: str
    slice: int
    signature: Signature
    lane: int
    offset: int
    reads: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    weights: tuple[str, ...] = ()
    piece: int = -1
    replayed: bool = False
    earlier: bool = False
    sizes: tuple[int, ...] = ()

    def writing(self, value: Ref, size: int) -> OpTemplate:
        """Return the op with one more value that it writes, of ``size`` bytes."""
        return self._replace(writes=(*self.writes, value), sizes=(*self.sizes, size))

    def shifted(self, layers: int) -> OpTemplate:
        """Return the same op, ``layers`` layers later in the pass."""
        return self._replace(offset=self.offset + layers) if layers else self


class Op(NamedTuple):
    """One op of the whole iteration, fully named. ``reads`` holds values, then weights; ``prefix``
    begins the names of its micro-batch, where there are several."""

    name: str
    role: str
    signature: Signature
    lane: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    micro: int
    layer: int
    slice: int
    piece: int
    prefix: str = ""

    def called(self, ref: Ref) -> str:
        """Return the name of a value, as this op refers to it."""
        return value_name(self.prefix, self.layer, ref)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """``count`` repetitions of ``templates``; repetition r covers layers from first + r·stride.

    ``mirror`` is −1 in the forward pass; otherwise layer = mirror − position, so that the backward
    pass counts from the top of the stack (mirror = layers − 1). ``paired`` is that number where ops
    of an earlier micro-batch are in it, which go back while ``mirror`` is −1.
    """

    templates: Sequence[OpTemplate]
    count: int = 1
    first: int = 0
    stride: int = 1
    mirror: int = -1
    paired: int = -1

    def layer(self, repetition: int, offset: int, *, earlier: bool = False) -> int:
        """Return the layer number of a template with ``offset`` in ``repetition``."""
        position = self.first + repetition * self.stride + offset
        mirror = self.paired if earlier else self.mirror
        return position if mirror < 0 else mirror - position


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """``count`` micro-batches with the same segments; the first has number ``first_micro``.
    ``lag``: by how many micro-batches those that go back are before them."""

    segments: tuple[Segment, ...]
    count: int = 1
    first_micro: int = 0
    lag: int = 1


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The whole iteration: groups of segments, in issue order.

    ``micros`` is the number of micro-batches; ``launch_order`` says who is first on a GPU
    (``simulator.implementation``). ``shared``: what schedules of the same kind of layer have in
    common (``simulator.templates``).
    """

    parts: tuple[Repeat, ...]
    micros: int = 1
    launch_order: LaunchOrder = "comm_first"
    shared: dict[object, Any] = field(default_factory=dict, hash=False, compare=False, repr=False)

    @cached_property
    def programs(self) -> dict[object, Any]:
        """The schedule as arrays, and the programs that it was compiled to, by what they depend on
        of a machine."""
        return {}

    def __len__(self) -> int:
        return sum(
            part.count * sum(s.count * len(s.templates) for s in part.segments)
            for part in self.parts
        )

    def ops(self) -> Iterator[Op]:
        """Yield every op in issue order, fully named."""
        for part in self.parts:
            for repeat in range(part.count):
                micro = part.first_micro + repeat
                for segment in part.segments:
                    yield from _named(segment, micro, self.micros, part.lag)

    def templates(self) -> Iterator[OpTemplate]:
        """Yield the template of every op in issue order: ``ops`` without the layers' names."""
        for part in self.parts:
            once = [t for s in part.segments for _ in range(s.count) for t in s.templates]
            for _ in range(part.count):
                yield from once

    def lanes(self) -> tuple[int, ...]:
        """Return the lanes in use, compute first."""
        used = {t.lane for part in self.parts for s in part.segments for t in s.templates}
        return tuple(sorted(used | {COMPUTE}))


def _named(segment: Segment, micro: int, micros: int, lag: int) -> Iterator[Op]:
    for repetition in range(segment.count):
        for t in segment.templates:
            own = micro - lag * t.earlier
            prefix = f"m{own}." if micros > 1 else ""
            layer = segment.layer(repetition, t.offset, earlier=t.earlier)
            in_layer = f"l{layer}." if is_layer_role(t.role) else ""
            row = f"s{t.slice}." if t.slice >= 0 else ""
            piece = f".{t.piece}" if t.piece >= 0 else ""
            yield Op(
                name=f"{prefix}{in_layer}{row}{t.role}{piece}",
                role=t.role,
                signature=t.signature,
                lane=t.lane,
                reads=(
                    *(value_name(prefix, layer, ref) for ref in named(t, t.reads)),
                    *(f"{in_layer}{weight}" for weight in t.weights),
                ),
                writes=tuple(value_name(prefix, layer, ref) for ref in named(t, t.writes)),
                micro=own,
                layer=layer,
                slice=t.slice,
                piece=t.piece,
                prefix=prefix,
            )


def named(op: OpTemplate, refs: tuple[Ref, ...]) -> tuple[Ref, ...]:
    """Return values of ``op`` with the layers and names that its own micro-batch gives them."""
    if not op.earlier:
        return refs
    return tuple(ref._replace(layer=-ref.layer, earlier=False) for ref in refs)


def value_name(prefix: str, layer: int, ref: Ref) -> str:
    """Return ``l3.s0.attn.qkv`` for a value of layer 3, ``m1.l3.…`` with several micro-batches."""
    return f"{prefix}l{layer + ref.layer}.{ref}"


def is_weight(value: str) -> bool:
    """Return whether ``value`` names a weight: ``l3.w.attn.qkv``, ``w.embed``."""
    return value.startswith("w.") or ".w." in value


def is_layer_role(role: str) -> bool:
    """Return whether an op with this role belongs to a layer, not to the iteration's edges."""
    return role.startswith(("attn.", "mlp.", "dp."))


def check_order(schedule: Schedule) -> None:
    """Raise ScheduleError unless every value is written exactly once, before it is read.

    A collective may read only values of compute ops or of its own lane, because only the compute
    lane waits: the first reader of a result waits for it.
    """
    writer: dict[str, int] = {}
    names: set[str] = set()
    for op in schedule.ops():
        if op.name in names:
            raise ScheduleError(f"Op {op.name!r} is issued twice; each op may be issued once.")
        names.add(op.name)
        for value in op.reads:
            lane = writer.get(value)
            if lane is None:
                if not is_weight(value):
                    raise ScheduleError(
                        f"Op {op.name!r} reads {value!r} before it is written; "
                        "issue its writer first."
                    )
            elif op.lane != COMPUTE and lane not in (COMPUTE, op.lane):
                raise ScheduleError(
                    f"Collective {op.name!r} reads {value!r} from another comm lane; put a compute "
                    "op, which waits, between them."
                )
        for value in op.writes:
            if value in writer:
                raise ScheduleError(f"Value {value!r} is written twice; names are write-once.")
            writer[value] = op.lane


class Breakdown(NamedTuple):
    """Parts of the iteration time, all in ns.

    ``comm_ns``: time with at least one collective in flight; ``exposed_comm_ns``: its part with no
    compute op running; ``idle_ns``: time with no op in flight (the host is late).
    """

    makespan_ns: int
    compute_ns: int
    comm_ns: int
    exposed_comm_ns: int
    idle_ns: int

    @property
    def hidden_comm_fraction(self) -> float:
        """Share of communication time that compute hides; 1 without communication."""
        return 1.0 - self.exposed_comm_ns / self.comm_ns if self.comm_ns else 1.0


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """``start_ns[i]`` and ``end_ns[i]`` belong to the i-th op in issue order."""

    schedule: Schedule
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Ops in issue order, fully named."""
        return tuple(self.schedule.ops())

    @cached_property
    def templates(self) -> tuple[OpTemplate, ...]:
        """Role, lane and signature of each op, in issue order; ``ops`` has their names too."""
        return tuple(self.schedule.templates())

    @cached_property
    def makespan_ns(self) -> int:
        """End of the last op."""
        return max(self.end_ns, default=0)

    def lane(self, lane: int) -> Iterator[tuple[Op, int, int]]:
        """Yield (op, start, end) of one lane's ops in order; times in ns."""
        for op, start, end in zip(self.ops, self.start_ns, self.end_ns, strict=True):
            if op.lane == lane:
                yield op, start, end

    @cached_property
    def breakdown(self) -> Breakdown:
        """Sums over the iteration."""
        spans = list(zip(self.templates, self.start_ns, self.end_ns, strict=True))
        compute = _union((a, b) for op, a, b in spans if op.lane == COMPUTE)
        comm = self.comm_spans
        busy = _length(_union([*compute, *comm]))
        return Breakdown(
            makespan_ns=self.makespan_ns,
            compute_ns=_length(compute),
            comm_ns=_length(comm),
            exposed_comm_ns=busy - _length(compute),
            idle_ns=self.makespan_ns - busy,
        )

    @cached_property
    def comm_spans(self) -> list[tuple[int, int]]:
        """Disjoint (start, end), in ns and sorted: when collectives are in flight."""
        spans = zip(self.templates, self.start_ns, self.end_ns, strict=True)
        return _union((start, end) for op, start, end in spans if op.lane != COMPUTE)

    @cached_property
    def by_role(self) -> dict[str, int]:
        """Time in flight by role (``attn.qkv``, ``mlp.fc2.ar``), in ns, largest first."""
        sums: dict[str, int] = {}
        for op, start, end in zip(self.templates, self.start_ns, self.end_ns, strict=True):
            sums[op.role] = sums.get(op.role, 0) + end - start
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    @cached_property
    def critical_path(self) -> tuple[int, ...]:
        """Indices of the ops that determine the makespan, in order of time.

        The path goes back from the op that ends last: to an op that ended exactly when this one
        started, on the same lane if possible. If none did, the host delayed this op, and the path
        continues at the latest end before.
        """
        path = []
        current = self._ended[self.makespan_ns][-1] if self.end_ns else -1
        while current >= 0:
            path.append(current)
            current = self._before(current)
        return tuple(reversed(path))

    @cached_property
    def _ended(self) -> dict[int, list[int]]:
        """Indices of the ops that ended at a time, in issue order."""
        ended: defaultdict[int, list[int]] = defaultdict(list)
        for index, end_ns in enumerate(self.end_ns):
            ended[end_ns].append(index)
        return dict(ended)

    @cached_property
    def _end_times(self) -> list[int]:
        return sorted(self._ended)

    def _before(self, index: int) -> int:
        ended = self._ended.get(self.start_ns[index])
        if ended is None:
            position = bisect.bisect_right(self._end_times, self.start_ns[index]) - 1
            if position < 0:
                return -1
            ended = self._ended[self._end_times[position]]
        if len(ended) == 1 and ended[0] != index:
            return ended[0]
        before = [i for i in ended if i != index]
        lane = self.templates[index].lane
        return max(before, key=lambda i: (self.templates[i].lane == lane, i), default=-1)


def _union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return disjoint, sorted intervals that cover the same instants."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def _length(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


def parted(segments: Iterable[Segment], *, wgrads: bool) -> list[Segment]:
    """Return the gradients of weights, or all else; collectives are not gradients of weights."""
    kept = []
    for segment in segments:
        templates = tuple(t for t in segment.templates if ("_wgrad" in t.role) == wgrads)
        if templates:
            kept.append(replace(segment, templates=templates))
    return kept
