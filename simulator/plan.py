"""SlicePlan: how one iteration is cut, where, and in which order its parts are issued."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from simulator.errors import InfeasiblePlanError, InputError, require_positive_int, unknown_name
from simulator.hashing import hashed_once
from simulator.overlap import EP_OVERLAP, RIVALS, check_overlaps
from simulator.specs import ClusterSpec, ModelSpec, Workload

# Where row slices are cut -------------------------------------------------------------------------
# Between sequences, or between positions of all sequences.
#
# The work of a sequence's positions below x, in FLOPs of a layer's forward and backward, is
#     3·L·x + 3.5·A·x²/2,
# with L a token's FLOPs in the linears and A those of a query and a key (backward of a linear is
# twice its forward; of attention 2.5 times, FlashAttention's rule). A later position attends to
# more keys, so slices of equal work get shorter.

SliceDim = Literal["batch", "sequence"]
SliceBalance = Literal["balanced", "even", "front"]
Slicing = tuple[SliceDim, SliceBalance]
SLICE_DIMS: Final[tuple[SliceDim, ...]] = ("batch", "sequence")
SLICE_BALANCES: Final[tuple[SliceBalance, ...]] = ("balanced", "even", "front")
SLICINGS: Final[tuple[Slicing, ...]] = (
    ("batch", "balanced"), ("sequence", "balanced"), ("sequence", "even"), ("sequence", "front"),
)  # fmt: skip
"""Every way to cut: the dimension, and the balance."""
SEQUENCE_ROW_SLICES: Final = (2, 3, 4)
"""Numbers of slices of sequences that a search looks at: more never paid."""
ENOUGH_SEQUENCES: Final = 2
"""A micro-batch of so many can be sliced along the batch: slices of sequences, which move the
gradients of keys and values more often, were never more than 0.1 % faster there, and looking for
them takes three times as long."""
FRONT: Final = 1.5
"""Work of the first slice over that of the last one, where slices are ``front``-heavy."""
TILE: Final = 128
"""Tokens of a GEMM's tile: cuts of long sequences fall between tiles."""
TILES_PER_SLICE: Final = 16
"""A cut is moved to a tile's edge where that is at most 1/32 of a slice away."""


def searched_slicings(micro_batch_size: int) -> tuple[Slicing, ...]:
    """Return the ways to cut that a search looks at: along the batch, and where that cannot be,
    along the sequences."""
    return SLICINGS if micro_batch_size < ENOUGH_SEQUENCES else SLICINGS[:1]


def batch_slice_sizes(micro_batch_size: int, slices: int) -> tuple[int, ...]:
    """Return the sequences in each slice: as even as possible, larger slices first."""
    small, extra = divmod(micro_batch_size, slices)
    return tuple(small + (index < extra) for index in range(slices))


