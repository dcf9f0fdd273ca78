"""Issue orders as data: in which order the fragments of a layer are issued.

A token is ``block.fragment[.piece]:slice+offset``. Offset 0 is the repetition's own layer, +1 the
next layer in the pass, −1 the layer before. An order expresses software pipelining by moving a
token to another repetition. Tokens beyond the ends of the stack are dropped, so an order needs no
prologue and no epilogue.

Fragments have Megatron-LM's names. ``qkv`` and ``fc1`` are column-parallel, ``proj`` and ``fc2``
row-parallel; backward fragments end in ``_dgrad``, ``_wgrad`` or ``_bwd``, forward fragments that
backward recomputes in ``_again``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

from simulator.errors import ScheduleError
from simulator.modules import CORE_ALONE, Modules, tokens_again
from simulator.plan import SlicePlan
from simulator.specs import ModelSpec, Recompute
from simulator.values import Ref

BLOCKS: Final = ("attn", "mlp")
COLUMN_PARALLEL: Final = {"attn": "qkv", "mlp": "fc1"}
"""Each block's first linear; backward all-reduces its dgrad, which may be cut into pieces."""
ROW_PARALLEL: Final = {"attn": "proj", "mlp": "fc2"}
"""Each block's last linear; forward all-reduces its output, which may be cut into pieces."""
INPUT: Final = {"attn": "x", "mlp": "y"}
"""What each block reads, and adds its output to."""
OUTPUT: Final = {"attn": Ref("y"), "mlp": Ref("x", layer=1)}
"""What each block writes; the MLP's is the next layer's input."""
CORE: Final = {"attn": "core_attn", "mlp": "act"}
"""The op between the two linears of each block."""
BlockFragments = Mapping[str, tuple[str, ...]]
FORWARD_FRAGMENTS: Final[BlockFragments] = {
    "attn": ("norm", "qkv", "core_attn", "proj", "residual"),
    "mlp": ("norm", "fc1", "act", "fc2", "residual"),
}
BACKWARD_FRAGMENTS: Final[BlockFragments] = {
    "attn": (
        "residual_bwd", "proj_dgrad", "proj_wgrad", "core_attn_bwd", "qkv_dgrad", "qkv_wgrad",
        "norm_bwd",
    ),
    "mlp": (
        "residual_bwd", "fc2_dgrad", "fc2_wgrad", "act_bwd", "fc1_dgrad", "fc1_wgrad", "norm_bwd",
    ),
}  # fmt: skip
AGAIN: Final = "_again"
RECOMPUTED: Final[Mapping[str, BlockFragments]] = {
    "none": {"attn": (), "mlp": ()},
    "per-op": {"attn": ("norm", "qkv", "core_attn", "residual"), "mlp": ("norm", "fc1", "act")},
    "full": FORWARD_FRAGMENTS,
}
"""What backward recomputes of each block; of single modules see ``simulator/modules.py``."""
ALL_SLICES: Final = -1
_PATTERN: Final = re.compile(
    rf"(?:({'|'.join(BLOCKS)})\.)?([a-z_][a-z0-9_]*)(?:\.(\d+))?:(\d+|all)([+-]\d+)", re.ASCII
)


class Token(NamedTuple):
    """One fragment of one slice; ``slice`` is ALL_SLICES for a merged wgrad."""

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

    @property
    def is_wgrad(self) -> bool:
        """Whether it makes the gradient of a weight."""
        return self.fragment.endswith("_wgrad")

    @property
    def is_again(self) -> bool:
        """Whether backward repeats a forward fragment."""
        return self.fragment.endswith(AGAIN)

    @property
    def plain(self) -> Token:
        """The forward token that it repeats; itself otherwise."""
        if not self.is_again:
            return self
        return self._replace(fragment=self.fragment.removesuffix(AGAIN))

    @property
    def linear(self) -> str:
        """The linear whose weight's gradient it makes."""
        return self.fragment.removesuffix("_wgrad")

    def shifted(self, layers: int) -> Token:
        """Return the same fragment, ``layers`` layers later in the pass."""
        return self._replace(offset=self.offset + layers)


