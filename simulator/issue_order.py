"""Orders as data: a line of tokens says in which order a layer's fragments are issued.

A token is ``block.fragment[.piece]:slice+offset``. Offset 0 is the layer that the repetition is
about, +1 the next one in the walk, −1 the one before: software pipelining is written by moving a
token to another repetition. Tokens that fall off the stack's ends are dropped, so a line needs no
prologue and no epilogue of its own.

Forward fragments of a block: norm, a, core, b.<piece>, out.
Backward fragments: out', b_dgrad, b_wgrad, core', a_dgrad.<piece>, a_wgrad, norm'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from simulator.errors import ScheduleError
from simulator.plan import SlicePlan

BLOCKS: Final = ("attn", "mlp")
FORWARD_FRAGMENTS: Final = ("norm", "a", "core", "b", "out")
BACKWARD_FRAGMENTS: Final = ("out'", "b_dgrad", "b_wgrad", "core'", "a_dgrad", "a_wgrad", "norm'")
ALL_SLICES: Final = -1
_PATTERN: Final = re.compile(
    r"(?:(attn|mlp)\.)?([a-z_]+'?)(?:\.(\d+))?:(\d+|all)([+-]\d+)", re.ASCII
)


class Token(NamedTuple):
    """One fragment of one slice; ``slice`` is ALL_SLICES for a merged weight gradient."""

    block: str
    fragment: str
    slice: int
    piece: int = -1
    offset: int = 0

    def __str__(self) -> str:
        piece = f".{self.piece}" if self.piece >= 0 else ""
        rows = "all" if self.slice == ALL_SLICES else str(self.slice)
        block = f"{self.block}." if self.block else ""
        return f"{block}{self.fragment}{piece}:{rows}{self.offset:+d}"

    def shifted(self, layers: int) -> Token:
        """The same fragment, ``layers`` later in the walk."""
        return self._replace(offset=self.offset + layers)


@dataclass(frozen=True, kw_only=True)
class Line:
    """The issue order of ``stride`` consecutive layers, repeated along the stack.

    Raises ScheduleError for a stride that is no number of layers.
    """

    tokens: tuple[Token, ...]
    stride: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.stride, int) or self.stride < 1:
            raise ScheduleError(f"An order's stride must be a whole number ≥ 1: {self.stride!r}.")
        if self.stride > max(1, len(self.tokens)):
            raise ScheduleError(
                f"An order's stride is the layers that its tokens issue: {self.stride} cannot be "
                f"more than its {len(self.tokens)} tokens."
            )

    def to_strings(self) -> list[str]:
        """The tokens as text, as plan files hold them."""
        return [str(token) for token in self.tokens]


@dataclass(frozen=True, kw_only=True)
class LayerOrder:
    """Forward and backward lines of a plan: an explicit order."""

    forward: Line
    backward: Line


def parse_token(text: str) -> Token:
    """Inverse of ``str(token)``; raises ScheduleError on anything else."""
    match = _PATTERN.fullmatch(text)
    if match is None or (match[1] or "") not in (*BLOCKS, ""):
        raise ScheduleError(
            f"Bad token {text!r} in an order; a token reads block.fragment[.piece]:slice+offset, "
            "for example 'mlp.b.1:0+0'."
        )
    return Token(
        block=match[1] or "",
        fragment=match[2],
        slice=ALL_SLICES if match[4] == "all" else int(match[4]),
        piece=int(match[3]) if match[3] else -1,
        offset=int(match[5]),
    )


def parse_line(tokens: Iterable[str], stride: int) -> Line:
    """A line from its text form."""
    return Line(tokens=tuple(parse_token(text) for text in tokens), stride=stride)


def pieces(plan: SlicePlan, block: str, fragment: str) -> int:
    """Column pieces of ``b`` or ``a_dgrad`` in this plan."""
    kind = "col" if fragment == "b" else "dgrad"
    count: int = getattr(plan, f"{block}_{kind}_slices")
    return count


def run(plan: SlicePlan, block: str, fragments: Iterable[str], row: int) -> list[Token]:
    """Tokens of consecutive fragments of one slice, column pieces spelled out."""
    tokens = []
    for fragment in fragments:
        if fragment in ("b", "a_dgrad"):
            count = pieces(plan, block, fragment)
            tokens += [Token(block, fragment, row, piece) for piece in range(count)]
        else:
            tokens.append(Token(block, fragment, row))
    return tokens


def defer_wgrads(tokens: list[Token]) -> list[Token]:
    """Move a slice's B wgrad behind its A dgrad, so that the all-reduce starts earlier.

    Before: b_wgrad b_dgrad core' a_dgrad→AR a_wgrad. Now: b_dgrad core' a_dgrad→AR b_wgrad a_wgrad.
    """
    moved = []
    held: dict[tuple[str, int], Token] = {}
    for token in tokens:
        key = (token.block, token.slice)
        if token.fragment == "b_wgrad":
            held[key] = token
            continue
        if token.fragment == "a_wgrad" and key in held:
            moved.append(held.pop(key))
        moved.append(token)
    return moved + list(held.values())


def merge_wgrads(tokens: list[Token]) -> list[Token]:
    """One weight-gradient GEMM over all slices, where the block's last slice issued its own.

    Both of a block's merged GEMMs stand behind the last A dgrad, which they help to hide.
    """
    last = {t.block: i for i, t in enumerate(tokens) if t.fragment == "a_dgrad"}
    merged = []
    for index, token in enumerate(tokens):
        if token.fragment not in ("a_wgrad", "b_wgrad"):
            merged.append(token)
        if last.get(token.block) == index:
            merged += [
                Token(token.block, fragment, ALL_SLICES) for fragment in ("b_wgrad", "a_wgrad")
            ]
    return merged


def place_wgrads(tokens: list[Token], plan: SlicePlan) -> tuple[Token, ...]:
    """Apply the plan's weight-gradient placement and merging to an eager backward line."""
    if plan.merge_wgrad:
        return tuple(merge_wgrads(tokens))
    return tuple(defer_wgrads(tokens) if plan.wgrad == "deferred" else tokens)


