"""Case: a model, a workload, a cluster and a profile; everything except the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from simulator.cost import NO_FACTORS, CostModel, Factors
from simulator.draws import Draw
from simulator.dtypes import GIB
from simulator.errors import InfeasiblePlanError, InputError, require_divisible
from simulator.launch import Hosts, hosts_of
from simulator.plan import SlicePlan
from simulator.power import PowerSection
from simulator.profile import Profile
from simulator.shapes import Shapes, shapes_of
from simulator.sharding import check_context, check_pipeline, check_shardable
from simulator.specs import ClusterSpec, ModelSpec, PipelineSchedule, Workload
from simulator.stack import LayerKind
from simulator.usable import NO_MARGIN, UNSURE, Margin, Usable, percent, usable_memory

# Chunks -------------------------------------------------------------------------------------------
# The layers of a model, divided among the virtual stages of a pipeline.


class Chunk(NamedTuple):
    """The layers of one virtual stage, and whether it has the embedding, and the head and loss.
    ``dense``: how many of the layers have no experts, in a model that has some."""

    layers: int
    embedding: bool
    head: bool
    dense: int = 0

    def model(self, whole: ModelSpec) -> ModelSpec:
        """Return the model of the chunk's layers alone."""
        return _model_of(self, whole)

    def of(self, shapes: Shapes) -> Shapes:
        """Return the shapes of the chunk, from those of the whole model."""
        return replace(
            shapes,
            model=self.model(shapes.model),
            workload=self.workload(shapes.workload),
            embedding=self.embedding,
            head=self.head,
        )

    def workload(self, whole: Workload) -> Workload:
        """Return the settings of the chunk's layers, from those of all."""
        return _workload_of(self, whole)


