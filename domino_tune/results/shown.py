"""How results show themselves: numbers as text, tables, HTML in a notebook."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from domino_tune.base.tables import Table, print_line, print_table
from simulator.case import Cost
from simulator.overlap import EP_OVERLAP, RIVAL_NAMES, Overlap, overlap_of
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

if TYPE_CHECKING:
    from pandas import DataFrame


# Numbers of results as the text that people read --------------------------------------------------

NONE: Final = "–"
ORDER_WORDS: Final = {
    "greedy": "greedy order",
    "inter": "DeepSpeed's order (inter)",
    "intra": "order inside the layer (intra)",
    "paper": "the paper's order",
}
BALANCE_WORDS: Final = {
    "balanced": "of equal work", "even": "of equal length", "front": "more work in the first",
}  # fmt: skip
WGRAD_WORDS: Final = {
    "fill": "weight gradients fill the waits",
    "eager": "weight gradients at once",
    "deferred": "weight gradients after the dgrads",
}


def ms(value: float) -> str:
    """Return milliseconds as text, to 0.1 ms."""
    return f"{value:,.1f} ms"


def percent(value: float | None) -> str:
    """Return a relative error as text with its sign."""
    return NONE if value is None else f"{value:+.1%}"


def factor(value: float | None) -> str:
    """Return a ratio as text."""
    return NONE if value is None else f"{value:.3f}x"


def share(value: float | None) -> str:
    """Return a share as a whole percentage."""
    return NONE if value is None else f"{value:.0%}"


def memory(gib: float) -> str:
    """Return an amount of memory in GiB as text."""
    return f"{gib:.2f} GiB" if gib >= 1 else f"{1024 * gib:,.1f} MiB"


def money(amount: float) -> str:
    """Return an amount with as many digits as matter."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def cost_line(cost: Cost | None) -> tuple[str, ...]:
    """Return what training costs, in one line; none without a price."""
    if cost is None:
        return ()
    told = f"{money(cost.step)} a step, {money(cost.trillion_tokens)} for 1e12 tokens"
    if cost.run is not None and cost.run_tokens is not None:
        told += f", {money(cost.run)} for {cost.run_tokens:.3g} tokens in {cost.run_days:,.1f} days"
    return (f"Cost at {cost.gpu_hour:g} a GPU hour: {told}, if nothing fails.",)


def plan_words(plan: SlicePlan) -> str:
    """Return a plan in words."""
    sharded = ", sequence parallel" if plan.sequence_parallel else ""
    if plan.strategy == "megatron":
        return f"unsliced{sharded}"
    if plan.strategy == "no_comm":
        return "unsliced, communication for free"
    if plan.strategy == EP_OVERLAP:
        waits = ", weight gradients of experts after their exchange" * (plan.wgrad == "deferred")
        return f"two micro-batches beside each other{waits}{sharded}"
    if plan.strategy != "domino":
        name = RIVAL_NAMES[plan.strategy]
        return f"unsliced, communication hidden by {name}{_hidden_words(plan)}{sharded}"
    parts = [slices_words(plan), ORDER_WORDS[plan.order], WGRAD_WORDS[plan.wgrad]]
    if plan.merge_wgrad:
        parts.append("merged over slices")
    if plan.comm_ctas:
        parts.append(f"{plan.comm_ctas} CTAs for communication")
    return ", ".join(parts) + sharded


def _hidden_words(plan: SlicePlan) -> str:
    """Return for which GEMMs a rival does otherwise than usual, those of one method together."""
    gemms: dict[Overlap, list[str]] = {}
    for text in plan.tp_comm_overlap:
        gemm = text.partition("=")[0]
        overlap = overlap_of(plan.strategy, plan.tp_comm_overlap, gemm)
        if overlap != overlap_of(plan.strategy, (), gemm):
            told = gemm.replace("_fprop", " forward").replace("_", " ")
            gemms.setdefault(overlap, []).append(told)
    words = [f"{', '.join(some)}: {_way_words(one)}" for one, some in gemms.items()]
    return f" ({'; '.join(words)})" if words else ""


def _way_words(one: Overlap) -> str:
    """Return a method that is no rival's usual one."""
    words = {
        "none": "not hidden", "ring_exchange": "chunk by chunk, two at a time",
        "pipeline": f"in {one.num_splits} chunks on {one.num_sm} SMs{' in FP8' * one.fp8}",
        "bulk": f"whole on {one.num_sm} SMs",
    }  # fmt: skip
    return words[one.method]


