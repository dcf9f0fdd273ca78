"""Report: the page's data and its drawing. May import results and below."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from domino_tune.results.shown import plan_words
from simulator.dtypes import MS_PER_NS
from simulator.errors import InputError
from simulator.ops import Collective, Fused, Gemm, Pointwise, Signature
from simulator.overlap import RIVAL_NAMES
from simulator.plan import SlicePlan
from simulator.schedule import Op

# HTML that is escaped by construction -------------------------------------------------------------
# Text becomes markup only through ``tag``.

VOID: Final = frozenset({"br", "meta", "line", "rect", "circle", "path", "polyline"})


class Html(str):
    """Text that is already markup, and is not escaped again."""

    __slots__ = ()


def text(value: str) -> Html:
    """Return ``value`` with the characters of markup escaped."""
    return value if isinstance(value, Html) else Html(html.escape(value, quote=True))


def tag(name: str, *children: str, **attributes: str | float | None) -> Html:
    """Return ``<name …>children</name>``; escape plain strings, leave out None attributes.

    ``class_`` gives ``class``; an underscore inside a name gives a hyphen.
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{pairs}/>")
    return Html(f"<{name}{pairs}>{''.join(text(child) for child in children)}</{name}>")


def join(*parts: str) -> Html:
    """Return the parts one after the other."""
    return Html("".join(text(part) for part in parts))


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, class_: str = "") -> Html:
    """Return a table whose first column names the row."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    whole = tag("table", tag("thead", top), tag("tbody", *body), class_=class_ or None)
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=head[0])


def section(anchor: str, title: str, *children: str, lead: str = "") -> Html:
    """Return one part of the page under its heading; ``lead`` is its first sentence."""
    first = tag("p", lead, class_="lead") if lead else ""
    return tag("section", tag("h2", title), first, *children, id=anchor)


# Labels of ops, plans and numbers -----------------------------------------------------------------

LABELS: Final = {
    "head.logits": "LM head", "embed": "embedding", "embed.post": "embedding post",
    "loss.max": "loss max", "loss.sum": "loss sum", "loss.grad": "loss grad",
    "step.adam": "Adam", "step.grad_norm": "gradient norm", "step.dp": "last bucket",
    "dp": "bucket",
}  # fmt: skip
"""Roles whose label is not their last word."""
BACKWARD_SUFFIXES: Final = ("_dgrad", "_wgrad", "_bwd")
STRATEGY_NAMES: Final = {
    "megatron": "Megatron-LM", "no_comm": "No communication", "domino": "Domino",
    **RIVAL_NAMES,
}  # fmt: skip
LANE_WORDS: Final = {
    "compute": "compute", "tp": "tensor parallel", "dp": "data parallel",
    "cp": "context parallel", "ep": "expert parallel",
}  # fmt: skip
"""Lane of a schedule (LANES) -> its label beside the picture."""
CHANGE_WORDS: Final = {"gpu_flops": "GPU FLOP/s", "tp": "tensor-parallel ranks"}


def change_label(key: str) -> str:
    """Return a key of ``whatif`` in words: ``link bandwidth`` of ``link_bandwidth``."""
    return CHANGE_WORDS.get(key, key.replace("_", " "))


COLLECTIVES: Final = {
    ".ar": "all-reduce", ".ag": "all-gather", ".ag_bwd": "all-gather", ".rs": "reduce-scatter",
}  # fmt: skip
"""Suffix of a collective's role -> the word for it."""


def role_label(role: str) -> str:
    """Return a label: ``fc1 dgrad`` of ``mlp.fc1_dgrad``, ``all-reduce fc2`` of ``mlp.fc2.ar``."""
    for suffix, word in COLLECTIVES.items():
        if role.endswith(suffix):
            return f"{word} {role_label(role.removesuffix(suffix))}"
    for suffix in BACKWARD_SUFFIXES:
        if role.endswith(suffix):
            return f"{role_label(role.removesuffix(suffix))} {suffix[1:]}"
    return LABELS.get(role, role.removeprefix("attn.").removeprefix("mlp.").removeprefix("head."))


def op_kind(op: Op) -> str:
    """Return the kind of an op: ``gemm``, ``wgrad``, ``attention``, ``pointwise`` or ``comm``."""
    if isinstance(op.signature, Gemm) and op.signature.layout == "wgrad":
        return "wgrad"
    return "comm" if isinstance(op.signature, Collective) else op.signature.kind