@dataclass(frozen=True, kw_only=True)
class IssueOrder:
    """The issue order of ``stride`` consecutive layers, repeated along the stack.

    Raise ScheduleError for a stride below 1 or above the number of tokens.
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
        """Return the tokens as text, as plan files store them."""
        return [str(token) for token in self.tokens]


@dataclass(frozen=True, kw_only=True)
class LayerOrder:
    """The explicit order of a plan: its forward and its backward issue order."""

    forward: IssueOrder
    backward: IssueOrder


def parse_token(text: str) -> Token:
    """Return the token that ``str(token)`` wrote; raise ScheduleError for any other text."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ScheduleError(
            f"Bad token {text!r} in an order; write it as block.fragment[.piece]:slice+offset, "
            "for example 'mlp.fc2.1:0+0'."
        )
    return Token(
        block=match[1] or "",
        fragment=match[2],
        slice=ALL_SLICES if match[4] == "all" else int(match[4]),
        piece=int(match[3]) if match[3] else -1,
        offset=int(match[5]),
    )


def parse_issue_order(tokens: Iterable[str], stride: int) -> IssueOrder:
    """Return the issue order that ``to_strings`` wrote."""
    return IssueOrder(tokens=tuple(parse_token(text) for text in tokens), stride=stride)


@cache
def recomputed_fragments(recompute: Recompute, modules: Modules = CORE_ALONE) -> BlockFragments:
    """Return what backward recomputes of each block, in the order of forward."""
    if recompute != "selective":
        return RECOMPUTED[recompute]
    found = tokens_again(modules)
    return {
        block: tuple(name for name in FORWARD_FRAGMENTS[block] if (block, name) in found)
        for block in BLOCKS
    }


@cache
def backward_fragments(recompute: Recompute, modules: Modules = CORE_ALONE) -> BlockFragments:
    """Return the fragments of backward: those that it recomputes, then its own."""
    again = recomputed_fragments(recompute, modules)
    return {
        block: (*(f"{name}{AGAIN}" for name in again[block]), *BACKWARD_FRAGMENTS[block])
        for block in BLOCKS
    }


def output_of(block: str, row: int) -> Ref:
    """Return what a block writes of a slice."""
    return OUTPUT[block]._replace(slice=row)


def pieces(plan: SlicePlan, block: str, fragment: str) -> int:
    """Return the column pieces of a block's row-parallel GEMM or column-parallel dgrad."""
    kind = "dgrad" if fragment.endswith("_dgrad") else "col"
    count: int = getattr(plan, f"{block}_{kind}_slices")
    return count


@cache
def is_cut(block: str, fragment: str) -> bool:
    """Return whether this fragment may be cut into column pieces."""
    cut = (ROW_PARALLEL[block], f"{COLUMN_PARALLEL[block]}_dgrad")
    return fragment.removesuffix(AGAIN) in cut


def slice_tokens(plan: SlicePlan, block: str, fragments: Iterable[str], row: int) -> list[Token]:
    """Return the tokens of consecutive fragments of slice ``row``, one per column piece."""
    tokens = []
    for fragment in fragments:
        if is_cut(block, fragment):
            count = pieces(plan, block, fragment)
            tokens += [Token(block, fragment, row, piece) for piece in range(count)]
        else:
            tokens.append(Token(block, fragment, row))
    return tokens


def defer_wgrads(tokens: list[Token]) -> list[Token]:
    """Return tokens with row-parallel wgrads after the last dgrad: its all-reduce starts earlier.

    Before: fc2_wgrad fc2_dgrad act_bwd fc1_dgrad→AR fc1_wgrad.
    After: fc2_dgrad act_bwd fc1_dgrad→AR fc2_wgrad fc1_wgrad.
    """
    reordered = []
    deferred: dict[tuple[str, int], Token] = {}
    for token in tokens:
        key = (token.block, token.slice)
        if token.fragment == f"{ROW_PARALLEL[token.block]}_wgrad":
            deferred[key] = token
            continue
        if token.fragment == f"{COLUMN_PARALLEL[token.block]}_wgrad" and key in deferred:
            reordered.append(deferred.pop(key))
        reordered.append(token)
    return reordered + list(deferred.values())


