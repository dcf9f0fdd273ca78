"""Random legal issue orders of a layer: what reads wait for, and topological orders of it."""

from __future__ import annotations

import random
from typing import NamedTuple

from simulator.fragments import Fragments
from simulator.issue_order import IssueOrder, LayerOrder, Token
from simulator.schedules.intra import intra
from simulator.shapes import Shapes


class Edge(NamedTuple):
    """``reader`` reads what ``writer`` wrote ``back`` layers earlier in the walk."""

    reader: Token
    writer: Token
    back: int


def random_order(shapes: Shapes, rng: random.Random) -> LayerOrder:
    """Both lines of the plan's layers, legally shuffled, some fragments moved across layers."""
    start = intra(shapes.plan)
    return LayerOrder(
        forward=_shuffled(start.forward, shapes, rng, sign=1),
        backward=_shuffled(start.backward, shapes, rng, sign=-1),
    )


def edges(line: IssueOrder, shapes: Shapes, *, sign: int) -> list[Edge]:
    """Dependencies between a line's tokens. ``sign`` −1: the walk goes down the stack."""
    fragments = Fragments(shapes=shapes)
    written, read = {}, []
    for token in line.tokens:
        own = set()
        for template in fragments.templates(token):
            for ref in template.reads:
                if ref not in own:
                    read.append((token, ref))
            for ref in template.writes:
                own.add(ref)
                written[ref.at(0)] = (token, ref.layer)
    return [
        Edge(token, written[ref.at(0)][0], sign * (written[ref.at(0)][1] - ref.layer))
        for token, ref in read
        if ref.at(0) in written
    ]


def _shuffled(line: IssueOrder, shapes: Shapes, rng: random.Random, *, sign: int) -> IssueOrder:
    found = edges(line, shapes, sign=sign)
    offsets = _pipelined(line, found, rng)
    parents: dict[Token, set[Token]] = {token: set() for token in line.tokens}
    for edge in found:
        if offsets[edge.reader] - edge.back == offsets[edge.writer]:
            parents[edge.reader].add(edge.writer)
    tokens: list[Token] = []
    while parents:
        ready = [token for token, waits in parents.items() if waits <= set(tokens)]
        tokens.append(rng.choice(ready))
        del parents[tokens[-1]]
    return IssueOrder(tokens=tuple(token.shifted(offsets[token]) for token in tokens))


def _pipelined(line: IssueOrder, found: list[Edge], rng: random.Random) -> dict[Token, int]:
    """Random offsets under which every writer is issued no later than its reader's repetition.

    A fragment with offset o is issued in the repetition o layers before its own. So a reader and
    its writer, ``back`` layers earlier, keep their order as long as
    offset(reader) − back ≤ offset(writer); where they are equal, their places in the line decide.
    """
    offsets = dict.fromkeys(line.tokens, 0)
    for _ in range(4 * len(offsets)):
        token = rng.choice(line.tokens)
        moved = {**offsets, token: offsets[token] + rng.choice((-1, 1))}
        legal = all(moved[e.reader] - e.back <= moved[e.writer] for e in found)
        if abs(moved[token]) <= 1 and legal:
            offsets = moved
    return offsets
