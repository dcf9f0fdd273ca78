"""Cases that benchmarks share, and how they ask for times, intervals and the fastest plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from operator import itemgetter
from statistics import median
from typing import Final, NamedTuple

from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.confidence import Confidence, confidence_of
from simulator.cost import NO_CHANGES, Changes
from simulator.plan import SlicePlan
from simulator.predict import played, predict, unsure_clocks
from simulator.presets import MODELS
from simulator.profile import Profile
from simulator.record import record
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.timeline import Timeline
from simulator.units import MS_PER_NS

PROFILE: Final = "h100-dgx"


@cache
def h100() -> Profile:
    """Return the bundled H100 profile."""
    return load_profile(PROFILE)


def model_for(name: str, tp: int) -> ModelSpec:
    """Return the preset. Where ``tp`` does not divide its heads, give it 64, as in the paper."""
    model = MODELS[name]
    if model.num_attention_heads % tp == 0 and model.num_key_value_heads % tp == 0:
        return model
    return with_heads(model, 64)


def with_heads(model: ModelSpec, heads: int) -> ModelSpec:
    """Return ``model`` with ``heads`` heads for queries, keys and values, at the same width."""
    return replace(
        model,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=model.hidden_size // heads,
    )


def make_case(
    model: ModelSpec, tp: int, seq_length: int, micro_batch_size: int,
    changes: Changes = NO_CHANGES,
) -> Case:  # fmt: skip
    """Return a case on the bundled H100 profile with a new cost model."""
    return Case(
        model=model,
        workload=Workload(seq_length=seq_length, micro_batch_size=micro_batch_size),
        cluster=ClusterSpec(tp=tp),
        profile=h100(),
        changes=changes,
    )


def time_ms(case: Case, plan: SlicePlan) -> float:
    """Return the time of an iteration."""
    return predict(case, plan).makespan_ns * MS_PER_NS


def fastest(case: Case, plans: Iterable[SlicePlan]) -> tuple[int, SlicePlan]:
    """Return the time, in ns, and the plan of the first of the fastest."""
    times = ((predict(case, plan).makespan_ns, plan) for plan in plans)
    return min(times, key=itemgetter(0))


def recorded(case: Case, plan: SlicePlan) -> Timeline:
    """Return the timeline that the fast engine plays."""
    found = played(case, plan)
    return record(found.schedule, found.program)


def interval(case: Case, plan: SlicePlan) -> Confidence:
    """Return how sure the time of an iteration is."""
    found = played(case, plan)
    timeline = record(found.schedule, found.program)
    return confidence_of(timeline, found.cost, unsure_clocks(case, found))


def half_width(known: Confidence) -> float:
    """Return half of the interval over its middle."""
    return (known.high_ns - known.low_ns) / (known.high_ns + known.low_ns)


def spread(values: Iterable[float], form: str) -> tuple[str, str, str]:
    """Return the least, the median and the most of ``values`` in ``form``."""
    known = sorted(values)
    return format(known[0], form), format(median(known), form), format(known[-1], form)


class SearchCase(NamedTuple):
    """One case of the search benchmarks. ``link`` multiplies the bandwidth of the links."""

    model: str
    tp: int
    micro_batch_size: int
    seq_length: int
    link: float = 1.0

    @property
    def label(self) -> str:
        """Return the case in one line."""
        link = f" link×{self.link:g}" if self.link != 1 else ""
        return f"{self.model} tp{self.tp} b{self.micro_batch_size} s{self.seq_length}{link}"

    def case(self) -> Case:
        """Return the case as the simulator takes it."""
        changes = Changes(link_bandwidth=self.link)
        model = model_for(self.model, self.tp)
        return make_case(model, self.tp, self.seq_length, self.micro_batch_size, changes)


SEARCH_CASES: Final = (
    SearchCase("gpt3-2.7b", 2, 8, 2048), SearchCase("gpt3-2.7b", 4, 16, 1024),
    SearchCase("gpt3-2.7b", 8, 4, 512, 0.5), SearchCase("gpt3-6.7b", 4, 8, 1024),
    SearchCase("gpt3-6.7b", 8, 16, 512), SearchCase("gpt3-6.7b", 8, 12, 1024, 0.25),
    SearchCase("gpt3-6.7b", 16, 16, 1024), SearchCase("gpt3-13b", 8, 16, 1024),
    SearchCase("gpt3-13b", 8, 16, 1024, 0.25), SearchCase("gpt3-13b", 8, 5, 2048, 2.0),
    SearchCase("gpt3-13b", 16, 16, 1024), SearchCase("gpt3-13b", 32, 32, 512),
    SearchCase("gpt3-30b", 16, 4, 1024, 0.5), SearchCase("gpt3-30b", 16, 2, 2048),
    SearchCase("llama2-7b", 4, 8, 1024), SearchCase("llama2-7b", 8, 8, 2048, 0.5),
    SearchCase("llama2-7b", 8, 1, 4096), SearchCase("llama2-13b", 8, 16, 512),
    SearchCase("llama2-13b", 16, 7, 1024), SearchCase("llama2-13b", 32, 8, 1024, 2.0),
    SearchCase("llama3-8b", 8, 6, 2048), SearchCase("llama3-8b", 4, 4, 2048, 0.25),
    SearchCase("llama2-13b", 8, 2, 4096), SearchCase("gpt3-175b", 64, 2, 1024),
)  # fmt: skip
"""One node and several, batches of 1 to 32, bandwidth ×0.25 to ×2."""