def merge_wgrads(tokens: list[Token]) -> list[Token]:
    """Return ``tokens`` with one wgrad GEMM over all slices instead of one per slice.

    Both merged GEMMs of a block follow its last dgrad and help to hide its all-reduce.
    """
    last = {
        t.block: i
        for i, t in enumerate(tokens)
        if t.fragment == f"{COLUMN_PARALLEL[t.block]}_dgrad"
    }
    merged = []
    for index, token in enumerate(tokens):
        if not token.is_wgrad:
            merged.append(token)
        if last.get(token.block) == index:
            merged += [
                Token(token.block, f"{linear[token.block]}_wgrad", ALL_SLICES)
                for linear in (ROW_PARALLEL, COLUMN_PARALLEL)
            ]
    return merged


def without_recomputation(order: IssueOrder) -> IssueOrder:
    """Return a backward order for layers that are not recomputed."""
    kept = tuple(token for token in order.tokens if not token.is_again)
    return replace(order, tokens=kept)


def dgrads_first(order: IssueOrder) -> IssueOrder:
    """Return an order in which each wgrad follows the dgrad of its linear, for layers in models
    with experts: there a dgrad makes what the wgrad reads, sorted rows or a gathered input."""
    tokens, stride = list(order.tokens), order.stride
    for dgrad in [t for t in order.tokens if t.fragment.endswith("_dgrad") and t.piece <= 0]:
        name, phase = dgrad.fragment.replace("_dgrad", "_wgrad"), dgrad.offset % stride
        twins = [
            t for t in tokens
            if t[:3] == (dgrad.block, name, dgrad.slice) and t.offset % stride == phase
        ]  # fmt: skip
        for wgrad in twins:
            places = [(-t.offset, tokens.index(t)) for t in (wgrad, dgrad)]
            if places[0] < places[1]:
                tokens.remove(wgrad)
                later = wgrad._replace(offset=dgrad.offset)
                tokens.insert(tokens.index(dgrad) + 1, later)
    return replace(order, tokens=tuple(tokens))


def recomputing(
    backward: Iterable[Token], forward: Iterable[Token], recompute: Recompute,
    modules: Modules = CORE_ALONE, *, along_sequences: bool = False,
) -> tuple[Token, ...]:  # fmt: skip
    """Return a backward order with the tokens of ``forward`` that it recomputes.

    A layer is recomputed before its first backward token, wherever that is; modules of it right
    before what reads them. ``along_sequences``: a slice reads keys of earlier ones.
    """
    tokens, computed = list(backward), recomputed_fragments(recompute, modules)
    again = [
        t._replace(fragment=f"{t.fragment}{AGAIN}")
        for t in forward
        if t.fragment in computed[t.block]
    ]
    if recompute in ("full", "per-op"):
        ahead = max(token.offset for token in tokens)
        first = next(i for i, token in enumerate(tokens) if token.offset == ahead)
        return (*tokens[:first], *(t.shifted(ahead) for t in again), *tokens[first:])
    if again:
        _place_modules(tokens, again, modules, along_sequences=along_sequences)
    return tuple(tokens)


def _place_modules(
    tokens: list[Token], again: list[Token], modules: Modules, *, along_sequences: bool
) -> None:
    """Add the tokens of modules to those of a backward order, each before what reads it."""
    groups: dict[tuple[str, tuple[str, ...], bool], set[str]] = {}
    for (block, fragment), before in tokens_again(modules).items():
        together = along_sequences and fragment == COLUMN_PARALLEL["attn"]
        groups.setdefault((block, before, together), set()).add(f"{fragment}{AGAIN}")
    for (block, before, together), names in groups.items():
        own = [t for t in again if t.block == block and t.fragment in names]
        for anchor in _firsts(tokens, block, before, together=together):
            at = tokens.index(anchor)
            tokens[at:at] = [
                t.shifted(anchor.offset) for t in own if together or t.slice == anchor.slice
            ]