def is_backward(role: str) -> bool:
    """Return whether an op of a layer belongs to the backward pass."""
    return any(suffix in role for suffix in BACKWARD_SUFFIXES)


def shape_text(signature: Signature) -> str:
    """Return the shape that decides an op's time, as text."""
    if isinstance(signature, Gemm):
        return f"m {signature.m:,} · n {signature.n:,} · k {signature.k:,} · {signature.layout}"
    if isinstance(signature, Collective):
        where = f"{signature.ranks} ranks"
        if signature.nodes > 1:
            where += f" on {signature.nodes} nodes"
        return f"{size_text(signature.size_bytes)} over {where}"
    if isinstance(signature, Pointwise):
        return f"{size_text(signature.bytes_read + signature.bytes_written)} moved"
    if isinstance(signature, Fused):
        op = signature.collective.op.replace("_", "-")
        return f"{shape_text(signature.gemm)}, in one kernel with its {op}"
    keys = f" to {signature.keys:,} keys" if signature.kv_seq else ""
    return (
        f"{signature.batch} × {signature.seq:,} tokens{keys} · {signature.heads} heads of "
        f"{signature.head_dim}"
    )


def size_text(size_bytes: float) -> str:
    """Return bytes as text: ``80.0 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"


def ms_text(value_ms: float) -> str:
    """Return milliseconds with three or four digits, or all before the point: ``19,107``,
    ``369.7``, ``4.18``, ``0.738``."""
    digits = sum(value_ms < limit for limit in (10_000, 100, 1))
    return f"{value_ms:,.{digits}f}" if value_ms else "0"


def ns_as_ms(value_ns: float) -> str:
    """Return nanoseconds as text in milliseconds: ``369.7``."""
    return ms_text(value_ns * MS_PER_NS)


def gib_text(value_gib: float) -> str:
    """Return GiB to a tenth, with separators: ``41.2``, ``178,534.7``."""
    return f"{value_gib:,.1f}"


def percent_text(fraction: float) -> str:
    """Return a fraction in per cent: ``99.5 %``, ``50 %``."""
    text = f"{100 * fraction:.1f}".removesuffix(".0")
    return f"{text} %"


def times_text(ratio: float | None) -> str:
    """Return a ratio as text: ``1.014×``; a dash for none."""
    return "–" if ratio is None else f"{ratio:.3f}×"


# Names of plans, with what they mean in words -----------------------------------------------------
# As a tooltip, and spelt out in a key.

KEY: Final = (
    ("2x1/4", "2 row slices of the batch; attention's last linear in 1 column slice, the MLP's "
     "in 4"),
    ("dgrad 1/2", "pieces of the input gradients of the first linears, of attention and MLP, where "
     "they differ from the column slices"),
    ("seq", "row slices are stretches of each sequence"),
    ("greedy, inter, intra, paper", "the order in which slices take turns: planned from the "
     "profile, DeepSpeed's, inside a layer, the Domino paper's"),
    ("wgrad=eager, deferred, fill", "weight gradients beside their input gradient, behind both, or "
     "where computation would wait"),
    ("merged", "one weight-gradient GEMM for all row slices"),
    ("ctas=16", "thread blocks that communication may take"),
    ("sp", "sequence parallelism"),
    ("megatron, no_comm", "one slice, as Megatron-LM; the same with communication for free"),
)  # fmt: skip
"""Part of a plan's name -> what it means."""


def plan_name(plan: SlicePlan) -> Html:
    """Return the plan's label, with its words as a tooltip."""
    return tag("span", plan.label, title=plan_words(plan))


def plan_key() -> Html:
    """Return what each part of a plan's name means, closed at first."""
    rows = [tag("div", tag("dt", tag("code", part)), tag("dd", words)) for part, words in KEY]
    return tag(
        "details", tag("summary", "How to read a plan’s name"), tag("dl", *rows, class_="facts key")
    )


# Ties ---------------------------------------------------------------------------------------------
# Times that differ by less than predictions tell apart.

TIE: Final = 0.01
"""The search's band; written here too, since the page is served where no search is loaded."""
TIE_WORDS: Final = f"tie: within {TIE:.0%} of the fastest, which predictions do not tell apart."


def ties(iteration_ms: float, fastest_ms: float) -> bool:
    """Return whether a time ties with the fastest, which ties with itself."""
    return iteration_ms <= (1 + TIE) * fastest_ms


def tie_mark(tied: bool) -> Html:
    """Return the mark of a tie, or nothing."""
    return tag("small", " tie", class_="tie") if tied else Html("")


# Line plots, drawn by a script of the page, with the same values as a table -----------------------