# A search of layouts asks for the same few again and again, and each is checked as it is made.
@lru_cache(maxsize=1024)
def _model_of(chunk: Chunk, whole: ModelSpec) -> ModelSpec:
    return replace(
        whole, num_hidden_layers=chunk.layers, first_k_dense_replace=chunk.dense,
        num_nextn_predict_layers=whole.num_nextn_predict_layers * chunk.head,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _workload_of(chunk: Chunk, whole: Workload) -> Workload:
    return replace(
        whole,
        recompute_layers=min(whole.recompute_layers, chunk.layers),
        num_layers_at_start_in_bf16=whole.num_layers_at_start_in_bf16 * chunk.embedding,
        num_layers_at_end_in_bf16=whole.num_layers_at_end_in_bf16 * chunk.head,
    )


@lru_cache(maxsize=1024)
def _workload_of_rank(chunk: Chunk, whole: Workload, again: int) -> Workload:
    return replace(chunk.workload(whole), pp_layers=(), recompute_layers=again)


@lru_cache(maxsize=1024)
def _without_pipeline(cluster: ClusterSpec) -> ClusterSpec:
    return replace(cluster, pp=1, vpp=1)


def chunks_of_ranks(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec
) -> tuple[tuple[Chunk, ...], ...]:
    """Return the chunks of each rank of the pipeline, in the order of the model."""
    stages = cluster.pp * cluster.vpp
    layers = workload.pp_layers or (model.num_hidden_layers // stages,) * stages
    for end, count in (
        (0, workload.num_layers_at_start_in_bf16), (-1, workload.num_layers_at_end_in_bf16),
    ):  # fmt: skip
        if stages > 1 and count > layers[end]:
            raise InputError(
                f"{count} layers in BF16 are more than the {layers[end]} of a virtual stage; give "
                "at most that many, or fewer stages."
            )
    firsts = [0, *accumulate(layers)]
    chunks = [
        Chunk(
            count, k == 0, k == stages - 1,
            min(count, max(0, model.first_k_dense_replace - firsts[k])),
        )
        for k, count in enumerate(layers)
    ]  # fmt: skip
    of_rank: list[list[Chunk]] = [[] for _ in range(cluster.pp)]
    for stage, chunk in enumerate(chunks):
        of_rank[place(stage, cluster.pp, workload.pp_schedule)[0]].append(chunk)
    return tuple(map(tuple, of_rank))


def place(stage: int, pp: int, schedule: PipelineSchedule) -> tuple[int, int]:
    """Return the rank and the chunk there of a virtual stage: chunk k // pp of rank k % pp, as in
    Megatron-LM; in a V the second chunks go back from the last rank to the first."""
    chunk, rank = divmod(stage, pp)
    turned = schedule == "dualpipev" and chunk == 1
    return (pp - 1 - rank if turned else rank), chunk


def stage_of(rank: int, chunk: int, pp: int, schedule: PipelineSchedule) -> int:
    """Return the virtual stage of a rank's chunk."""
    return chunk * pp + place(chunk * pp + rank, pp, schedule)[0]


def joined(chunks: tuple[Chunk, ...]) -> Chunk:
    """Return all layers of a rank as one chunk."""
    return Chunk(
        sum(chunk.layers for chunk in chunks),
        any(chunk.embedding for chunk in chunks),
        any(chunk.head for chunk in chunks),
        sum(chunk.dense for chunk in chunks),
    )


# Price --------------------------------------------------------------------------------------------
# What GPUs cost an hour, and what training then costs.

HOUR_S = 3600.0
TRILLION = 1e12
DAY_S = 24 * HOUR_S


class Price(NamedTuple):
    """``gpu_hour``: of one GPU, in any currency. ``run_tokens``: of the run that is asked for, or
    0."""

    gpu_hour: float
    run_tokens: float = 0.0


class Cost(NamedTuple):
    """In the currency of ``gpu_hour``: of a step, of 1e12 tokens, and of the run, which takes
    ``run_days``; these are None where no run was asked for. Without failures, restarts and
    evaluations."""

    gpu_hour: float
    step: float
    trillion_tokens: float
    run_tokens: float | None
    run: float | None
    run_days: float | None


def cost_of(price: Price | None, step_s: float, gpus: int, tokens: int) -> Cost | None:
    """Return what steps of ``step_s`` with ``tokens`` each cost on ``gpus``; None without a
    price."""
    if price is None:
        return None
    step = price.gpu_hour * gpus * step_s / HOUR_S
    if not price.run_tokens:
        return Cost(price.gpu_hour, step, TRILLION / tokens * step, None, None, None)
    steps = price.run_tokens / tokens
    return Cost(
        price.gpu_hour, step, TRILLION / tokens * step, price.run_tokens, steps * step,
        steps * step_s / DAY_S,
    )  # fmt: skip


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
    factors: Factors = NO_FACTORS
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
        if (
            self.sequence_parallel is False
            and self.workload.recompute == "per-op"
            and self.cluster.tp > 1
        ):
            raise InputError(
                "--recompute per-op is simulated as torchtitan chooses among ops on sharded "
                "tokens; leave out --no-sequence-parallel, or use --recompute none or full."
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
            self.profile, factors=self.factors, hosts=self._hosts,
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
    def critical_ranks(self) -> tuple[int, ...]:
        """The rank with the most layers of its own in all micro-batches, and before it in one, so
        of equals the last; and the one with the head, which may take longer."""
        micros, most, critical, head, before = self.workload.grad_accumulation, -1, 0, 0, 0
        for rank, chunks in enumerate(self.chunks):
            own = joined(chunks)
            layers = micros * own.layers + before
            if layers > most:
                most, critical = layers, rank
            head = rank if own.head else head
            before += chunks[0].layers
        return tuple(sorted({critical, head}))

    @cached_property
    def busiest(self) -> Case:
        """What the busiest rank plays, as a case of its own without a pipeline."""
        return self.of_rank(self.busiest_rank)

    def of_rank(self, rank: int) -> Case:
        """Return what a rank of the pipeline plays, as a case of its own without a pipeline."""
        chunk, again = self.rank_load(rank)
        return self._at_this_cost(
            model=chunk.model(self.model),
            workload=_workload_of_rank(chunk, self.workload, again),
            cluster=_without_pipeline(self.cluster),
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