def sequence_spans(
    model: ModelSpec, seq_length: int, slices: int, multiple: int, balance: SliceBalance
) -> tuple[range, ...]:
    """Return the positions of each slice. Cuts are multiples of ``multiple``; a sequence must have
    at least ``slices`` · ``multiple`` positions.

    ``balanced``: slices of equal work; ``even``: of equal length; ``front``: of work that falls
    linearly, from FRONT to 1.
    """
    tile = math.lcm(multiple, TILE)
    grain = tile if seq_length >= TILES_PER_SLICE * slices * tile else multiple
    cuts = [0]
    for index in range(1, slices):
        ideal = seq_length * _position(model, seq_length, _share(index, slices, balance), balance)
        least, most = cuts[-1] + grain, seq_length - (slices - index) * grain
        cuts.append(min(max(round(ideal / grain) * grain, least), most // grain * grain))
    return tuple(range(a, b) for a, b in zip(cuts, [*cuts[1:], seq_length], strict=True))


def _share(index: int, slices: int, balance: SliceBalance) -> float:
    """Return the share of the first ``index`` slices."""
    if balance != "front" or slices == 1:
        return index / slices
    weights = [FRONT + (1 - FRONT) * i / (slices - 1) for i in range(slices)]
    return sum(weights[:index]) / sum(weights)


def _position(model: ModelSpec, seq_length: int, share: float, balance: SliceBalance) -> float:
    """Return the share of the positions in which ``share`` of the work is done."""
    if balance == "even":
        return share
    linear = 3.0 * 2 * model.linear_parameters
    attention = 3.5 * 4 * model.num_attention_heads * model.head_dim * seq_length / 2
    whole = share * (linear + attention)
    return 2 * whole / (linear + math.sqrt(linear**2 + 4 * attention * whole))


# SlicePlan ----------------------------------------------------------------------------------------
# How one iteration is cut, and in which order its parts are issued.

Compared = Literal["megatron", "domino", "userbuffers", "async-tp", "fused", "ep-overlap"]
Strategy = Literal[Compared, "no_comm"]
Order = Literal["greedy", "inter", "intra", "paper"]
WgradPlacement = Literal["eager", "deferred", "fill"]

STRATEGIES: Final = ("megatron", "no_comm", "domino", *RIVALS, EP_OVERLAP)
ORDERS: Final = ("greedy", "inter", "intra", "paper")
WGRAD_PLACEMENTS: Final = ("eager", "deferred", "fill")
MAX_ROW_SLICES: Final = 16
MAX_COL_SLICES: Final = 16
MAX_CTAS: Final = 64


@hashed_once
@dataclass(frozen=True, kw_only=True)
class SlicePlan:
    """The row slices, the column pieces and the order. Raise InputError for a bad value.

    ``row_slices``: slices of the micro-batch along ``slice_dim``: whole sequences (``batch``; they
    may be uneven), or consecutive positions of all sequences (``sequence``), cut as
    ``slice_balance`` says (``simulator.plan``).
    ``attn_col_slices``, ``mlp_col_slices``: column pieces of the block's row-parallel GEMM.
    ``attn_dgrad_slices``, ``mlp_dgrad_slices``: column pieces of the block's column-parallel dgrad;
    0 means as many as the block's row-parallel GEMM has.
    ``wgrad``: ``eager`` beside the dgrad of its linear, whose all-reduce it hides; ``deferred``
    after the block's last dgrad; ``fill`` where the greedy planner finds a wait (greedy only).
    ``merge_wgrad``: one wgrad GEMM over all row slices instead of one per slice.
    ``comm_ctas``: NCCL CTAs for TP collectives; 0 leaves the choice to NCCL.
    ``sequence_parallel``: between the blocks each rank holds 1/tp of every slice's tokens, so that
    an all-gather and a reduce-scatter take the place of each all-reduce (Megatron-LM).
    ``tp_comm_overlap``: of a rival strategy, GEMM=METHOD where it is not the usual one
    (``simulator.overlap``).
    """

    strategy: Strategy = "domino"
    row_slices: int = 2
    attn_col_slices: int = 1
    mlp_col_slices: int = 1
    attn_dgrad_slices: int = 0
    mlp_dgrad_slices: int = 0
    order: Order = "greedy"
    wgrad: WgradPlacement = "fill"
    merge_wgrad: bool = False
    comm_ctas: int = 0
    sequence_parallel: bool = False
    slice_dim: SliceDim = "batch"
    slice_balance: SliceBalance = "balanced"
    tp_comm_overlap: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("strategy", self.strategy, STRATEGIES),
            ("order", self.order, ORDERS),
            ("wgrad placement", self.wgrad, WGRAD_PLACEMENTS),
            ("slice_dim", self.slice_dim, SLICE_DIMS),
            ("slice_balance", self.slice_balance, SLICE_BALANCES),
        ):
            if value not in known:
                raise unknown_name(kind, str(value), known)
        object.__setattr__(self, "tp_comm_overlap", tuple(self.tp_comm_overlap))  # JSON has lists
        for name in ("attn_dgrad_slices", "mlp_dgrad_slices"):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, getattr(self, name.replace("dgrad", "col")))
        for name in _COUNTS:
            require_positive_int("plan", name, getattr(self, name))
        for name in ("merge_wgrad", "sequence_parallel"):
            if not isinstance(getattr(self, name), bool):
                got = getattr(self, name)
                raise InputError(f"plan.{name} must be true or false, got {got!r}.")
        if type(self.comm_ctas) is not int or not 0 <= self.comm_ctas <= MAX_CTAS:
            raise InputError(
                f"plan.comm_ctas must be 0 (NCCL's choice) … {MAX_CTAS}, got {self.comm_ctas!r}."
            )
        self._check_ranges()
        self._check_order()
        check_overlaps(self.strategy, self.tp_comm_overlap)
        if self.strategy in RIVALS and not self.sequence_parallel:
            raise InputError(
                f"strategy {self.strategy!r} hides gathers and scatters: it needs "
                "--sequence-parallel."
            )

    def _check_ranges(self) -> None:
        if self.row_slices > MAX_ROW_SLICES:
            raise InputError(f"row_slices must be 1 … {MAX_ROW_SLICES}, got {self.row_slices}.")
        for name in _COUNTS[1:]:
            if getattr(self, name) > MAX_COL_SLICES:
                raise InputError(f"{name} must be 1 … {MAX_COL_SLICES}, got {getattr(self, name)}.")
        if self.strategy != "domino" and (self.slices != (1, 1, 1, 1, 1) or self.merge_wgrad):
            raise InputError(
                f"strategy {self.strategy!r} is unsliced: use --strategy domino to slice."
            )
        if self.slice_dim == "batch" and self.slice_balance != "balanced":
            raise InputError(
                f"slice_balance {self.slice_balance!r} is of slices of sequences: use --slice-dim "
                "sequence, or leave out --slice-balance."
            )

    def _check_order(self) -> None:
        if self.strategy != "domino":
            return
        if self.order in ("inter", "paper") and not (
            self.slices == (2, 1, 1, 1, 1) or self.slices == (1, 1, 1, 1, 1)
        ):
            raise InfeasiblePlanError(
                f"order {self.order!r} exists for 2 row slices and 1 column slice only, got "
                f"{self.cut}; use --order intra or --order greedy.",
                reason="order",
            )
        if self.order == "paper" and self.slice_dim == "sequence":
            raise InfeasiblePlanError(
                "order 'paper' walks the slices of a sequence forward in backward, too, which "
                "attention refutes; use another order, or --slice-dim batch.",
                reason="order",
            )
        if (self.wgrad == "fill") != (self.order == "greedy"):
            raise InfeasiblePlanError(
                "wgrad 'fill' belongs to order 'greedy', 'eager' and 'deferred' to the others; "
                f"got wgrad={self.wgrad!r} with order={self.order!r}: change one of them.",
                reason="wgrad",
            )

    @property
    def slices(self) -> tuple[int, int, int, int, int]:
        """Counts of (row, attn col, mlp col, attn dgrad, mlp dgrad)."""
        return (
            self.row_slices, self.attn_col_slices, self.mlp_col_slices,
            self.attn_dgrad_slices, self.mlp_dgrad_slices,
        )  # fmt: skip

    @property
    def slices_sequences(self) -> bool:
        """Whether row slices are positions of all sequences."""
        return self.slice_dim == "sequence" and self.row_slices > 1

    @property
    def rows_back(self) -> tuple[int, ...]:
        """Row slices as backward walks them: positions of sequences from the last, since all later
        queries add to the gradient of a key."""
        rows = range(self.row_slices)
        return tuple(reversed(rows)) if self.slices_sequences else tuple(rows)

    @property
    def cut(self) -> str:
        """Short text of the counts: rows × attn/mlp columns, dgrad pieces where they differ."""
        text = f"{self.row_slices}x{self.attn_col_slices}/{self.mlp_col_slices}"
        dgrad = (self.attn_dgrad_slices, self.mlp_dgrad_slices)
        if dgrad != (self.attn_col_slices, self.mlp_col_slices):
            text += f" dgrad {dgrad[0]}/{dgrad[1]}"
        return text

    @property
    def label(self) -> str:
        """Name of the plan, on one line."""
        extras = f" ctas={self.comm_ctas}" if self.comm_ctas else ""
        extras += " sp" if self.sequence_parallel else ""
        if self.strategy != "domino":
            told = "".join(f" {text}" for text in self.tp_comm_overlap)
            told += " wgrad=deferred" * (self.wgrad == "deferred")
            return self.strategy + told + extras
        merged = " merged" if self.merge_wgrad else ""
        return f"domino {self.cut}{self._slicing} {self.order} wgrad={self.wgrad}{merged}{extras}"

    @property
    def _slicing(self) -> str:
        if self.slice_dim == "batch":
            return ""
        return " seq" + ("" if self.slice_balance == "balanced" else f"-{self.slice_balance}")