def wgrad_chains(line: Line) -> dict[Token, Token | None]:
    """Each weight gradient's predecessor in the accumulation of its weight, None for the first.

    Of two tokens of one layer, the one with the larger offset stands in an earlier repetition.
    """
    chains: dict[Token, Token | None] = {}
    last: dict[tuple[str, str, int], Token] = {}
    wgrads = [t for t in line.tokens if t.fragment.endswith("_wgrad")]
    for token in sorted(wgrads, key=lambda t: -t.offset):
        weight = (token.block, token.fragment, token.offset % line.stride)
        chains[token] = last.get(weight)
        last[weight] = token
    return chains


def check_line(line: Line, plan: SlicePlan, fragments: tuple[str, ...]) -> None:
    """Raise ScheduleError unless every fragment of every slice stands once per layer."""
    expected = set()
    for phase in range(line.stride):
        for block in BLOCKS:
            for row in range(plan.row_slices):
                for token in run(plan, block, fragments, row):
                    if plan.merge_wgrad and token.fragment.endswith("_wgrad"):
                        token = token._replace(slice=ALL_SLICES)
                    expected.add((token._replace(offset=0), phase))
    got = [(t._replace(offset=0), t.offset % line.stride) for t in line.tokens]
    if len(got) != len(set(got)) or set(got) != expected:
        wrong = sorted({str(t) for t, _ in expected.symmetric_difference(got)}) or ["a repeat"]
        raise ScheduleError(
            f"The order does not issue every fragment once per layer: {', '.join(wrong[:4])}. "
            "Its plan was changed after it was planned; plan it again."
        )
