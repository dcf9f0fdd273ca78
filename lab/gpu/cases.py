"""Cases: some layers of a preset on one rank of a tensor-parallel group, and plans for them; and
the profile of a GPU and host whose rows and launch costs were measured by some."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from domino_tune.measure.importers.imported import merged_section
from domino_tune.measure.profiling import SECTIONS
from lab import told
from simulator.build import build_schedule
from simulator.lookup import Provenance
from simulator.ops import Collective, Signature
from simulator.plan import MEGATRON, NO_COMM, SEQUENCE_ROW_SLICES, SlicePlan
from simulator.presets import MODELS
from simulator.profile import LaunchSection, Profile
from simulator.specs import ClusterSpec, ModelSpec, Workload

TP: Final = 8
LAYERS: Final = 2
TWO_SLICES: Final = SlicePlan(row_slices=2, order="intra", wgrad="eager")
SHAPES: Final[dict[str, Any]] = told(str(Path(__file__).with_name("stage.toml")))
"""Shapes that the stages measure."""
TOKENS: Final = {8: 32_768, 4: 32_768, 2: 16_384, 1: 16_384}
"""Most tokens of a batch, by degree: a step should take a fraction of a second."""


@dataclass(frozen=True, kw_only=True)
class RankCase:
    """A model's layers on one rank of ``tp``, and the plans to play on it."""

    model: ModelSpec
    workload: Workload
    tp: int = TP
    plans: tuple[SlicePlan, ...] = (MEGATRON,)

    @classmethod
    def of(cls, preset: str, seq: int, batch: int, layers: int = LAYERS, **more: Any) -> RankCase:
        """Return layers of a preset without attention dropout, which the runtime does not have."""
        return cls(
            model=replace(MODELS[preset], num_hidden_layers=layers, attention_dropout=0.0),
            workload=Workload(seq_length=seq, micro_batch_size=batch, dtype="bf16"), **more,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Return a name for progress and for the record of finished cases."""
        work = self.workload
        return f"{self.model.name}/tp{self.tp}/b{work.micro_batch_size}x{work.seq_length}"

    cluster = property(lambda self: ClusterSpec(tp=self.tp))  # in the rank's own view

    def signatures(self, plan: SlicePlan) -> set[Signature]:
        """Return the compute signatures of one plan."""
        model = replace(self.model, attention_dropout=0.0)
        ops = build_schedule(model, self.workload, self.cluster, plan).ops()
        return {op.signature for op in ops if not isinstance(op.signature, Collective)}

    @property
    def needed_bytes(self) -> float:
        """Return the rough bytes of parameters, optimizer states, logits and activations."""
        m, tokens = self.model, self.workload.micro_batch_size * self.workload.seq_length
        widths = m.qkv_size + m.attention_size + m.fc1_size + m.intermediate_size
        tables = m.vocab_size * m.hidden_size * (1 if m.tie_word_embeddings else 2)
        weights = 18.0 * (m.num_hidden_layers * m.hidden_size * widths + tables) / self.tp
        logits = 12.0 * tokens * m.vocab_size / self.tp
        kept = 10 * m.hidden_size + 2 * widths / self.tp
        return weights + logits + 2.0 * tokens * m.num_hidden_layers * kept


def preset_cases(memory_bytes: float) -> Iterator[RankCase]:
    """Yield presets at all degrees that fit in ``memory_bytes``, the most useful first."""
    for tp, tokens in TOKENS.items():
        for name, seq in SHAPES["presets"]:
            batch = max(1, min(8, tokens // seq))
            case = RankCase.of(name, seq, batch, tp=tp, plans=slice_plans(batch))
            if case.needed_bytes <= memory_bytes:
                yield case


def slice_plans(batch: int) -> tuple[SlicePlan, ...]:
    """Return plans by row slices, column pieces, slices of sequences, sequence parallelism."""
    rows = [(count, 1) for count in (2, 4, 1, 3, 8, 5, 6, 7)]
    sliced = [
        replace(TWO_SLICES, row_slices=count, attn_col_slices=columns, mlp_col_slices=columns)
        for count, columns in (*rows, (2, 2), (1, 2), (1, 4), (2, 4)) if count <= batch
    ]  # fmt: skip
    along = [
        replace(TWO_SLICES, row_slices=count, slice_dim="sequence", slice_balance="even")
        for count in SEQUENCE_ROW_SLICES
    ]
    sharded = [replace(plan, sequence_parallel=True) for plan in (MEGATRON, *sliced[:1], along[0])]
    return (MEGATRON, *sliced, *along, *sharded)


class PlayedPlan(NamedTuple):
    """A case under a plan that is sampled. ``withheld``: no law is fitted to it."""

    case: RankCase
    plan: SlicePlan
    withheld: bool = False

    @property
    def name(self) -> str:
        """Preset and plan."""
        return f"{self.case.model.name} {self.plan.label}"

    @property
    def communicates(self) -> bool:
        """Whether its steps have collectives."""
        return self.plan.strategy != NO_COMM.strategy


_GPT, _LLAMA = RankCase.of("gpt3-13b", 2048, 8), RankCase.of("llama2-13b", 4096, 4)
PLANS: Final = (
    PlayedPlan(_GPT, MEGATRON), PlayedPlan(_GPT, TWO_SLICES), PlayedPlan(_GPT, NO_COMM),
    PlayedPlan(_LLAMA, MEGATRON, withheld=True), PlayedPlan(_LLAMA, TWO_SLICES, withheld=True),
)  # fmt: skip


# The profile of this GPU and host: rows and launch costs measured here, the rest of another one.

MEASURED: Final = Provenance(
    kind="measured", source="scripts/gpu: ops in place on the GPU that ran the plans"
)


def with_launch(mine: Profile, costs_us: Sequence[Mapping[str, float]]) -> Profile:
    """Return ``mine`` with the mean of the launch costs of all workloads, if there are any."""
    if not costs_us:
        return mine
    mean = {kind: statistics.fmean(one[kind] for one in costs_us) for kind in costs_us[0]}
    return replace(mine, launch=LaunchSection(mode="async", cost_us=mean, provenance=MEASURED))


def laid_over(base: Profile, mine: Profile) -> Profile:
    """Return ``base`` with rows and launch costs of ``mine``; laws stay (``merged_section``)."""
    changed: dict[str, Any] = {"launch": mine.launch or base.launch}
    for kind, (_, _, key) in SECTIONS.items():
        below, above = getattr(base, kind), getattr(mine, kind)
        if above is not None:
            rows = {key(row): row for one in (below, above) if one for row in one.rows}
            note = f"Laid over {base.name}: {below.provenance.note}" if below else ""
            ordered, words = [rows[at] for at in sorted(rows)], replace(MEASURED, note=note)
            changed[kind] = merged_section(below or above, ordered, words)
    return replace(base, name="this-gpu", created=mine.created, **changed)