_COUNTS: Final = (
    "row_slices", "attn_col_slices", "mlp_col_slices", "attn_dgrad_slices", "mlp_dgrad_slices",
)  # fmt: skip
MEGATRON: Final = SlicePlan(strategy="megatron", row_slices=1, order="intra", wgrad="eager")
NO_COMM: Final = SlicePlan(strategy="no_comm", row_slices=1, order="intra", wgrad="eager")


def check_plan_fits(
    plan: SlicePlan, model: ModelSpec, workload: Workload, cluster: ClusterSpec
) -> None:
    """Raise InfeasiblePlanError unless the batch has enough rows, pieces divide hidden, the
    strategy and the recomputation fit the ranks, and, with sequence parallelism, tp divides each
    sequence (Megatron-LM's rule)."""
    _check_tokens(plan, model, workload, cluster)
    if plan.merge_wgrad and model.num_experts:
        raise InfeasiblePlanError(
            "Slices give each expert rows of their own, which one GEMM cannot sum over: "
            f"{plan.label} needs GEMMs a slice; leave out merged weight gradients.",
            reason="wgrad",
        )
    if model.kv_lora_rank and plan.attn_dgrad_slices > 1:
        raise InfeasiblePlanError(
            "Latent attention ends in no sum over ranks, so its dgrad has no column pieces: "
            f"{plan.label} needs attn_dgrad_slices = 1.",
            reason="hidden",
        )
    if plan.merge_wgrad and not workload.merges_wgrads:
        raise InfeasiblePlanError(
            "Slices of a quantized value have scales of their own, so one GEMM cannot sum over all "
            f"of them: {plan.label} needs a GEMM a slice; leave out merged weight gradients.",
            reason="wgrad",
        )
    problem = row_problem(plan, workload, cluster)
    if problem:
        raise InfeasiblePlanError(problem, reason="rows")
    if plan.strategy in RIVALS and (cluster.tp == 1 or cluster.tp_group[0] > 1):
        most, inside = cluster.domain, "NVLink domain" if cluster.ranks_per_domain else "node"
        fix = f"; use --tp {2 if most == 2 else f'2 … {most}'}" if most > 1 else ""
        raise InfeasiblePlanError(
            f"Strategy {plan.strategy!r} needs a tensor-parallel group inside one {inside} of "
            f"{most} rank{'s' * (most > 1)}, got tp = {cluster.tp}{fix}.",
            reason="strategy",
        )
    if plan.strategy == EP_OVERLAP and model.num_experts:  # the dense layers of a stack have none
        check_pairs(model, workload, cluster)
    _check_columns(plan, model)


