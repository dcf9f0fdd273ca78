"""Plans in Hugging Face models: decoder stacks that play a plan inside the user's own loop.

``trainer`` | ``apply`` > stack | edges > gradients > shard > weights; checks and refusals.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from domino_tune.base.errors import RunError
from domino_tune.runtime.huggingface.checks import (
    as_played,
    check_arguments,
    check_device,
    check_same_model,
    family_of,
    tell_what_is_left_out,
)
from domino_tune.runtime.huggingface.edges import drop_alike, shard_edges
from domino_tune.runtime.huggingface.gradients import Replicas
from domino_tune.runtime.huggingface.refusals import (
    Doubts,
    check_agreed,
    refuse_wrappers,
    stay_on_the_host,
)
from domino_tune.runtime.huggingface.shard import ShardedStack, watch_optimizers
from domino_tune.runtime.huggingface.stack import Stack, StackPlayer
from domino_tune.runtime.huggingface.weights import (
    Loading,
    ModelPaths,
    ModelState,
    Saving,
    Weights,
    device_of,
    materialise,
    replace_at,
    split_fused,
)
from domino_tune.runtime.lanes.groups import GroupLanes, lane_over
from domino_tune.runtime.lanes.lane import Lane, end_in_order
from domino_tune.runtime.launch_spec import (
    QUEUES_SETTING,
    Backend,
    LaunchSpec,
    check_heads,
    check_own_strategy,
    check_played,
    check_torch,
    for_new_threads,
)
from domino_tune.runtime.ops import Training
from domino_tune.runtime.parameters import main_dtype_of
from domino_tune.store.plans import PlanFile, load_plan
from simulator.errors import InputError
from simulator.schedule import DP, TP
from simulator.specs import ClusterSpec

# apply --------------------------------------------------------------------------------------------
# A model of ``transformers`` whose decoder stack plays a plan.

Model = TypeVar("Model", bound=nn.Module)


def apply(
    model: Model, plan: PlanFile | str | Path, *, seed: int = 0, main_grads: bool = False,
    weights: str | Path | None = None,
) -> Model:  # fmt: skip
    """Return ``model``, whose decoder stack plays ``plan`` from now on; call it on every rank.

    ``model`` is a Hugging Face Llama, Mistral, Qwen2, Qwen3 or GPT-2 with its head, whole, on this
    rank's device; ``plan`` a plan file or its path. Ranks are those of torch.distributed, rank =
    dp_rank · tp + tp_rank. With tp > 1 the parameters become DTensors, so make the optimizer after
    this call. GPT-2's fused c_attn becomes c_attn.q, .k and .v, until it is saved. Gradients are
    averaged over replicas during backward; ``model.no_sync()`` skips that, for all micro-batches
    except the last. ``model.save_pretrained`` saves whole weights, and all ranks must call it.
    ``weights``: a folder of safetensors; each rank reads only its part. Create the model without
    weights then (accelerate.init_empty_weights); no device ever holds it whole.
    ``seed`` draws dropout masks. ``main_grads``: gradients of 16-bit weights are kept and summed in
    fp32.

    Raise InputError for a model, plan or world size that does not fit, or if ranks differ in
    weights, plan or seed; the message says what to do.
    """
    plan_file = plan if isinstance(plan, PlanFile) else load_plan(plan)
    check_played(plan_file.workload, plan_file.cluster, "Make a plan")
    check_own_strategy(plan_file.plan)
    if weights is not None:
        model.tie_weights()  # type: ignore[operator]  # accelerate unties what has no weights
    family, spec = family_of(model, may_be_empty=weights is not None)
    check_same_model(spec, plan_file.model)
    check_heads(spec, plan_file.cluster.tp, "Make a plan with")
    played = replace(plan_file, model=as_played(spec, plan_file.model))
    tell_what_is_left_out(played.cluster)
    check_agreed(model, plan=played.to_json(), seed=seed, main_grads=main_grads, files=str(weights))
    device, read = device_of(model), Weights(family, weights)
    _check_gpu(device)
    with _urgent_threads(device):
        mesh = _mesh(played.cluster, device)
        lanes, replicas = _lanes(played, device), Replicas(_replicas_lane(mesh, device))
    tp_mesh = mesh["tp"] if mesh is not None and played.cluster.tp > 1 else None
    tp_rank = tp_mesh.get_local_rank() if tp_mesh is not None else 0
    dp_rank = mesh["dp"].get_local_rank() if mesh is not None else 0
    whole = list(model.parameters())
    split_fused(model, family)
    stack = ShardedStack(model, family, played.model, played.cluster, tp_mesh, read, device)
    materialise(model, family, read, device)
    player = StackPlayer(
        plan=played, stack=stack, lanes=lanes, tp_rank=tp_rank, dp_rank=dp_rank,
        training=Training(seed=seed), doubts=Doubts(defers=device.type == "cuda"),
        replicas=replicas,
    )  # fmt: skip
    if tp_mesh is not None:
        shard_edges(
            model, family, tp_mesh, summed=player.summed, slices=played.plan.row_slices,
            lane=lanes[TP],
        )  # fmt: skip
    if main_grads:
        _ask_for_main_grads(model)
    _play(model, family, player, seed)
    _save_whole(model, family, played.cluster.tp, cut=tp_mesh is not None)
    watch_optimizers(whole, model.parameters())
    stay_on_the_host(model)
    refuse_wrappers(model, cut=tp_mesh is not None)
    return model


def _check_gpu(device: torch.device) -> None:
    if device.type == "cuda":
        check_device(device, torch.cuda.current_device(), os.environ.get(QUEUES_SETTING, ""))
        check_torch(torch.__version__)


def _play(model: nn.Module, family: ModelPaths, player: StackPlayer, seed: int) -> None:
    """Put the player in the place of the model's stack."""
    player.replicas.watch(model, player.stack)
    model.no_sync = player.replicas.no_sync  # type: ignore[assignment]
    body = model.get_submodule(family.stack.rpartition(".")[0])
    layers = Stack(model.get_submodule(family.stack), player, body)  # type: ignore[arg-type]
    replace_at(model, family.stack, layers)
    player.stack.watch(layers)
    if family.embedding_dropout:
        drop_alike(model.get_submodule(family.embedding_dropout), seed, player.dp_rank)
    checked = partial(check_arguments, doubts=player.doubts)
    body.register_forward_pre_hook(checked, with_kwargs=True)
    model.supports_gradient_checkpointing = False  # type: ignore[assignment]