def slices_words(plan: SlicePlan) -> str:
    """Return the slices: ``2 row slices``, with column slices and dgrad pieces if there are any."""
    rows = f"{plan.row_slices} row slice{'s' * (plan.row_slices > 1)}"
    if plan.slices_sequences:
        rows += f" of each sequence, {BALANCE_WORDS[plan.slice_balance]}"
    attn, mlp = plan.attn_col_slices, plan.mlp_col_slices
    if (attn, mlp) != (1, 1):
        count = f"{attn}" if attn == mlp else f"{attn}/{mlp}"
        rows += f" × {count} column slices"
    dgrad = (plan.attn_dgrad_slices, plan.mlp_dgrad_slices)
    if dgrad != (attn, mlp):
        rows += f", dgrad in {dgrad[0]}/{dgrad[1]}"
    return rows


def named(plan: SlicePlan) -> str:
    """Return a plan in words with its exact label."""
    return f"{plan_words(plan)} ({plan.label})"


def workload_line(model: ModelSpec, workload: Workload, cluster: ClusterSpec, profile: str) -> str:
    """Return one line that names model, profile, ranks and batch."""
    parts = [
        f"{model.name} on {profile}", *cluster.levels.split(" × "),
        *([f"vpp {cluster.vpp}"] if cluster.vpp > 1 else []),
        *_experts(model, workload, cluster),
        f"{cluster.nodes} node{'s' if cluster.nodes > 1 else ''}",
        f"seq {workload.seq_length}", f"micro-batch {workload.micro_batch_size}",
        f"grad accumulation {workload.grad_accumulation}", workload.dtype,
        *([f"linears {workload.fp8_recipe}"] if workload.fp8_recipe != "none" else []),
        workload.implementation.label,
        *(["multimem collectives"] if workload.tp_collectives == "multimem" else []),
    ]  # fmt: skip
    scopes = [f"CUDA graphs of {' and '.join(workload.cuda_graph_scope)}"]
    graphs = ["CUDA graphs"] if cluster.cuda_graph else scopes * bool(workload.cuda_graph_scope)
    return ", ".join([*parts, *graphs])


def _experts(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> list[str]:
    """Return how experts are divided; [] of a model without."""
    if not model.num_experts:
        return []
    shared = [f"etp {cluster.etp}"] if cluster.etp else []
    uneven = workload.moe_imbalance != 1
    imbalance = [f"imbalance {workload.moe_imbalance:g}"] if uneven else []
    sms = f" on {workload.moe_dispatcher_sms} SMs" * bool(workload.moe_dispatcher_sms)
    return [f"ep {cluster.ep}", *shared, f"tokens by {workload.moe_dispatcher}{sms}", *imbalance]


# Shown --------------------------------------------------------------------------------------------
# Results that show themselves, as the command line's tables or as HTML in a notebook.

LONG: Final = 16
"""Rows above which a notebook shows a table folded."""


class Shown(ABC):
    """A result with tables for people and a frame for pandas."""

    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """Return the tables that the command line prints."""

    @abstractmethod
    def to_frame(self) -> DataFrame:
        """Return the result as a pandas DataFrame; units are in the names of its columns."""

    def alerts(self) -> Sequence[str]:
        """Return what the command line prints as warnings: its own, then those of its best plan."""
        own: Sequence[str] = getattr(self, "warnings", ())
        best: Shown | None = getattr(self, "best", None)
        return (*own, *(best.alerts() if best else ()))

    def __str__(self) -> str:
        """Return the tables and the warnings as plain text."""
        out = io.StringIO()
        for table in self.tables():
            print_table(table, out)
        for text in self.alerts():
            print_line(f"warning: {text}", out)
        return out.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the tables and the warnings as HTML, for notebooks."""
        parts = [_html(table) for table in self.tables()]
        parts += [f"<p><b>warning</b>: {escape(text)}</p>" for text in self.alerts()]
        return "".join(parts)


def frame(rows: Iterable[Mapping[str, Any]], columns: list[str] | None = None) -> DataFrame:
    """Return a DataFrame of ``rows`` with ``columns``, which an empty frame has, too; by default
    those of the rows."""
    from pandas import DataFrame  # late: the import takes half a second

    return DataFrame(list(rows), columns=columns)


def _html(table: Table) -> str:
    """Return a table as HTML, its title as a caption; a long one is folded behind its title."""
    sides = ["right" if column.startswith(">") else "left" for column in table.columns]
    names = [column.lstrip(">") for column in table.columns]
    rows = [_row("th", names, sides)]
    for index, row in enumerate(table.rows):
        cells = _row("td", row, sides)
        strong = ' style="font-weight: bold"' if index in table.marked else ""
        rows.append(cells.replace("<tr>", f"<tr{strong}>", 1))
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    title = escape(table.title)
    if len(table.rows) > LONG:
        body = f"<table>{''.join(rows)}</table>"
        return f"<details><summary>{title}</summary>{body}</details>{notes}"
    caption = f'<caption style="text-align: left">{title}</caption>' if title else ""
    return f"<table>{caption}{''.join(rows)}</table>{notes}"


def _row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    inside = "".join(
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{inside}</tr>"