def _check_tokens(
    plan: SlicePlan, model: ModelSpec, workload: Workload, cluster: ClusterSpec
) -> None:
    if plan.sequence_parallel and workload.seq_length % cluster.tp:
        whole = "" if plan.strategy in RIVALS else "use --no-sequence-parallel, or "
        raise InfeasiblePlanError(
            f"Sequence parallelism needs a seq_length that tp = {cluster.tp} divides, got "
            f"{workload.seq_length}; {whole or 'use '}another length.",
            reason="tokens",
        )
    if workload.recompute == "per-op" and not (plan.sequence_parallel and cluster.tp > 1):
        lacking = "--sequence-parallel" if cluster.tp > 1 else "tp ≥ 2"
        raise InfeasiblePlanError(
            "--recompute per-op is simulated as torchtitan chooses among ops on sharded tokens: "
            f"{plan.label} needs {lacking} for it; use --recompute none or full.",
            reason="tokens",
        )
    if model.num_experts and cluster.tp > 1 and not plan.sequence_parallel:
        raise InfeasiblePlanError(
            "Experts need sequence parallelism where tp is above 1, as in Megatron-LM, so that no "
            f"token goes to them twice: {plan.label} needs --sequence-parallel.",
            reason="tokens",
        )


def _check_columns(plan: SlicePlan, model: ModelSpec) -> None:
    for name in _COUNTS[1:]:
        pieces = getattr(plan, name)
        if model.hidden_size % pieces:
            works = [p for p in range(1, MAX_COL_SLICES + 1) if model.hidden_size % p == 0]
            near = [*[p for p in works if p < pieces][-1:], *[p for p in works if p > pieces][:1]]
            raise InfeasiblePlanError(
                f"hidden_size = {model.hidden_size} does not divide by {name} = {pieces}; "
                f"nearest that work: {' and '.join(map(str, near))}.",
                reason="hidden",
            )