def with_blocks_again(order: IssueOrder, block: str, modules: Modules) -> IssueOrder:
    """Return a backward order with the modules of ``block`` placed anew, for layers in which other
    ones are recomputed than in those for which it was planned."""
    kept = [t for t in order.tokens if t.block != block or not t.is_again]
    moved = [t for t in order.tokens if t not in kept]
    names = [f"{name}{AGAIN}" for name in FORWARD_FRAGMENTS[block]]
    again = [t.shifted(-t.offset) for t in moved]
    again.sort(key=lambda t: (names.index(t.fragment), t.piece))
    _place_modules(kept, again, modules, along_sequences=False)
    return replace(order, tokens=tuple(kept))


def _firsts(
    tokens: list[Token], block: str, fragments: tuple[str, ...], *, together: bool
) -> list[Token]:
    """Return the token of each slice, or of all, that a layer issues first of some fragments."""
    found: dict[int, Token] = {}
    for token in sorted(tokens, key=lambda t: -t.offset):
        if token.block == block and token.fragment in fragments:
            found.setdefault(ALL_SLICES if together else token.slice, token)
    return list(found.values())


def place_wgrads(tokens: list[Token], plan: SlicePlan) -> tuple[Token, ...]:
    """Return an eager backward order with the plan's wgrad placement and merging applied."""
    if plan.merge_wgrad:
        return tuple(merge_wgrads(tokens))
    return tuple(defer_wgrads(tokens) if plan.wgrad == "deferred" else tokens)


def wgrad_chains(order: IssueOrder) -> dict[Token, Token | None]:
    """Return each wgrad's predecessor in the accumulation of its weight, None for the first.

    Of two tokens of one layer, the one with the larger offset is in an earlier repetition.
    """
    chains: dict[Token, Token | None] = {}
    last: dict[tuple[str, str, int], Token] = {}
    wgrads = [t for t in order.tokens if t.is_wgrad]
    for token in sorted(wgrads, key=lambda t: -t.offset):
        weight = (token.block, token.fragment, token.offset % order.stride)
        chains[token] = last.get(weight)
        last[weight] = token
    return chains


def check_issue_order(order: IssueOrder, plan: SlicePlan, fragments: BlockFragments) -> None:
    """Raise ScheduleError unless every fragment of every slice is issued once per layer."""
    expected = {
        (token._replace(slice=ALL_SLICES) if merges else token, phase)
        for block in BLOCKS
        for row in range(plan.row_slices)
        for token in slice_tokens(plan, block, fragments[block], row)
        for merges in (plan.merge_wgrad and token.is_wgrad,)
        for phase in range(order.stride)
    }
    got = [(t.shifted(-t.offset) if t.offset else t, t.offset % order.stride) for t in order.tokens]
    if len(got) != len(set(got)) or set(got) != expected:
        wrong = sorted({str(t) for t, _ in expected.symmetric_difference(got)}) or ["a repeat"]
        raise ScheduleError(
            f"The order does not issue every fragment once per layer: {', '.join(wrong[:4])}. "
            "The plan changed after the order was planned; plan it again."
        )


# Merged weight gradients --------------------------------------------------------------------------
# One GEMM over all row slices, and the copies that its inputs need.
#
# The runtime has most kernels write a slice of dy or x beside the others
# (``runtime/ops/__init__.py``). Those of libraries that choose their own place cannot: attention's
# output, LayerNorm's and the gradient of dropout, where ranks hold all tokens. Their slices are put
# together by a copy, an op.

JOINED: Final = "joined"
"""Form of a value that all slices were copied into."""
SIDES: Final = ("dy", "x")


def copied(model: ModelSpec, block: str, linear: str, *, gathered: bool) -> tuple[bool, bool]:
    """Return whether a copy puts together dy, and x, of the merged weight gradient of a linear;
    ``gathered``: what ranks share is gathered in front of it."""
    if linear == COLUMN_PARALLEL[block]:
        return False, model.norm == "layernorm" and not gathered
    return model.hidden_dropout > 0 and not gathered, block == "attn"


def copies(model: ModelSpec, *, gathered: bool) -> int:
    """Return how many copies a layer has."""
    linears = [(b, of[b]) for b in BLOCKS for of in (COLUMN_PARALLEL, ROW_PARALLEL)]
    return sum(sum(copied(model, *linear, gathered=gathered)) for linear in linears)
