"""More slices must not always win: Llama-2-70B forward, simulated from imported slice times.

Each layer and slice has norm, QKV, RoPE, the attention output projection with its all-reduce, norm,
gate and up projection, activation, the down projection with its all-reduce, and one residual add.
The attention core is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.measure.importers import read_table
from domino_tune.measure.importers.imported import text_of
from lab.bench.facts import MEASURED, bare_h100, gemm_section, read_measured
from lab.verdict import Check, check_table, reported
from simulator.compiler import compile_program
from simulator.cost import CostModel
from simulator.engine import play
from simulator.estimate import Estimate
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.pointwise import PointwiseRow
from simulator.ops import Collective, Gemm, Pointwise, Signature
from simulator.profile import CollectiveSection, PointwiseSection, Profile
from simulator.provenance import Provenance
from simulator.schedule import COMPUTE, TP, OpTemplate, Ref, Repeat, Schedule, Segment

TOKENS: Final = 4096
LAYERS: Final = 80
HIDDEN: Final = 8192
FFN: Final = 28672
RANKS: Final = 8
KV_SHARE: Final = 8
SLICES: Final = (1, 2, 4, 8)
PUBLISHED_MS: Final = {1: 173.8, 2: 127.6, 4: 130.7, 8: 141.5}
TOLERANCE: Final = 0.002


class _Stage(NamedTuple):
    """One op of a slice. ``reads``: the role it reads, in the same slice; with a leading ``-``, in
    the layer before. ``reduced``: an all-reduce follows."""

    role: str
    signature: Signature
    reads: str
    reduced: bool = False


def slices() -> list[Table]:
    """Return forward times for each number of row slices, from measured and from α–β costs."""
    profile = _measured()
    measured = {rows: _forward_ms(CostModel(profile), rows) for rows in SLICES}
    linear = {rows: _forward_ms(_AlphaBeta(profile, rows), rows) for rows in SLICES}
    best = min(measured, key=measured.__getitem__)
    linear_best = min(linear, key=linear.__getitem__)
    checks = [
        Check(
            what=f"{rows} row slices, ms", target=f"{PUBLISHED_MS[rows]}", measured=f"{ms:.1f}",
            ok=abs(ms / PUBLISHED_MS[rows] - 1) <= TOLERANCE,
        )
        for rows, ms in measured.items()
    ]  # fmt: skip
    checks += [
        Check(what="best row-slice count", target="2", measured=str(best), ok=best == 2),
        reported("α–β costs: ms at " + "/".join(map(str, SLICES)) + " slices",
                 " / ".join(f"{ms:.1f}" for ms in linear.values())),
        Check(what="α–β costs: best (they keep falling)", target=str(SLICES[-1]),
              measured=str(linear_best), ok=linear_best == SLICES[-1]),
    ]  # fmt: skip
    notes = [
        "SimPy engine, no contention, no launch cost. Measured: layer GEMMs, pointwise and eager "
        "all-reduce tables of one DGX H100, every slice time as timed. α–β: compute in proportion "
        "to tokens, all-reduce = latency + bytes/bandwidth, through its smallest and largest size.",
    ]
    return [check_table("Llama-2-70B, TP 8, 4,096 tokens, 80 layers forward", checks, notes)]


def _forward_ms(cost: CostModel, rows: int) -> float:
    schedule = _schedule(rows)
    return play(schedule, compile_program(schedule, cost)).makespan_ns * 1e-6


# Schedule ---------------------------------------------------------------------------------------


def _schedule(rows: int) -> Schedule:
    """Return layers one after another. A slice's all-reduce runs beside the other slices.

    A layer's residual add is the first op of the next layer. There it waits for the all-reduce.
    """
    attention, mlp = _stages(TOKENS // rows)
    templates = [
        op for stages in (attention, mlp) for row in range(rows) for op in _ops(stages, row)
    ]
    segment = Segment(templates=tuple(templates), count=LAYERS)
    last = Segment(
        templates=tuple(_ops(attention[:1], row)[0] for row in range(rows)), first=LAYERS
    )
    return Schedule(parts=(Repeat(segments=(segment, last)),), value_bytes={})


def _stages(tokens: int) -> tuple[tuple[_Stage, ...], tuple[_Stage, ...]]:
    size = tokens * HIDDEN * 2
    wide, narrow = tokens * FFN // RANKS * 2, tokens * (HIDDEN + HIDDEN // KV_SHARE) // RANKS * 2
    norm = Pointwise("rmsnorm", size, size)
    qkv = (HIDDEN + 2 * HIDDEN // KV_SHARE) // RANKS
    attention = (
        _Stage("mlp.residual", Pointwise("add", 2 * size, size), "-mlp.fc2.ar"),
        _Stage("attn.norm", norm, "mlp.residual"),
        _Stage("attn.qkv", Gemm(tokens, qkv, HIDDEN), "attn.norm"),
        _Stage("attn.rope", Pointwise("rope", narrow, narrow), "attn.qkv"),
        _Stage("attn.proj", Gemm(tokens, HIDDEN, HIDDEN // RANKS), "attn.rope", reduced=True),
    )
    mlp = (
        _Stage("mlp.norm", norm, "attn.proj.ar"),
        _Stage("mlp.fc1", Gemm(tokens, 2 * FFN // RANKS, HIDDEN), "mlp.norm"),
        _Stage("mlp.act", Pointwise("swiglu", 2 * wide, wide), "mlp.fc1"),
        _Stage("mlp.fc2", Gemm(tokens, HIDDEN, FFN // RANKS), "mlp.act", reduced=True),
    )
    return attention, mlp


def _ops(stages: tuple[_Stage, ...], row: int) -> list[OpTemplate]:
    """Return the op templates of one slice."""
    found = []
    for stage in stages:
        source = Ref(-1 if stage.reads.startswith("-") else 0, f"s{row}.{stage.reads.strip('-')}")
        write = Ref(0, f"s{row}.{stage.role}")
        found.append(OpTemplate(stage.role, row, stage.signature, COMPUTE, 0, (source,), (write,)))
        if stage.reduced:
            assert isinstance(stage.signature, Gemm)
            size = stage.signature.m * stage.signature.n * 2
            reduce = Collective("all_reduce", size, 1, RANKS)
            done = Ref(0, f"{write.name}.ar")
            found.append(OpTemplate(f"{stage.role}.ar", row, reduce, TP, 0, (write,), (done,)))
    return found


# Costs ------------------------------------------------------------------------------------------


def _measured() -> Profile:
    """Return a profile of the imported slice times of this model and TP degree."""
    provenance = Provenance(kind="imported", source="microsoft/vidur @7d47513 (MIT)")
    reduces = read_measured("h100_dgx_all_reduce_eager.csv", "eager-all-reduce-csv").rows
    return replace(
        bare_h100("measured"),
        gemm=gemm_section(read_measured("h100_layer_gemms_llama2.csv.gz", "gemm-csv").rows),
        pointwise=PointwiseSection(rows=_pointwise_rows(), provenance=provenance),
        collectives=CollectiveSection(
            rows=tuple(row for row in reduces if row.per_node == RANKS), provenance=provenance
        ),
    )


def _pointwise_rows() -> tuple[PointwiseRow, ...]:
    """Return rows of this model only: at another width the same bytes take another time."""
    lines = text_of((MEASURED / "h100_pointwise_llama2.csv.gz").read_bytes()).splitlines()
    names = lines[0].split(",")
    ranks, width = names.index("num_tensor_parallel_workers"), names.index("n_embd")
    rows = [line.split(",") for line in lines[1:]]
    mine = [row for row in rows if (row[ranks], row[width]) == (str(RANKS), str(HIDDEN))]
    table = "\n".join([lines[0], *(",".join(row) for row in mine)])
    return read_table(table.encode(), "pointwise-csv").rows


class _AlphaBeta(CostModel):
    """Whole-batch times divided by ``rows``; an all-reduce takes latency + bytes/bandwidth.

    That straight line goes through the smallest and the largest message of the table.
    """

    def __init__(self, profile: Profile, rows: int) -> None:
        super().__init__(profile)
        self._rows = rows

    def estimate(self, signature: Signature) -> Estimate:
        """Return the time as the class defines it. GEMMs and pointwise ops have no fixed cost."""
        if isinstance(signature, Collective):
            lines: tuple[CollectiveRow, ...] = self.profile.section("collectives").rows
            first, last = lines[0], lines[-1]
            slope = (last.median_us - first.median_us) / (last.bytes - first.bytes)
            us = first.median_us + slope * (signature.size_bytes - first.bytes)
            return Estimate(us, "assumed", 0.0)
        whole: Signature = signature
        if isinstance(signature, Gemm):
            whole = signature._replace(m=signature.m * self._rows)
        elif isinstance(signature, Pointwise):
            read, written = signature.bytes_read, signature.bytes_written
            whole = signature._replace(
                bytes_read=read * self._rows, bytes_written=written * self._rows
            )
        known = super().estimate(whole)
        return known._replace(duration_us=known.duration_us / self._rows)
