"""Random small models, and jobs with plans that fit them."""

from __future__ import annotations

import random
from typing import Literal

from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ModelSpec
from tests.real.domino_tune.runtime.jobs import Job


def random_model(rng: random.Random, tp: int) -> ModelSpec:
    """A random mix of the features of a ModelSpec, in sizes that ``tp`` divides."""
    kv_heads = tp * rng.choice((1, 2))
    tied = rng.random() < 0.5
    norm: Literal["layernorm", "rmsnorm"] = rng.choice(("layernorm", "rmsnorm"))
    return ModelSpec(
        name="random",
        num_hidden_layers=rng.randint(1, 4),
        hidden_size=rng.choice((12, 24, 36)),
        num_attention_heads=kv_heads * rng.choice((1, 2, 3)),
        num_key_value_heads=kv_heads,
        head_dim=rng.choice((2, 6, 8)),
        intermediate_size=tp * rng.choice((3, 8, 10)),
        vocab_size=rng.choice((3, 128, 300)),
        max_position_embeddings=rng.choice((7, 12)),
        hidden_act=rng.choice(("gelu", "silu", "relu")),
        gated_mlp=rng.random() < 0.5,
        norm=norm,
        qk_norm=norm == "rmsnorm" and rng.random() < 0.4,
        proj_bias=rng.random() < 0.5,
        position_embedding=rng.choice(("learned", "rope", "none")),
        tie_word_embeddings=tied,
        attention_bias=rng.random() < 0.5,
        mlp_bias=rng.random() < 0.5,
        hidden_dropout=rng.choice((0.0, 0.3)),
    )


def random_job(rng: random.Random) -> Job:
    """A random model, cut and team of at most four ranks."""
    tp, dp = rng.choice(((1, 1), (2, 1), (4, 1), (1, 2), (2, 2)))
    job = Job(
        name="", model=random_model(rng, tp), tp=tp, dp=dp, sequences=rng.randint(1, 5),
        seq_length=rng.randint(1, 7), grad_accumulation=rng.randint(1, 3),
        bucket_parameters=rng.choice((1, 5_000, 10**9)),
    )  # fmt: skip
    return Job(**{**job.__dict__, "plan": random_plan(rng, job)})


def random_plan(rng: random.Random, job: Job) -> SlicePlan:
    """A plan that fits: unsliced, any fixed order, or the greedy planner's."""
    kind = rng.choice(("megatron", "inter", "paper", "intra", "intra", "greedy", "greedy"))
    if kind == "megatron":
        return MEGATRON
    wgrad = "fill" if kind == "greedy" else rng.choice(("eager", "deferred"))
    rows = rng.randint(1, job.sequences)
    if kind in ("inter", "paper"):
        rows = min(2, job.sequences)
        return SlicePlan(row_slices=rows, order=kind, wgrad=wgrad, merge_wgrad=rng.random() < 0.3)  # type: ignore[arg-type]
    columns = [rng.choice((1, 2, 3, 4)) for _ in range(4)]
    return SlicePlan(
        row_slices=rows, attn_col_slices=columns[0], mlp_col_slices=columns[1],
        attn_dgrad_slices=columns[2], mlp_dgrad_slices=columns[3], merge_wgrad=rng.random() < 0.3,
        order=kind, wgrad=wgrad,  # type: ignore[arg-type]
    )  # fmt: skip
