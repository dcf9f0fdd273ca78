"""The context of a job on a rank, and how ranks join the world that it describes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from domino_tune.base.errors import RunError
from domino_tune.base.memory import keep_freed_memory
from domino_tune.runtime import launch_spec
from domino_tune.runtime.lanes.groups import GroupLanes, SilentLanes, group_timeout
from domino_tune.runtime.lanes.lane import Lane
from domino_tune.runtime.launch import Launcher
from domino_tune.runtime.launch_spec import Backend, LaunchSpec, Message
from simulator.schedule import TP

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """The context of a job on a rank; rank = dp_rank · tp + tp_rank. ``lanes`` maps the schedule's
    comm lane numbers to lanes, each over its own process group. ``tp_lane`` returns the
    tensor-parallel lane of a CTA count."""

    rank: int
    world_size: int
    tp: int
    dp: int
    device: torch.device
    backend: Backend
    lanes: Mapping[int, Lane]
    tp_lane: Callable[[int], Lane]
    control: dist.ProcessGroup
    send: Callable[[Message], None]
    heart: Callable[[], None]

    @property
    def tp_rank(self) -> int:
        """Return this rank's place in the tensor-parallel group."""
        return self.rank % self.tp

    @property
    def dp_rank(self) -> int:
        """Return the number of the replica that this rank belongs to."""
        return self.rank // self.tp

    def lanes_for(self, comm_ctas: int) -> Mapping[int, Lane]:
        """Return the lanes of a plan whose tensor-parallel collectives use ``comm_ctas`` CTAs; 0 is
        NCCL's own choice. The first call with a count makes its lane, so all ranks must call with
        the same counts in the same order. Raise InputError for a count other than 0 on gloo."""
        return {**self.lanes, TP: self.tp_lane(comm_ctas)} if comm_ctas else self.lanes

    def report(self, message: Message) -> None:
        """Send ``message`` (JSON) to the caller of run_job; only rank 0's messages are sent."""
        self.beat()
        if self.rank == 0:
            self.send(message)

    def beat(self) -> None:
        """Report to the watchdog that this rank makes progress. Costs about a microsecond."""
        self.heart()

    def barrier(self) -> None:
        """Wait, on the host, until every rank is here."""
        self.beat()
        dist.barrier(group=self.control)
        self.beat()

    def all_gather_objects(self, item: Item) -> list[Item]:
        """Return every rank's ``item`` (anything that pickles), in order of rank, on every rank."""
        found: list[Item | None] = [None] * self.world_size
        self.beat()
        dist.all_gather_object(found, item, group=self.control)
        self.beat()
        return found  # type: ignore[return-value]


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
    with launch_spec.for_new_threads():
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
