"""Training steps of a plan in a Hugging Face model, beside the same plan in the runtime's own loop,
the unsliced plan, and torch's DTensor: in turn, within one launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from transformers import LlamaConfig, LlamaForCausalLM

from domino_tune.runtime import apply
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.rounds import round_order
from domino_tune.runtime.session import Session
from domino_tune.store.plans import PlanFile, plan_from_json

WARM_UP: Final = 3
CLIP: Final = 1.0
Step = Callable[[], object]


def compare(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Report each round's step times on the slowest rank, ns, by name: ``applied``, ``runtime``
    (the payload's ``plan``), ``unsliced`` (its ``unsliced``) and ``dtensor``.

    Payload: also model, workload and cluster of the runtime's session, and rounds.
    """
    session = Session.of(context, payload)
    plan, unsliced = (
        plan_from_json(payload[name], source="the payload") for name in ("plan", "unsliced")
    )
    batch = session.batch[0]
    executor = session.executor(plan.plan, plan.order)
    mesh = init_device_mesh(context.device.type, (context.world_size,), mesh_dim_names=("tp",))
    steps: dict[str, Step] = {
        "applied": _training(apply(_model(plan), plan), batch),
        "runtime": lambda: executor.run_step(*session.batch),
        "unsliced": _training(apply(_model(plan), unsliced), batch),
        "dtensor": _training(_parallelized(_model(plan), mesh), batch),
    }
    names = list(steps)
    for number in range(WARM_UP + int(payload["rounds"])):
        took = {}
        for place in round_order(range(len(names)), number):
            context.barrier()
            began = time.perf_counter_ns()
            steps[names[place]]()
            took[names[place]] = time.perf_counter_ns() - began
        ranks = context.all_gather_objects(took)
        if number >= WARM_UP:
            slowest = {name: max(rank[name] for rank in ranks) for name in names}
            context.report({"kind": "round", **slowest})


def _model(plan: PlanFile) -> Any:
    """Return a Llama of the plan's shape, the same on every rank."""
    spec = plan.model
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=spec.hidden_size, num_hidden_layers=spec.num_hidden_layers,
            num_attention_heads=spec.num_attention_heads, vocab_size=spec.vocab_size,
            num_key_value_heads=spec.num_key_value_heads, head_dim=spec.head_dim,
            intermediate_size=spec.intermediate_size, rms_norm_eps=spec.norm_eps,
            max_position_embeddings=spec.max_position_embeddings, bos_token_id=None,
            eos_token_id=None,
        )
    )  # fmt: skip


def _parallelized(model: Any, mesh: DeviceMesh) -> Any:
    """Return ``model`` under torch's tensor parallelism, logits and loss along the vocabulary."""
    columns, rows = ("q_proj", "k_proj", "v_proj"), ("o_proj",)
    layer = {
        **{f"self_attn.{name}": ColwiseParallel() for name in columns},
        **{f"self_attn.{name}": RowwiseParallel() for name in rows},
        "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }  # fmt: skip
    for one in model.model.layers:
        parallelize_module(one, mesh, layer)
    parallelize_module(
        model, mesh,
        {
            "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
            "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        },
    )  # fmt: skip
    return model


def _training(model: Any, tokens: torch.Tensor) -> Step:
    """Return a training step: forward, loss, backward, clipping, AdamW."""
    kinds: list[list[torch.nn.Parameter]] = [[], []]  # torch does not mix DTensors and tensors
    for parameter in model.parameters():
        kinds[isinstance(parameter, DTensor)].append(parameter)
    held = [kind for kind in kinds if kind]
    optimizers = [torch.optim.AdamW(kind, lr=1e-4, fused=True) for kind in held]

    def step() -> None:
        with loss_parallel():
            out = model(input_ids=tokens)
            logits = out.logits
            loss = model.loss_function(
                logits, tokens, vocab_size=model.config.vocab_size
            ) if len(held) == 1 else _loss(logits, tokens)  # fmt: skip
            loss.backward()
        for kind, optimizer in zip(held, optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(kind, CLIP)
            optimizer.step()
            optimizer.zero_grad()

    return step


def _loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the loss of logits that are cut along the vocabulary, by torch's loss_parallel."""
    targets = torch.nn.functional.pad(tokens, (0, 1), value=-100)[:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
