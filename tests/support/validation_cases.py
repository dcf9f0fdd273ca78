"""A question small enough to be run on two real ranks, and a profile that claims to be of here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from domino_tune.measure.machine import machine_of
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.plans import save_plan
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.verbs.resolve import Chosen
from domino_tune.verbs.simulate import simulate_plan
from simulator.case import Case
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

MODEL = ModelSpec(
    name="small", num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
    num_key_value_heads=4, head_dim=16, intermediate_size=128, vocab_size=256,
    max_position_embeddings=32, hidden_dropout=0.1,
)  # fmt: skip
WORKLOAD = Workload(seq_length=32, micro_batch_size=4, dtype="fp32")
CLUSTER = ClusterSpec(tp=2, ranks_per_node=2)
TWO = SlicePlan(row_slices=2, order="intra", wgrad="eager")
FOUR = SlicePlan(row_slices=4, attn_col_slices=2, order="greedy", wgrad="fill")


@dataclass(frozen=True, kw_only=True)
class Files:
    """Paths of a profile with a GPU's numbers under this machine's name, and of two plans."""

    profile: str
    two: str
    four: str

    @property
    def options(self) -> tuple[str, ...]:
        """Options that validate both plans."""
        return ("--plan", self.two, "--plan", self.four, "--profile", self.profile)


def write_files(folder: Path) -> Files:
    """Write the profile and the plans."""
    here = machine_of(LaunchSpec(tp=2, backend="gloo"))
    profile = replace(load_profile("h100-dgx"), name="here", machine=here)
    save_profile(profile, folder / "here.json")
    case = Case(model=MODEL, workload=WORKLOAD, cluster=CLUSTER, profile=profile)
    for name, plan in (("two", TWO), ("four", FOUR)):
        simulated = simulate_plan(case, Chosen.of(case, plan))
        save_plan(simulated.plan_file, folder / f"{name}.json")
    two, four = (str(folder / f"{name}.json") for name in ("two", "four"))
    return Files(profile=str(folder / "here.json"), two=two, four=four)
