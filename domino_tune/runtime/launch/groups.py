"""Joining the world: ranks meet, make their process groups and open their lanes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from domino_tune.base.errors import RunError
from domino_tune.base.memory import keep_freed_memory
from domino_tune.runtime import priority
from domino_tune.runtime.lanes.groups import GroupLanes, group_timeout
from domino_tune.runtime.lanes.silent import SilentLanes
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.launch.launcher import Launcher
from domino_tune.runtime.launch_spec import Backend, LaunchSpec, Message

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@contextmanager
def open_context(
    spec: LaunchSpec,
    *,
    rank: int,
    local_rank: int,
    store: Store,
    send: Callable[[Message], None],
    heart: Callable[[], None],
) -> Iterator[RankContext]:
    """Join the world through ``store`` and open the lanes; leave when the job is done on all ranks.

    After an error nothing is closed: a lane may be stuck in a collective, and the process is about
    to end. The world's own group is gloo, for messages between hosts; only lanes carry tensors.
    """
    torch.set_num_threads(spec.threads_per_rank)
    keep_freed_memory()
    device = _device(spec.backend, local_rank)
    with priority.for_new_threads():
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=spec.world_size, timeout=group_timeout(spec)
        )
        lanes = SilentLanes(device) if spec.single_rank else GroupLanes(spec, rank)
    context = RankContext(
        rank=rank,
        world_size=spec.world_size,
        tp=spec.tp,
        dp=spec.dp,
        device=device,
        backend=spec.backend,
        lanes=lanes.default,
        tp_lane=lanes.tp_lane,
        control=dist.group.WORLD,  # type: ignore[arg-type]
        send=send,
        heart=heart,
    )
    yield context
    context.barrier()
    lanes.close()
    dist.destroy_process_group()


def file_store(path: Path, spec: LaunchSpec) -> Store:
    """Return a file store for one machine: it needs no port and works across namespaces."""
    store: Store = dist.FileStore(str(path), spec.world_size)  # type: ignore[attr-defined]
    store.set_timeout(group_timeout(spec))
    return store


def external_store(launcher: Launcher, spec: LaunchSpec) -> Store:
    """Return the store where ranks of a launcher meet; raise RunError when they do not."""
    host, port = launcher.address
    try:
        if launcher.name == "torchrun":
            # rendezvous knows whether torchrun's agent already serves the store.
            place = launcher.rank, launcher.world_size
            store, _, _ = next(rendezvous("env://", *place, timeout=group_timeout(spec)))
        else:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                host, port, launcher.world_size, launcher.rank == 0, group_timeout(spec)
            )
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"Rank {launcher.rank} of {launcher.world_size} could not meet the others at "
            f"{host}:{port}. If that port is in use, set MASTER_PORT to a free one; if ranks are "
            f"missing, start all of them with torchrun or srun. {error}"
        ) from error
    found: Store = store
    return found


def resolve(job: str) -> Callable[[RankContext, Mapping[str, object]], None]:
    """Return the function named by ``package.module:function``."""
    module, _, name = job.partition(":")
    function: Callable[[RankContext, Mapping[str, object]], None] = getattr(
        importlib.import_module(module), name
    )
    return function


def _device(backend: Backend, local_rank: int) -> torch.device:
    if backend == "gloo":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
