"""One rank of a tensor-parallel group, alone on its GPU: its true shard, but no other ranks."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from domino_tune.runtime.lanes.silent import SilentLanes
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.ops.state import Training
from domino_tune.runtime.session import Session
from simulator.specs import ClusterSpec, ModelSpec, Workload


def single_gpu_session(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, device: torch.device
) -> Session:
    """Return rank 0 of ``cluster``'s group with silent lanes and weights drawn on ``device``,
    without attention dropout."""
    lanes = SilentLanes(device)
    context = RankContext(
        rank=0, world_size=1, tp=cluster.tp, dp=cluster.dp, device=device,
        backend="nccl" if device.type == "cuda" else "gloo", lanes=lanes.default,
        tp_lane=lanes.tp_lane, control=dist.GroupMember.NON_GROUP_MEMBER,  # type: ignore[arg-type]
        send=lambda message: None, heart=lambda: None,
    )  # fmt: skip
    return Session(
        context=context, model=replace(model, attention_dropout=0.0), workload=workload,
        cluster=cluster, training=Training(learning_rate=0.0), exact_weights=False,
    )  # fmt: skip