ROLES: Final = {
    STRATEGY_NAMES["megatron"]: "base",
    "this plan": "chosen",
    STRATEGY_NAMES["no_comm"]: "bound",
}
"""Lines in the colours of the page's bars; each other line has a colour of its own."""


class Axis(NamedTuple):
    """A plot's values: their name, unit (empty: none), and number of decimals; None: as for times
    in ms."""

    name: str
    unit: str
    digits: int | None

    def written(self, value: float | None) -> str:
        """Return a value as text without its unit."""
        if value is None:
            return "–"
        return ms_text(value) if self.digits is None else f"{value:,.{self.digits}f}"


TIMES: Final = Axis("Iteration", "ms", None)


def plot_figure(
    caption: str,
    x_label: str,
    xs: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    axis: Axis = TIMES,
) -> Html:
    """Return a plot of values over ``xs``, evenly spaced in the order given, with a caption.

    ``series`` maps a name to one value per point, None if missing. ``static/plot.js`` draws them.
    Raise InputError for a series with another number of values, or with one that is not finite.
    """
    for name, values in series.items():
        if len(values) != len(xs) or not all(math.isfinite(value or 0.0) for value in values):
            raise InputError(f"Series {name!r} needs {len(xs)} finite values, got {list(values)}.")
    what = change_label(x_label)
    data = {
        "label": axis.name, "x": what, "xs": list(xs), "unit": axis.unit, "digits": axis.digits,
        "lines": [
            {"name": name, "role": ROLES.get(name, ""), "values": list(values)}
            for name, values in series.items()
        ],
    }  # fmt: skip
    rows = [
        (x, *(axis.written(values[index]) for values in series.values()))
        for index, x in enumerate(xs)
    ]
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("div", "", class_="plot-host", data_plot=json.dumps(data, ensure_ascii=False)),
        tag("details", tag("summary", "As a table"), table((what, *series), rows)),
    )


def tick_step(least: float) -> float:
    """Return the smallest of 1, 2 or 5 times a power of ten that is at least ``least``."""
    unit: float = 10.0 ** math.floor(math.log10(least))
    return next(k * unit for k in (1, 2, 5, 10) if k * unit >= least)


# Stacked bars of several variants, and the table that explains their colours ----------------------

LABELLED: Final = 0.06
"""Least share of the longest bar that a piece's label fits in."""


@dataclass(frozen=True)
class StackedBar:
    """One variant's bar: values by part, in one unit."""

    name: str
    parts: Mapping[str, float]
    chosen: bool = False


@dataclass(frozen=True)
class Legend:
    """What the parts are called, which CSS class colours each, and how values are written.

    ``unit`` follows a value in a piece's tooltip.
    """

    names: Mapping[str, str]
    classes: Mapping[str, str]
    unit: str
    written: Callable[[float], str]


def stacked(stacks: Sequence[StackedBar], legend: Legend, longest: float, *extra: Html) -> Html:
    """Return the bars; ``longest`` is the value at full width, ``extra`` is drawn over each bar."""
    bars = [_bar(stack, legend, longest, extra) for stack in stacks]
    return tag("div", *bars, class_="stacks", aria_hidden="true")


def _bar(stack: StackedBar, legend: Legend, longest: float, extra: tuple[Html, ...]) -> Html:
    pieces = [
        tag(
            "i",
            tag("b", legend.written(value)) if value > LABELLED * longest else "",
            class_=legend.classes[part],
            style=f"width:{100 * value / longest:.3f}%",
            title=f"{legend.names[part]}: {legend.written(value)} {legend.unit}",
        )
        for part, value in stack.parts.items()
        if value
    ]
    label = tag("span", stack.name, class_="name")
    return tag("div", label, tag("span", *pieces, *extra, class_="track"),
               class_="stack chosen" if stack.chosen else "stack")  # fmt: skip


def stack_rows(stacks: Sequence[StackedBar], legend: Legend) -> list[tuple[str, ...]]:
    """Return a row a part that any variant has, with its swatch, and a row of sums."""
    rows: list[tuple[str, ...]] = []
    for part, name in legend.names.items():
        values = [stack.parts[part] for stack in stacks]
        if any(values):
            swatch = tag("i", "", class_=f"swatch {legend.classes[part]}")
            written = (legend.written(value) if value else "–" for value in values)
            rows.append((tag("span", swatch, name), *written))
    sums = (legend.written(sum(stack.parts.values())) for stack in stacks)
    return [*rows, ("All", *sums)]
