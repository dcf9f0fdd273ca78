"""Stage ``gaps``: what lies between kernels. A step as a graph and as launches, against the sum of
its ops' bursts, with every kernel's begin and end; and chains of one kernel."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn
from torch._C._autograd import DeviceType

from domino_tune.measure.gpu import random_bf16, spans_ns, ticks_around
from domino_tune.measure.gpu.loads import captured
from domino_tune.measure.laws import COMPUTE as FAMILIES
from domino_tune.measure.probes.compute import Samples
from domino_tune.runtime.clock import HeadStart, NoClock
from domino_tune.runtime.ops.pointwise import pointwise_for
from domino_tune.runtime.session import Session
from lab.gpu.cases import SHAPES, RankCase
from lab.gpu.ops import play_plan, session_of
from lab.gpu.stage import GpuCase, Play, Row, Stage, median_ns
from lab.gpu.sustained import captured_step
from simulator.plan import MEGATRON
from simulator.schedule import COMPUTE

LAYERS: Final = (2, 6)
STEPS: Final = 10
REPLAYS: Final = 3
CHAIN: Final = 200
REPEATS: Final = 5
CHAIN_GEMMS: Final = ((64, 64, 64), (256, 1024, 1024), (2048, 2560, 5120))
Kernels = list[tuple[int, int, str]]  # Begin and duration, ns, and name


def gap_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield chains of one kernel, then steps of few layers and of more."""
    yield GpuCase("chains", 6.0, _chains)
    for (preset, seq, batch), layers in product(SHAPES["gaps"], LAYERS):
        measure = partial(_step, stage, preset, seq, batch, layers)
        yield GpuCase(f"{preset}/b{batch}x{seq}/{layers} layers", 3.0, measure)


def _step(stage: Stage, preset: str, seq: int, batch: int, layers: int) -> Row:
    session = session_of(RankCase.of(preset, seq, batch, layers=layers), stage.device)
    executor, ahead = session.executor(MEGATRON, None), HeadStart(spin_ns=30_000_000)
    replay = captured_step(session, executor).replay.graph.replay

    def launched() -> None:
        executor.play(*session.batch, NoClock())

    def launched_ahead() -> None:
        ahead.give()
        launched()

    eager, graph = profiled(launched_ahead), profiled(replay)
    bursts_us = burst_us(session)
    eager_us, graph_us = (median_ns(stage.device, play, STEPS) / 1e3 for play in (launched, replay))
    told = (
        f"graph {graph_us:.0f}, eager {eager_us:.0f}, ops {sum(bursts_us.values()):.0f} us; "
        f"gap {gap_ns(graph):.0f} ns of {len(graph)} kernels in a graph, {gap_ns(eager):.0f} of "
        "launches"
    )
    return {
        "label": MEGATRON.label, "by_kind_us": bursts_us, "eager_us": eager_us,
        "graph_us": graph_us, "graph_kernels": graph, "eager_kernels": eager, "told": told,
    }  # fmt: skip


def burst_us(session: Session) -> dict[str, float]:
    """Return by family what the ops of an unsliced step take, each its median between events."""
    found: Samples = defaultdict(list)
    play_plan(session, MEGATRON, found)
    sums = dict.fromkeys(FAMILIES, 0.0)
    for op in session.executor(MEGATRON, None).ops:
        if op.lane == COMPUTE:
            sums[op.signature.kind] += statistics.median(found[op.signature]) / 1e3
    return sums


def gap_ns(kernels: Kernels) -> float:
    """Return the median ns between a kernel's end and the next one's begin; 0 without kernels."""
    found = [after[0] - before[0] - before[1] for before, after in pairwise(kernels)]
    return float(statistics.median(found)) if found else 0.0


