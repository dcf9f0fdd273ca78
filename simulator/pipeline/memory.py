"""Peak memory of each rank of a pipeline: what its chunks hold for the micro-batches in flight, or
what the optimizer's step copies after them."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from simulator.case import Case
from simulator.chunks import Chunk, joined
from simulator.memory import Live, Memory, Phase, held_parameters, lifetimes
from simulator.op_table import listing_of
from simulator.pipeline.build import PASSES, Piece, Pieces
from simulator.schedule import Repeat

Phases = dict[str, Phase]
"""Live values of a chunk's passes: of ``F`` and ``B``, and of ``I`` and ``W``
where these are apart."""


def piped_memory(case: Case, pieces: Pieces) -> tuple[Memory, ...]:
    """Return each rank's memory at its peak."""
    every = {chunk for rank in pieces.ranks for chunk in rank}
    chunks = {chunk: held_phases(pieces, chunk) for chunk in every}
    alike = {joined(rank): number for number, rank in enumerate(pieces.ranks)}
    steps = {chunk: _step_peak(pieces, rank) for chunk, rank in alike.items()}
    return tuple(
        _rank_memory(case, pieces, number, chunks, steps[joined(rank)])
        for number, rank in enumerate(pieces.ranks)
    )


def _rank_memory(
    case: Case, pieces: Pieces, rank: int, chunks: dict[Chunk, Phases], step: Live
) -> Memory:
    """Return the memory of a rank, which holds nothing of a pass any more in its step."""
    changes = {
        (kind, number): _change(chunks[chunk], kind)
        for number, chunk in enumerate(pieces.ranks[rank])
        for kind in chunks[chunk]
    }
    whole = logits = 0
    peak = step.whole, step.logits
    for kind, _, number, _ in pieces.actions[rank]:
        change = changes[kind, number]
        peak = max(peak, (whole + change.at_peak.whole, logits + change.at_peak.logits))
        whole += change.at_end.whole
        logits += change.at_end.logits
    static = held_parameters(case, pieces.step_shapes(rank))
    return static._replace(activations=peak[0] - peak[1], logits=peak[1])


class _Change(NamedTuple):
    """By what a pass changes the bytes that its rank holds: at its peak, and after it."""

    at_peak: Live
    at_end: Live


def _change(phases: Phases, kind: str) -> _Change:
    """Return the change of a pass, which takes over what the pass before it left."""
    before = {"F": "", "B": "F", "I": "F", "W": "I"}[kind]
    own = phases[before].held if before else Live(0, 0)
    taken = Live(-own.whole, -own.logits)
    return _Change(_sum(taken, phases[kind].peak), _sum(taken, phases[kind].held))


def _sum(one: Live, other: Live) -> Live:
    return Live(one.whole + other.whole, one.logits + other.logits)


def held_phases(pieces: Pieces, chunk: Chunk) -> Phases:
    """Return what a chunk holds during and after each pass; a received message lives as long as the
    values that it carries."""
    return {
        kind: phase
        for kinds in pieces.ways
        for kind, phase in _held_in(pieces, chunk, kinds).items()
    }


def _held_in(pieces: Pieces, chunk: Chunk, kinds: str) -> Phases:
    """Return the same of passes that follow one another."""
    parts = {kind: PASSES[kind] for kind in kinds}
    schedules = [pieces.schedule(Piece(chunk, part, False)) for part in parts.values()]
    segments = [one.parts[0].segments for one in schedules]
    sizes = {name: size for one in schedules for name, size in one.value_bytes.items()}
    passes = (Repeat(segments=tuple(chain(*segments))),)
    whole = replace(schedules[0], parts=passes, value_bytes=sizes)
    phased = [number for number, several in enumerate(segments) for _ in several]
    found = lifetimes(listing_of(whole), phased, len(parts))
    phases = dict(zip(parts, found, strict=True))
    received = pieces.whole.residual_bytes(-1)
    if not chunk.embedding:
        phases["F"] = _more(phases["F"], received, received)
        phases[kinds[1]] = _more(phases[kinds[1]], received, 0)
    if not chunk.head:
        phases[kinds[1]] = _more(phases[kinds[1]], received, 0)
    return phases


def _step_peak(pieces: Pieces, rank: int) -> Live:
    """Return the most live values of a rank's step."""
    ahead, behind = pieces.step(rank)
    segments = *ahead.parts[0].segments, *behind.parts[0].segments
    whole = replace(ahead, parts=(Repeat(segments=segments),))
    return lifetimes(listing_of(whole), [0] * len(segments), 1)[0].peak


def _more(phase: Phase, at_peak: int, at_end: int) -> Phase:
    return Phase(_sum(phase.peak, Live(at_peak, 0)), _sum(phase.held, Live(at_end, 0)))
