"""Stage ``gaps``: what lies between kernels. A step as a graph and as launches, against the sum of
its ops' bursts, with every kernel's begin and end; and chains of one kernel."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch._C._autograd import DeviceType

from domino_tune.measure.gpu.events import recorded, since_ns
from domino_tune.measure.gpu.replays import captured
from domino_tune.measure.gpu.works import random_bf16
from domino_tune.runtime.clock import NoClock
from domino_tune.runtime.head_start import HeadStart
from domino_tune.runtime.session import Session
from lab.gpu.played_plans import TP
from lab.gpu.single_gpu_rank import single_gpu_session
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.steps import captured_step
from lab.gpu.taken_apart import break_down
from simulator.plan import MEGATRON
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload

SHAPES: Final = (
    ("gpt3-13b", 2048, 4), ("llama2-13b", 4096, 2), ("llama2-13b", 2048, 1), ("gpt3-1.3b", 2048, 1),
)  # fmt: skip
LAYERS: Final = (2, 6)
STEPS: Final = 10
REPLAYS: Final = 3
CHAIN: Final = 200
CHAIN_GEMMS: Final = ((64, 64, 64), (256, 1024, 1024), (2048, 2560, 5120))

Kernels = list[tuple[int, int, str]]
"""Begin and duration, ns, and name."""


def gap_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield chains of one kernel, then steps of few layers and of more."""
    yield GpuCase(name="chains", seconds=6.0, measure=_chains)
    for preset, seq, batch in SHAPES:
        for layers in LAYERS:
            yield GpuCase(
                name=f"{preset}/b{batch}x{seq}/{layers} layers", seconds=3.0,
                measure=partial(_step, stage, preset, seq, batch, layers),
            )  # fmt: skip


def _step(stage: Stage, preset: str, seq: int, batch: int, layers: int) -> Row:
    model = replace(MODELS[preset], num_hidden_layers=layers)
    workload = Workload(seq_length=seq, micro_batch_size=batch, dtype="bf16")
    session = single_gpu_session(model, workload, ClusterSpec(tp=TP), stage.device)
    whole = asdict(break_down(session, MEGATRON, STEPS))
    graph, eager = _graph_kernels(session), _eager_kernels(session)
    told = (
        f"graph {whole['graph_us']:.0f}, eager {whole['eager_us']:.0f}, ops "
        f"{sum(whole['by_kind_us'].values()):.0f} us; gap {gap_ns(graph):.0f} ns of {len(graph)} "
        f"kernels in a graph, {gap_ns(eager):.0f} of launches"
    )
    return {**whole, "graph_kernels": graph, "eager_kernels": eager, "told": told}


def gap_ns(kernels: Kernels) -> float:
    """Return the median ns between a kernel's end and the next one's begin; 0 without kernels."""
    found = [after[0] - before[0] - before[1] for before, after in pairwise(kernels)]
    return float(statistics.median(found)) if found else 0.0


def _graph_kernels(session: Session) -> Kernels:
    step = captured_step(session, session.executor(MEGATRON, None))
    return profiled(step.replay.graph.replay)


def _eager_kernels(session: Session) -> Kernels:
    executor, ahead = session.executor(MEGATRON, None), HeadStart(spin_ns=30_000_000)
    executor.run_step(*session.batch)

    def play() -> None:
        ahead.give()
        executor.play(*session.batch, NoClock())

    return profiled(play)


def profiled(play: Callable[[], object]) -> Kernels:
    """Return the kernels of the last of some calls, in order; nothing where the profiler sees
    none."""
    play()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(REPLAYS):
            play()
            torch.cuda.synchronize()
    events = profile.profiler.kineto_results.events()
    on_device = sorted(
        (event.start_ns(), event.duration_ns(), event.name()[:80])
        for event in events
        if event.device_type() == DeviceType.CUDA
    )
    found = on_device[-(len(on_device) // REPLAYS) :] if on_device else []
    return [(at - found[0][0], took, name) for at, took, name in found]


def _chains() -> Row:
    """Return of each kernel its time in a chain, as graph and as launches, and between events."""
    found: dict[str, Any] = {}
    tiny = torch.zeros(1, device="cuda")
    works: dict[str, Callable[[], object]] = {"add of 1": lambda: tiny.add_(1)}
    for tokens, out, wide in CHAIN_GEMMS:
        x, weight = random_bf16(tokens, wide), random_bf16(out, wide)
        works[f"gemm {tokens}x{out}x{wide}"] = partial(F.linear, x, weight)
    for megabytes in (1, 8, 64):
        buffer = torch.zeros(megabytes << 20, dtype=torch.uint8, device="cuda")
        works[f"fill of {megabytes} MiB"] = partial(buffer.fill_, 1)
    for name, work in works.items():
        found[name] = _chain(work)
    told = "; ".join(f"{name} {one['graph_ns']:.0f} / {one['launch_ns']:.0f} / "
                     f"{one['kernel_ns']:.0f}" for name, one in found.items())  # fmt: skip
    return {"chains": found, "told": f"ns a kernel in a graph / launched / by itself: {told}"}


def _chain(work: Callable[[], object]) -> dict[str, float]:
    def play() -> None:
        for _ in range(CHAIN):
            work()

    graph = captured(lambda: play).graph
    ahead = HeadStart(spin_ns=20_000_000)

    def launched() -> float:
        ahead.give()
        start = recorded()
        play()
        end = recorded()
        ahead.check()
        torch.cuda.synchronize()
        return since_ns(start, end)

    kernels = profiled(graph.replay)
    return {
        "graph_ns": _median(lambda: _spent(graph.replay)) / CHAIN,
        "launch_ns": _median(launched) / CHAIN,
        "kernel_ns": float(statistics.median([took for _, took, _ in kernels] or [0])),
        "gap_ns": gap_ns(kernels),
    }


def _spent(play: Callable[[], object]) -> float:
    start = recorded()
    play()
    end = recorded()
    torch.cuda.synchronize()
    return since_ns(start, end)


def _median(time_ns: Callable[[], float]) -> float:
    found: Sequence[float] = [time_ns() for _ in range(5)]
    return statistics.median(found)