def profiled(play: Play) -> Kernels:
    """Return the last call's kernels, in order; nothing where the profiler sees none."""
    play()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(REPLAYS):
            play()
            torch.cuda.synchronize()
    on_device = sorted(
        (event.start_ns(), event.duration_ns(), event.name()[:80])
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == DeviceType.CUDA
    )
    found = on_device[-(len(on_device) // REPLAYS) :] if on_device else []
    return [(at - found[0][0], took, name) for at, took, name in found]


def _chains() -> Row:
    tiny = torch.zeros(1, device="cuda")
    works: dict[str, Play] = {"add of 1": lambda: tiny.add_(1)}
    for tokens, out, wide in CHAIN_GEMMS:
        x, weight = random_bf16(tokens, wide), random_bf16(out, wide)
        works[f"gemm {tokens}x{out}x{wide}"] = partial(F.linear, x, weight)
    for megabytes in (1, 8, 64):
        buffer = torch.zeros(megabytes << 20, dtype=torch.uint8, device="cuda")
        works[f"fill of {megabytes} MiB"] = partial(buffer.fill_, 1)
    found: dict[str, Any] = {name: _chain(work) for name, work in works.items()}
    told = "; ".join(f"{name} {one['graph_ns']:.0f} / {one['launch_ns']:.0f} / "
                     f"{one['kernel_ns']:.0f}" for name, one in found.items())  # fmt: skip
    return {"chains": found, "told": f"ns a kernel in a graph / launched / by itself: {told}"}


def _chain(work: Play) -> dict[str, float]:
    def play() -> None:
        for _ in range(CHAIN):
            work()

    replay, device = captured(lambda: play).graph.replay, torch.device("cuda")
    kernels, ahead = profiled(replay), HeadStart(spin_ns=20_000_000)
    return {
        "graph_ns": median_ns(device, replay, REPEATS) / CHAIN,
        "launch_ns": median_ns(device, play, REPEATS, ahead) / CHAIN,
        "kernel_ns": float(statistics.median([took for _, took, _ in kernels] or [0])),
        "gap_ns": gap_ns(kernels),
    }


# Stage rehearsal: what surrounds a plan in a loop, before NCCL runs it: two ways of each ---------

CALLS: Final = 20
SECONDS: Final = 12.0
Sizes = SimpleNamespace  # tokens, hidden, inner, layers, and widths of norms
Ways = dict[str, Callable[[], object]]
Make = Callable[[Sizes, torch.device], Ways]


def rehearsal_cases(stage: Stage, sizes: Sizes | None = None) -> Iterator[GpuCase]:
    """Yield a case for each thing that is done in two ways or more, with each one's ns."""
    some = sizes or Sizes(**SHAPES["rehearsal"])
    for name, make in MAKERS.items():
        yield GpuCase(name, SECONDS, partial(_row, make, some, stage.device))


def _row(make: Make, sizes: Sizes, device: torch.device) -> Row:
    return {f"{way}_ns": _timed(work, device) for way, work in make(sizes, device).items()}


def _timed(work: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        return median_ns(device, work, CALLS)
    work()
    ticks = ticks_around(lambda _: work(), CALLS)
    torch.cuda.synchronize()
    return statistics.median(spans_ns(ticks))


def optimizers(sizes: Sizes, device: torch.device) -> Ways:
    """AdamW of all layers' weights, as torch chooses for DTensors, and in one pass."""

    def stepped(**how: Any) -> Callable[[], object]:
        shapes = [(sizes.inner, sizes.hidden)] * 4 + [(sizes.hidden,)] * 2
        weights = [nn.Parameter(torch.zeros(x, device=device)) for x in shapes * sizes.layers]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        return torch.optim.AdamW(weights, **how).step

    return {"loop": stepped(foreach=False), "fused": stepped(fused=True)}


def merged_inputs(sizes: Sizes, device: torch.device) -> Ways:
    """A merged weight gradient of two slices, whose inputs are put together, or are one."""
    half = partial(torch.ones, sizes.tokens // 2, dtype=torch.bfloat16, device=device)
    dy, x = ([half(wide) for _ in range(2)] for wide in (sizes.inner, sizes.hidden))
    whole_dy, whole_x = torch.cat(dy), torch.cat(x)
    return {
        "put_together": lambda: torch.cat(dy).t() @ torch.cat(x),
        "one": lambda: whole_dy.t() @ whole_x,
    }


def gradients(sizes: Sizes, device: torch.device) -> Ways:
    """The gradients of a stack in fp32, and the copy in bf16; the weights that autocast casts."""
    flat = torch.ones(4 * sizes.inner * sizes.hidden * sizes.layers, device=device)
    return {"to_bf16": lambda: flat.to(torch.bfloat16), "cleared": flat.zero_}


def wide_norms(sizes: Sizes, device: torch.device) -> Ways:
    """The gradient of RMSNorm at widths whose rows used to spill registers."""
    functions = pointwise_for(device)

    def work(width: int) -> Callable[[], object]:
        rows, dtype = max(1, sizes.tokens * sizes.hidden // width), torch.bfloat16
        x, dy = (torch.randn(rows, width, device=device, dtype=dtype) for _ in range(2))
        weight = torch.ones(width, device=device, dtype=dtype)
        _, rstd = functions.rms_norm(x, weight, 1e-5)
        return lambda: functions.rms_norm_grad(dy, x, weight, rstd, None)

    return {f"width_{width}": work(width) for width in sizes.wide}


MAKERS: Final[dict[str, Make]] = {
    "optimizers": optimizers, "merged inputs": merged_inputs, "gradients": gradients,
    "wide norms": wide_norms,
}  # fmt: skip
