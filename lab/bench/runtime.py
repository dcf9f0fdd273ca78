"""Real torch on this machine's CPU: a plan applied to a Hugging Face model, beside the same plan in
the runtime's own loop, the unsliced plan, and torch's DTensor: in turn, within one launch. A slow
baseline would make every speedup look too good. Each round runs all that is compared."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel
from transformers import LlamaConfig, LlamaForCausalLM

from domino_tune.base.tables import Table
from domino_tune.runtime import apply
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from domino_tune.runtime.plan_runs import round_order
from domino_tune.runtime.session import Session
from domino_tune.store.plans import PlanFile, Predicted, ProfileRef, plan_from_json
from domino_tune.store.profiles import load_profile
from lab.fidelity.scores import MODELS
from lab.verdict import Check, at_most, check_table, reported
from simulator.case import Case
from simulator.greedy import order_of
from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

ROUNDS: Final = 40
LAYERS: Final = 4
PLAN: Final = SlicePlan(row_slices=2, merge_wgrad=True)
RESAMPLES: Final = 2000
WARM_UP: Final = 3
ZERO: Final = Predicted(iteration_ms=1.0, baseline_ms=1.0, no_comm_ms=1.0, peak_memory_gib=1.0)
Step = Callable[[], object]


def applied() -> list[Table]:
    """Return time ratios of steps of a user's loop at TP 2."""
    model, workload = MODELS["llama-small"]
    model = replace(model, num_hidden_layers=LAYERS)
    payload = {
        "model": asdict(model), "workload": asdict(workload),
        "cluster": asdict(ClusterSpec(tp=2, ranks_per_node=1)), "rounds": ROUNDS,
        "plan": _file(model, workload, PLAN), "unsliced": _file(model, workload, MEGATRON),
    }  # fmt: skip
    checks = []
    for link, bits_per_s in {"loopback": None, "500 Mbit/s": 5 * 10**8}.items():
        rounds: list[dict[str, Any]] = []
        spec = LaunchSpec(tp=2, emulate_link_bits_per_s=bits_per_s)
        run_job("lab.bench.runtime:compare", payload, spec, on_message=rounds.append)
        for what, one, other, limit in (
            ("the plan: applied / in the runtime's own loop", "applied", "runtime", 1.03),
            ("unsliced: applied / DTensor", "unsliced", "dtensor", 1.05),
            ("the plan, applied / DTensor", "applied", "dtensor", 1.0 if bits_per_s else None),
        ):
            ratios = [found[one] / found[other] for found in rounds]
            checks += _compared(f"{link}, {what}", ratios, limit)
    what = f"Steps of llama-small with {LAYERS} layers, {PLAN.label}, {ROUNDS} rounds"
    return [check_table(what, checks)]


def _file(model: ModelSpec, workload: Workload, plan: SlicePlan) -> Mapping[str, Any]:
    profile, cluster = load_profile("h100-dgx"), ClusterSpec(tp=2)
    half = replace(workload, dtype="bf16")
    order = order_of(Case(model=model, workload=half, cluster=cluster, profile=profile), plan)
    return PlanFile(
        model=model, workload=workload, cluster=cluster, plan=plan, order=order,
        profile=ProfileRef.of(profile), predicted=ZERO,
    ).to_json()  # fmt: skip


def _compared(what: str, ratios: Sequence[float], limit: float | None) -> list[Check]:
    """Return the median ratio within rounds, and where it lies in 95 of 100 resampled draws."""
    rng, middle = random.Random(0), statistics.median(ratios)
    draws = (rng.choices(ratios, k=len(ratios)) for _ in range(RESAMPLES))
    medians = sorted(map(statistics.median, draws))
    low, high = (medians[round(share * (RESAMPLES - 1))] for share in (0.025, 0.975))
    return [
        at_most(what, limit, middle, unit="×", digits=3) if limit
        else reported(what, f"{middle:.3f} ×"),
        reported("  its median lies in", f"{low:.3f} – {high:.3f}"),
    ]  # fmt: skip


def compare(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Report each round's step times on the slowest rank, ns, by name. The payload has the
    runtime's session, the plans ``plan`` and ``unsliced``, and rounds."""
    session = Session.of(context, payload)
    files = (payload["plan"], payload["unsliced"])
    plan, unsliced = (plan_from_json(file, source="the payload") for file in files)
    batch, executor = session.batch[0], session.executor(plan.plan, plan.order)
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
    spec = plan.model
    torch.manual_seed(0)
    alike = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "head_dim",
        "num_key_value_heads", "intermediate_size", "max_position_embeddings",
    )  # fmt: skip
    config: dict[str, Any] = {name: getattr(spec, name) for name in alike}
    config |= {"rms_norm_eps": spec.norm_eps, "bos_token_id": None, "eos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(**config))


def _parallelized(model: Any, mesh: DeviceMesh) -> Any:
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
               "mlp.up_proj")  # fmt: skip
    layer = {
        **{name: parallel.ColwiseParallel() for name in columns},
        **{name: parallel.RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")},
    }
    for one in model.model.layers:
        parallel.parallelize_module(one, mesh, layer)
    ends = {
        "model.embed_tokens": parallel.RowwiseParallel(input_layouts=Replicate()),
        "lm_head": parallel.ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallel.parallelize_module(model, mesh, ends)
    return model


def _training(model: Any, tokens: torch.Tensor) -> Step:
    kinds: list[list[torch.nn.Parameter]] = [[], []]  # torch does not mix DTensors and tensors
    for parameter in model.parameters():
        kinds[isinstance(parameter, DTensor)].append(parameter)
    held = [kind for kind in kinds if kind]
    optimizers = [torch.optim.AdamW(kind, lr=1e-4, fused=True) for kind in held]

    def step() -> None:
        with parallel.loss_parallel():
            logits = model(input_ids=tokens).logits
            loss = model.loss_function(
                logits, tokens, vocab_size=model.config.vocab_size
            ) if len(held) == 1 else _loss(logits, tokens)  # fmt: skip
            loss.backward()
        for kind, optimizer in zip(held, optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(kind, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return step


def _loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the loss of logits that are cut along the vocabulary, by torch's loss_parallel."""
    targets = torch.nn.functional.pad(tokens, (0, 1), value=-100)[:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
