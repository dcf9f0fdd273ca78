"""Peak memory of each rank of a pipeline: what its chunks hold for the micro-batches in flight, or
what the optimizer's step copies after them."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from simulator.case import Case
from simulator.chunks import Chunk, joined
from simulator.kernels.load import call
from simulator.memory import Live, Memory, Phase, held_parameters, lifetimes
from simulator.op_table import listing_of
from simulator.pipeline.build import PASSES, Piece, Pieces
from simulator.schedule import Repeat

KINDS: Final = {part: kind for kind, part in PASSES.items()}
Phases = dict[str, Phase]
"""Live values of a chunk's passes: of ``F`` and ``B``, and of ``I`` and ``W``
where these are apart."""


def piped_memory(case: Case, pieces: Pieces) -> tuple[Memory, ...]:
    """Return each rank's memory at its peak. In its step it holds nothing of a pass any more."""
    every = {chunk for rank in pieces.ranks for chunk in rank}
    phases = {chunk: held_phases(pieces, chunk) for chunk in every}
    numbered = pieces.numbered
    changes = [_change(phases[one.chunk], KINDS[one.part]) for one in numbered.pieces]
    rows = np.array([(*one.at_peak, *one.at_end) for one in changes], np.int64)
    ranks = [joined(rank) for rank in pieces.ranks]
    alike = {chunk: number for number, chunk in enumerate(ranks)}
    steps = {chunk: _step_peak(pieces, number) for chunk, number in alike.items()}
    peaks = np.array([steps[chunk] for chunk in ranks], np.int64)
    call("rank_peaks", pieces.wires.first, numbered.of_task, rows, peaks)
    static = {
        chunk: held_parameters(case, pieces.step_shapes(number)) for chunk, number in alike.items()
    }
    return tuple(
        static[chunk]._replace(activations=whole - logits, logits=logits)
        for chunk, (whole, logits) in zip(ranks, peaks.tolist(), strict=True)
    )


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
    passes = (Repeat(segments=tuple(chain(*segments))),)
    whole = replace(schedules[0], parts=passes)
    phased = np.repeat(np.arange(len(parts)), [len(several) for several in segments])
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
    found = ahead.programs.get(Live)
    if found is None:
        segments = *ahead.parts[0].segments, *behind.parts[0].segments
        whole = replace(ahead, parts=(Repeat(segments=segments),))
        found = lifetimes(listing_of(whole), np.zeros(len(segments), np.int64), 1)[0].peak
        ahead.programs[Live] = found
    peak: Live = found
    return peak


def _more(phase: Phase, at_peak: int, at_end: int) -> Phase:
    return Phase(_sum(phase.peak, Live(at_peak, 0)), _sum(phase.held, Live(at_end, 0)))
