"""Case: a model, a workload, a cluster and a profile; everything except the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from simulator.chunks import Chunk, chunks_of_ranks, joined
from simulator.cost import NO_CHANGES, Changes, CostModel
from simulator.draws import Draw
from simulator.errors import InfeasiblePlanError, InputError
from simulator.host_costs import Hosts, hosts_of
from simulator.plan import SlicePlan
from simulator.power import PowerSection
from simulator.price import Cost, Price, cost_of
from simulator.profile import Profile
from simulator.shapes import Shapes, shapes_of
from simulator.sharding import (
    check_context,
    check_pipeline,
    check_shardable,
    head_in_layers,
)
from simulator.specs import ClusterSpec, ModelSpec, Workload, require_divisible
from simulator.stack import LayerKind
from simulator.units import GIB
from simulator.usable import NO_MARGIN, UNSURE, Margin, Usable, percent, usable_memory


@dataclass(frozen=True, kw_only=True)
class Case:
    """Input of a prediction, except the plan. ``notes`` are remarks for the user.

    ``sequence_parallel``: the plans that are asked for; None means both with and without.
    ``memory_margin``: what of a GPU's memory to leave free. ``price``: of its time, if known.
    ``loss_assumed``: nobody said whether the loss is one kernel, so it is as the implementation's
    name has it.
    ``chunk``: the part of a model that a rank of a pipeline has, with ``model`` and ``workload`` as
    it has them; None means all of it.
    Raise InputError if the model does not shard over ``cluster.tp`` ranks, or its sequences do not
    where that is asked for.
    """

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    profile: Profile
    changes: Changes = NO_CHANGES
    notes: tuple[str, ...] = ()
    sequence_parallel: bool | None = None
    memory_margin: Margin = NO_MARGIN
    price: Price | None = None
    loss_assumed: bool = False
    chunk: Chunk | None = None

    def __post_init__(self) -> None:
        check_shardable(self.model, self.workload, self.cluster)
        check_pipeline(self.model, self.workload, self.cluster)
        check_context(self.model, self.workload, self.cluster)
        if self.sequence_parallel is False and self.model.num_experts and self.cluster.tp > 1:
            raise InputError(
                "Experts need sequence parallelism where tp is above 1, as in Megatron-LM, so that "
                "no token goes to them twice; leave out --no-sequence-parallel, or use --tp 1."
            )
        if self.sequence_parallel:
            require_divisible(
                "With --sequence-parallel, seq_length", self.workload.seq_length,
                "tp × cp" if self.cluster.cp > 1 else "tp", self.cluster.tp * self.cluster.cp,
            )  # fmt: skip
        check_limits(self.profile, self.cluster)

    def priced(self, iteration_ms: float) -> Cost | None:
        """Return what iterations of this time cost; None without a price."""
        return cost_of(self.price, 1e-3 * iteration_ms, self.cluster.world_size, self.tokens)

    @property
    def shards_tokens(self) -> bool:
        """Whether Megatron-LM would train with sequence parallelism here, as far as the profile
        can tell: tp divides the sequences, and gathers and scatters were timed."""
        tp, length = self.cluster.tp, self.workload.seq_length // self.cluster.cp
        can = tp > 1 and length % tp == 0
        return can and (self.profile.times_gathers or self.sequence_parallel is True)

    @property
    def modes(self) -> tuple[bool, ...]:
        """Choices of ``SlicePlan.sequence_parallel``, the usual one first."""
        if self.workload.recompute == "per-op" or (self.model.num_experts and self.cluster.tp > 1):
            return (True,)
        if not self.shards_tokens:
            return (False,)
        return (True, False) if self.sequence_parallel is None else (self.sequence_parallel,)

    @property
    def can_slice_sequences(self) -> bool:
        """Whether slices of sequences are simulated: the profile must time sums of gradients, and
        no ranks may share the sequences."""
        return self.cluster.cp == 1 and self.profile.pointwise_table().has("grad_add")

    @property
    def comm_ctas_choices(self) -> tuple[int, ...]:
        """CTA counts of the tensor-parallel collectives that the profile knows; 0: the library's
        choice."""
        return self.profile.comm_ctas_choices(*self.cluster.tp_group, self.workload.tp_collectives)

    @cached_property
    def cost(self) -> CostModel:
        """Cost model of the changed machine; cached, so that each look-up is made once."""
        cost = CostModel(
            self.profile, changes=self.changes, hosts=self._hosts,
            cuda_graph=self.cluster.cuda_graph,
        )  # fmt: skip
        told = self.profile.calibration
        return cost.drawn(told.as_draw()) if told else cost

    @property
    def _hosts(self) -> Hosts | None:
        return hosts_of(self.workload.implementation.name)

    @property
    def constant_ns(self) -> int:
        """What every iteration takes beside the schedule, as calibrated."""
        told = self.profile.calibration
        return round(1e6 * told.constant_ms) if told else 0

    def drawn(self, draw: Draw) -> Case:
        """Return the case on a machine that is as ``draw`` says; look-ups are made once for all."""
        other = replace(self)
        other.__dict__["cost"] = self.cost.drawn(draw)
        return other

    def training(self, workload: Workload, cluster: ClusterSpec | None = None) -> Case:
        """Return the case of another workload, on other ranks of the same machine; look-ups are
        made once for all."""
        assert cluster is None or cluster.cuda_graph == self.cluster.cuda_graph
        other = self._at_this_cost(workload=workload, cluster=cluster or self.cluster)
        assert other._hosts == self._hosts
        return other

    def of(self, kind: LayerKind) -> Case:
        """Return the case of a stack of one kind of layer."""
        return replace(
            self, model=kind.model(self.model), workload=kind.of(self.workload),
            cluster=kind.cluster(self.cluster),
        )  # fmt: skip

    def _at_this_cost(self, **changes: Any) -> Case:
        other = replace(self, **changes)
        other.__dict__["cost"] = self.cost  # which may be drawn
        return other

    def cost_at(self, clock_mhz: int | None) -> CostModel:
        """Return the costs at a clock; None: as they were timed."""
        return self.cost if clock_mhz is None else self.cost.at_clock(clock_mhz)

    @cached_property
    def power(self) -> PowerSection | None:
        """Law of power, under the cap that the GPUs are set to; None where the profile has none."""
        law, cap_w = self.cost.power, self.cluster.power_cap_w
        return replace(law, cap_w=cap_w) if law and cap_w else law

    @cached_property
    def memory(self) -> Usable:
        """What tensors can use of a GPU's memory."""
        return usable_memory(
            self.profile.machine, self.cluster, self.workload.implementation.name,
            tied=self.model.tie_word_embeddings, margin=self.memory_margin,
        )  # fmt: skip

    @property
    def tokens(self) -> int:
        """Tokens of one iteration, over all data-parallel replicas."""
        return self.workload.tokens * self.workload.grad_accumulation * self.cluster.dp

    def shapes(self, plan: SlicePlan) -> Shapes:
        """Return one rank's shapes under ``plan``.

        Raise InfeasiblePlanError if the plan does not fit the model or the batch.
        """
        embedding, head = (self.chunk.embedding, self.chunk.head) if self.chunk else (True, True)
        return shapes_of(
            self.model, self.workload, self.cluster, plan, embedding=embedding, head=head,
            fp8_any_layout=self.profile.machine.fp8_any_layout,
        )  # fmt: skip

    @cached_property
    def chunks(self) -> tuple[tuple[Chunk, ...], ...]:
        """The chunks of each rank of the pipeline."""
        return chunks_of_ranks(self.model, self.workload, self.cluster)

    @cached_property
    def busiest_rank(self) -> int:
        """The rank of the pipeline with the most layers; of equals, the one with the head."""
        ranks = [joined(chunks) for chunks in self.chunks]
        return max(range(len(ranks)), key=lambda rank: (ranks[rank].layers, ranks[rank].head))

    @cached_property
    def critical_rank(self) -> int:
        """The rank with the most layers of its own in all micro-batches, and before it in one; a
        head counts as layers. So of ranks with equally many layers it is the last."""
        head, micros = head_in_layers(self.model), self.workload.grad_accumulation
        most, critical, before = -1.0, 0, 0
        for rank, chunks in enumerate(self.chunks):
            own = joined(chunks)
            layers = micros * (own.layers + own.head * head) + before
            if layers > most:
                most, critical = layers, rank
            before += chunks[0].layers
        return critical

    @cached_property
    def busiest(self) -> Case:
        """What the busiest rank plays, as a case of its own without a pipeline."""
        return self.of_rank(self.busiest_rank)

    def of_rank(self, rank: int) -> Case:
        """Return what a rank of the pipeline plays, as a case of its own without a pipeline."""
        chunk, again = self.rank_load(rank)
        return self._at_this_cost(
            model=chunk.model(self.model),
            workload=replace(chunk.workload(self.workload), pp_layers=(), recompute_layers=again),
            cluster=replace(self.cluster, pp=1, vpp=1),
            chunk=chunk,
        )

    def rank_load(self, rank: int) -> tuple[Chunk, int]:
        """Return all layers of a rank as one chunk, and how many of them are recomputed; 0 means
        all, where any are."""
        chunks, each = self.chunks[rank], self.workload.recompute_layers
        return joined(chunks), sum(min(each, one.layers) for one in chunks)

    def check_memory(self, plan: SlicePlan, peak_bytes: int) -> None:
        """Raise InfeasiblePlanError if the peak fits a GPU with a probability less than SURE."""
        memory = self.memory
        if peak_bytes > memory.sure_bytes:
            raise InfeasiblePlanError(
                f"{plan.label} needs {peak_bytes / GIB:,.1f} GiB at its peak, which fits "
                f"{self.profile.machine.gpu} with a chance of {percent(memory.chance(peak_bytes))}"
                f": {memory.usable_bytes / GIB:,.1f} GiB are usable, and up to "
                f"{memory.sure_bytes / GIB:,.1f} GiB are recommended.",
                reason="memory" if peak_bytes > memory.usable_bytes else UNSURE,
            )


def check_limits(profile: Profile, cluster: ClusterSpec) -> None:
    """Raise InputError for a power cap or a clock that the profile's GPU cannot have."""
    law, cap_w, clock_mhz = profile.power, cluster.power_cap_w, cluster.clock_mhz
    if not (cap_w or clock_mhz):
        return
    if law is None:
        raise InputError(
            f"Profile {profile.name!r} has no power section, so it cannot say what a power cap or "
            "a clock changes; leave them out, or use a profile that has one."
        )
    if cap_w and cap_w <= law.idle_w:
        raise InputError(
            f"The power cap must be above the {law.idle_w:g} W that {profile.machine.gpu} draws "
            f"idle, got {cap_w:g} W."
        )
    clocks = law.clocks()
    if clock_mhz and not clocks[-1] <= clock_mhz <= clocks[0]:
        raise InputError(
            f"The clock must be from {clocks[-1]} to {clocks[0]} MHz on {profile.machine.gpu}, got "
            f"{clock_mhz}."
        )