def _save_whole(model: nn.Module, family: ModelPaths, tp: int, *, cut: bool) -> None:
    """Let the model save and load whole weights."""
    model.save_pretrained = Saving(model, family, tp)  # type: ignore[assignment]
    model.register_load_state_dict_pre_hook(Loading(family))  # type: ignore[no-untyped-call]
    if cut:
        model._register_state_dict_hook(_in_parts)  # type: ignore[no-untyped-call]


def _in_parts(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> dict[str, Any]:
    return state if prefix else ModelState(state)


def _urgent_threads(device: torch.device) -> AbstractContextManager[object]:
    """Let threads that start within run at once when a collective needs them, where the system
    allows it: on CPUs they share a core with compute."""
    return for_new_threads() if device.type == "cpu" else nullcontext()


def _mesh(cluster: ClusterSpec, device: torch.device) -> DeviceMesh | None:
    """Return the mesh of all ranks, (dp, tp); None for one process without a group."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks % cluster.tp:
        raise InputError(
            f"The plan is for tp {cluster.tp}, and torch.distributed has {ranks} ranks; start a "
            f"multiple of {cluster.tp}: torchrun --nproc-per-node {cluster.tp} … and call "
            "torch.distributed.init_process_group first."
        )
    if not dist.is_initialized():
        return None
    end_in_order()
    return init_device_mesh(
        device.type, (ranks // cluster.tp, cluster.tp), mesh_dim_names=("dp", "tp")
    )


def _lanes(plan: PlanFile, device: torch.device) -> dict[int, Lane]:
    """Return the lanes of the plan's collectives: that of tensor parallelism."""
    cluster = plan.cluster
    if cluster.tp == 1:
        return {}
    spec = LaunchSpec(
        tp=cluster.tp, dp=dist.get_world_size() // cluster.tp,
        backend=_backend(device), hang_timeout_s=_timeout_s(device),
    )  # fmt: skip
    lanes = GroupLanes(spec, dist.get_rank(), timed=False)
    lanes.default[DP].close()
    ctas = plan.plan.comm_ctas if device.type == "cuda" else 0
    return {TP: lanes.tp_lane(ctas)}


def _replicas_lane(mesh: DeviceMesh | None, device: torch.device) -> Lane | None:
    """Return the lane of sums over replicas; None where there is one."""
    if mesh is None or mesh["dp"].size() == 1:
        return None
    return lane_over(mesh["dp"].get_group(), DP, _backend(device), timed=False)


def _backend(device: torch.device) -> Backend:
    return "nccl" if device.type == "cuda" else "gloo"


def _timeout_s(device: torch.device) -> float:
    """Return the timeout that the user gave to ``init_process_group``, s: a rank may evaluate, or
    save, for long while the others wait."""
    world = dist.distributed_c10d._get_default_group()
    timeout: timedelta = world._get_backend(device).options._timeout
    return timeout.total_seconds()


def _ask_for_main_grads(model: nn.Module) -> None:
    for parameter in model.parameters():
        if not hasattr(parameter, "grad_dtype"):
            raise RunError(
                f"main_grads=True needs a torch whose tensors have grad_dtype, got "
                f"{torch.__version__}; take a newer one, or fp32 weights under torch.autocast."
            )
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.grad_dtype = main_dtype_of(parameter.dtype)
