"""A tiny model, and profiles in which all probes were timed: made-up times, no ranks."""

from __future__ import annotations

from typing import Any

from domino_tune.measure.machine import this_machine
from domino_tune.measure.probe_set import ProbeSet
from domino_tune.measure.profiling import add_message, add_ops
from simulator.ops import Collective, Signature
from simulator.profile import Profile
from simulator.specs import ModelSpec

TINY = ModelSpec(
    name="tiny", num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
    num_key_value_heads=4, head_dim=16, intermediate_size=256, vocab_size=256,
    max_position_embeddings=64, hidden_dropout=0.1,
)  # fmt: skip
LLAMA = ModelSpec(
    name="tiny-llama", num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, intermediate_size=192, vocab_size=256,
    max_position_embeddings=64, hidden_act="silu", gated_mlp=True, norm="rmsnorm",
    position_embedding="rope", tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
)  # fmt: skip


def empty(ranks: int = 2) -> Profile:
    """A profile of this machine in which nothing was measured."""
    return Profile(name="here", created="2026-11-20", machine=this_machine(ranks, "gloo", {}))


def op_row(signature: Signature, samples: int) -> dict[str, Any]:
    """An op's row as ranks report it; larger ops take longer."""
    size = signature.flops + sum(v for v in signature if isinstance(v, int))
    timing = {"median_us": 1.0 + size / 1e4, "spread_us": 0.1, "samples": samples}
    return {"signature": [signature.kind, *signature], **timing}


def collective_message(collective: Collective, samples: int) -> dict[str, Any]:
    return {
        "kind": "collective", "signature": list(collective), "samples": samples,
        "median_us": 20.0 + collective.size_bytes / 100, "spread_us": 1.0, "hand_over_us": 5.0,
    }  # fmt: skip


def contention_message() -> dict[str, Any]:
    compute = {"gemm": 1.1, "attention": 1.1, "pointwise": 1.2}
    row = {
        "op": "all_reduce", "size_bytes": 1024, "ctas": 0, "compute": compute,
        "collective": 1.1, "spread": 0.01, "samples": 3,
    }  # fmt: skip
    return {"kind": "contention", "rows": [row]}


def waits_messages() -> list[dict[str, Any]]:
    """Return messages of ranks about waits: how long they are, and how much compute loses after
    them.
    """
    skew = {"slowest": 1.0, "step_excess": 0.0, "rows": [], "beside": [], "error": 0.01}
    resume = {"rows": [], "recovery_us": 500.0, "error": 0.1}
    return [{"kind": "skew", "samples": 3, **skew}, {"kind": "resume", "samples": 0, **resume}]


def timed(probes: ProbeSet, samples: int = 20) -> Profile:
    """A profile in which all probes were timed ``samples`` times."""
    profile = add_ops(empty(), [op_row(op, samples) for op in sorted(probes.ops, key=repr)])
    overhead = {"overhead_us": 2.0, "overhead_samples": 3}
    for message in [{"kind": "plan", "ops": [], **overhead}, *waits_messages()]:
        profile = add_message(profile, message)
    for collective in probes.collectives:
        profile = add_message(profile, collective_message(collective, samples))
    return add_message(profile, contention_message()) if probes.contention else profile
