"""The cases that benchmarks share: what is trained, on how many ranks, over what links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.cost import NO_CHANGES, Changes
from simulator.presets import MODELS
from simulator.profile import Profile
from simulator.specs import ClusterSpec, ModelSpec, Workload

PROFILE = "h100-dgx"


@cache
def h100() -> Profile:
    """The bundled H100 profile."""
    return load_profile(PROFILE)


def model_for(name: str, tp: int) -> ModelSpec:
    """The preset; where its heads do not divide by ``tp``, 64 heads, as the paper's 13B has."""
    model = MODELS[name]
    if model.num_attention_heads % tp == 0 and model.num_key_value_heads % tp == 0:
        return model
    return with_heads(model, 64)


def with_heads(model: ModelSpec, heads: int) -> ModelSpec:
    """The same width cut into ``heads`` heads, as many of keys and values."""
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
    """A case on the bundled H100 profile with a cost model of its own."""
    return Case(
        model=model,
        workload=Workload(seq_length=seq_length, micro_batch_size=micro_batch_size),
        cluster=ClusterSpec(tp=tp),
        profile=h100(),
        changes=changes,
    )


@dataclass(frozen=True, kw_only=True)
class SearchCase:
    """One line of the search benchmarks; ``link`` multiplies the links' bandwidth."""

    model: str
    tp: int
    micro_batch_size: int
    seq_length: int
    link: float = 1.0

    @property
    def label(self) -> str:
        """The case in one line."""
        link = f" link×{self.link:g}" if self.link != 1 else ""
        return f"{self.model} tp{self.tp} b{self.micro_batch_size} s{self.seq_length}{link}"

    def case(self) -> Case:
        """What the simulator predicts."""
        changes = Changes(link_bandwidth=self.link)
        model = model_for(self.model, self.tp)
        return make_case(model, self.tp, self.seq_length, self.micro_batch_size, changes)


def _case(
    model: str, tp: int, micro_batch_size: int, seq_length: int, link: float = 1.0
) -> SearchCase:
    return SearchCase(
        model=model, tp=tp, micro_batch_size=micro_batch_size, seq_length=seq_length, link=link
    )


SEARCH_CASES = (
    _case("gpt3-2.7b", 2, 8, 2048),
    _case("gpt3-2.7b", 4, 16, 1024),
    _case("gpt3-2.7b", 8, 4, 512, 0.5),
    _case("gpt3-6.7b", 4, 8, 1024),
    _case("gpt3-6.7b", 8, 16, 512),
    _case("gpt3-6.7b", 8, 12, 1024, 0.25),
    _case("gpt3-6.7b", 16, 16, 1024),
    _case("gpt3-13b", 8, 16, 1024),
    _case("gpt3-13b", 8, 16, 1024, 0.25),
    _case("gpt3-13b", 8, 5, 2048, 2.0),
    _case("gpt3-13b", 16, 16, 1024),
    _case("gpt3-13b", 32, 32, 512),
    _case("gpt3-30b", 16, 4, 1024, 0.5),
    _case("gpt3-30b", 16, 2, 2048),
    _case("llama2-7b", 4, 8, 1024),
    _case("llama2-7b", 8, 8, 2048, 0.5),
    _case("llama2-7b", 8, 1, 4096),
    _case("llama2-13b", 8, 16, 512),
    _case("llama2-13b", 16, 7, 1024),
    _case("llama2-13b", 32, 8, 1024, 2.0),
    _case("llama3-8b", 8, 6, 2048),
    _case("llama3-8b", 4, 4, 2048, 0.25),
    _case("llama2-13b", 8, 2, 4096),
    _case("gpt3-175b", 64, 2, 1024),
)
"""(model, TP, batch, sequence, link): one node and several, one row to 32, links ×¼ to ×2."""
