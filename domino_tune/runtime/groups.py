"""A rank's place in the world: its process groups, lanes, device, and ways to talk."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from domino_tune.errors import RunError
from domino_tune.runtime import priority
from domino_tune.runtime.keep_memory import keep_freed_memory
from domino_tune.runtime.lanes import Lane, ThreadLane
from domino_tune.runtime.launch_external import Launcher
from domino_tune.runtime.launch_spec import Backend, LaunchSpec, Message
from domino_tune.runtime.stream_lanes import StreamLane
from simulator.schedule import DP, LANES, TP

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """What a job gets on each rank. ``lanes`` maps the schedule's comm lane numbers to lanes, each
    over a process group of its own. rank = dp_rank · tp + tp_rank."""

    rank: int
    world_size: int
    tp: int
    dp: int
    device: torch.device
    backend: Backend
    lanes: Mapping[int, Lane]
    control: dist.ProcessGroup
    send: Callable[[Message], None]
    heart: Callable[[], None]

    @property
    def tp_rank(self) -> int:
        """Place in the tensor-parallel group."""
        return self.rank % self.tp

    @property
    def dp_rank(self) -> int:
        """Which replica this rank works for."""
        return self.rank // self.tp

    def report(self, message: Message) -> None:
        """Send ``message`` (JSON) to the caller of run_job; only rank 0's arrive."""
        self.beat()
        if self.rank == 0:
            self.send(message)

    def beat(self) -> None:
        """Tell the watchdog that this rank makes progress. Costs about a microsecond."""
        self.heart()

    def barrier(self) -> None:
        """Wait, on the host, for every rank to come here."""
        self.beat()
        dist.barrier(group=self.control)
        self.beat()

    def all_gather_objects(self, item: Item) -> list[Item]:
        """Every rank's ``item`` (anything that pickles), in order of rank, on every rank."""
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
    """Join the world through ``store`` and open the lanes; when the job is done on all ranks,
    leave together. After an error nothing is tidied up: a lane may be stuck in a collective, and
    the process is about to end.

    The world's own group is gloo, for words between hosts; only lanes carry tensors.
    """
    torch.set_num_threads(spec.threads_per_rank)
    keep_freed_memory()
    device = _device(spec.backend, local_rank)
    with priority.for_new_threads():
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=spec.world_size, timeout=_timeout(spec)
        )
        lanes = _open_lanes(spec, rank)
    context = RankContext(
        rank=rank,
        world_size=spec.world_size,
        tp=spec.tp,
        dp=spec.dp,
        device=device,
        backend=spec.backend,
        lanes=lanes,
        control=dist.group.WORLD,  # type: ignore[arg-type]
        send=send,
        heart=heart,
    )
    yield context
    context.barrier()
    for lane in lanes.values():
        lane.close()
    dist.destroy_process_group()


def file_store(path: Path, spec: LaunchSpec) -> Store:
    """Where ranks of one machine meet: a file needs no port, and crosses network namespaces."""
    store: Store = dist.FileStore(str(path), spec.world_size)  # type: ignore[attr-defined]
    store.set_timeout(_timeout(spec))
    return store


def external_store(launcher: Launcher, spec: LaunchSpec) -> Store:
    """Where ranks that a launcher started meet; raises RunError when they do not."""
    host, port = launcher.address
    try:
        if launcher.name == "torchrun":
            # Knows whether torchrun's agent already serves the store.
            place = launcher.rank, launcher.world_size
            store, _, _ = next(rendezvous("env://", *place, timeout=_timeout(spec)))
        else:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                host, port, launcher.world_size, launcher.rank == 0, _timeout(spec)
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
    """The function behind ``package.module:function``."""
    module, _, name = job.partition(":")
    function: Callable[[RankContext, Mapping[str, object]], None] = getattr(
        importlib.import_module(module), name
    )
    return function


def _timeout(spec: LaunchSpec) -> timedelta:
    """Longer than the watchdog's, which gives the better message where there is one."""
    return timedelta(seconds=spec.hang_timeout_s + 10)


def _device(backend: Backend, local_rank: int) -> torch.device:
    if backend == "gloo":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _open_lanes(spec: LaunchSpec, rank: int) -> dict[int, Lane]:
    """Every rank takes part in making every group, in one order: torch's rule."""
    tp, world = spec.tp, spec.world_size
    members = {
        TP: [list(range(first, first + tp)) for first in range(0, world, tp)],
        DP: [list(range(first, world, tp)) for first in range(tp)],
    }
    lanes: dict[int, Lane] = {}
    for number, groups in members.items():
        for ranks in groups:
            group = dist.new_group(ranks, backend=spec.backend, timeout=_timeout(spec))
            if rank in ranks:
                lanes[number] = _open_lane(spec.backend, group, LANES[number])
    return lanes


def _open_lane(backend: Backend, group: dist.ProcessGroup, name: str) -> Lane:
    return ThreadLane(group, name) if backend == "gloo" else StreamLane(group)