def check_pairs(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> None:
    """Raise InfeasiblePlanError unless two micro-batches may run beside each other: the conditions
    of Megatron-Bridge 0.3 (training/comm_overlap.py), and what is simulated."""
    parallel = cluster.pp > 1
    wrong = {
        "no tokens move between experts' ranks: it needs --ep of 2 or more": not (
            model.num_experts and cluster.ep > 1
        ),
        f"its dispatchers are alltoall, deepep and hybridep, not {workload.moe_dispatcher}": (
            workload.moe_dispatcher == "allgather"
        ),
        "layers that are computed again have no place in it: --recompute none or selective": (
            workload.recompute not in ("none", "selective")
        ),
        "experts that are computed again send tokens once more, which has no place in it: leave "
        "moe out of recompute_modules": "moe" in workload.modules,
        "it has one further prediction at most: a model of num_nextn_predict_layers 0 or 1": (
            model.num_nextn_predict_layers > 1
        ),
        "the shared expert already runs beside the exchange: "
        "--set moe_shared_expert_overlap=false": workload.moe_shared_expert_overlap,
        "a pipeline needs virtual stages for it: --vpp of 2 or more": parallel and cluster.vpp == 1,
        "there is one micro-batch a step: a larger --grad-accumulation": (
            workload.grad_accumulation == 1
        ),
    }
    for reason, found in wrong.items():
        if found:
            raise InfeasiblePlanError(
                f"Strategy {EP_OVERLAP!r} cannot run here: {reason}.", reason="strategy"
            )


def slice_multiple(plan: SlicePlan, cluster: ClusterSpec) -> int:
    """Return the number that divides the positions of every slice of a sequence."""
    return cluster.tp if plan.sequence_parallel else 1


def row_problem(plan: SlicePlan, workload: Workload, cluster: ClusterSpec) -> str:
    """Return why a row slice would have no sequences or no positions; "" if none is empty."""
    rows, batch = plan.row_slices, workload.micro_batch_size
    if plan.slice_dim == "batch" and rows > batch:
        return (
            f"row_slices = {rows} needs at least as many sequences, but micro_batch_size = "
            f"{batch}; use row_slices ≤ {batch}, a larger micro-batch"
            + (", or --slice-dim sequence." if cluster.cp == 1 and plan.order != "paper" else ".")
        )
    if plan.slice_dim == "sequence" and cluster.cp > 1:
        return (
            "Slices of sequences are not simulated with context parallelism; use --slice-dim batch "
            "or --cp 1."
        )
    multiple = slice_multiple(plan, cluster)
    if plan.slice_dim == "sequence" and rows * multiple > workload.seq_length:
        return (
            f"row_slices = {rows} needs sequences of {rows * multiple} tokens or more, {multiple} "
            f"a slice, but seq_length = {workload.seq_length}; use fewer."
        )
    return ""
