"""Launch order inside a CUDA graph: ops after a collective wait until it has begun.

With one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1) a GPU starts eager kernels in the order of
their launch. A graph has no order but its edges, and a compute op that becomes ready together with
a collective would take all SMs. So the launch of each collective gives the compute stream an edge
from the collective's start: CUDA's port "launch completion", on which all CTAs of a kernel run
(CUDA Runtime API, cudaGraphKernelNodePortLaunchCompletion). Such an edge may only end at a kernel,
so an empty one precedes the next op, whatever that launches first.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Final

import torch

from domino_tune.runtime.launch_spec import QUEUES_SETTING

NEEDS_BINDINGS: Final = (
    "A graph that keeps the launch order needs cuda-bindings 13, which torch for CUDA 13 brings: "
    "pip install 'domino_tune[kernels]'"
)

ENDS_IN_COPIES: Final = (
    "A collective ends in copies, which have no start that a graph can wait for, so that the op "
    "behind it might run first: its steps are launched one by one. Collectives of kernels keep the "
    "order (NCCL's own, of two ranks or more, in place or into one tensor)"
)


def keeps_launch_order() -> bool:
    """Return whether this process's kernels start in the order of their launch."""
    return os.environ.get(QUEUES_SETTING) == "1"


def wait_for_start(comm: torch.cuda.Stream) -> None:
    """Make the current stream wait until the kernel that ``comm`` captured last has begun.

    Call it while both streams are captured. Does nothing where ``comm`` captured nothing that the
    current stream does not wait for anyway. Raise RuntimeError where it captured copies last,
    without cuda-bindings, or where CUDA refuses.
    """
    cudart = _bindings()
    compute = torch.cuda.current_stream()
    known = {int(node) for node in _last_nodes(cudart, compute)}
    last = {int(node): node for node in _last_nodes(cudart, comm)}
    kernel = cudart.cudaGraphNodeType.cudaGraphNodeTypeKernel
    kernels = {
        number: _checked(cudart, cudart.cudaGraphNodeGetType(node)) == kernel
        for number, node in last.items()
    }
    begun = [last[number] for number in with_a_start(kernels, known)]
    if not begun:
        return
    edges = [_start_edge(cudart) for _ in begun]
    _checked(
        cudart,
        cudart.cudaStreamUpdateCaptureDependencies(
            compute.cuda_stream, begun, edges, len(begun),
            cudart.cudaStreamUpdateCaptureDependenciesFlags.cudaStreamAddCaptureDependencies,
        ),
    )  # fmt: skip
    torch.cuda._sleep(0)  # type: ignore[no-untyped-call]


def with_a_start(last: Mapping[int, bool], known: Collection[int]) -> list[int]:
    """Return which nodes of a collective others can see begin. ``last``: those that it captured
    last, and whether each is a kernel; ``known`` ones are older than it.

    Raise RuntimeError where it has nodes, and none is a kernel.
    """
    own = {node: kernel for node, kernel in last.items() if node not in known}
    kernels = [node for node, kernel in own.items() if kernel]
    if own and not kernels:
        raise RuntimeError(ENDS_IN_COPIES)
    return kernels


def _bindings() -> Any:
    """Return CUDA's runtime API. Raise RuntimeError where it cannot be imported."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise RuntimeError(NEEDS_BINDINGS) from error
    return runtime


def _last_nodes(cudart: Any, stream: torch.cuda.Stream) -> list[Any]:
    """Return the nodes that the next one of a captured stream will depend on."""
    found = _checked(cudart, cudart.cudaStreamGetCaptureInfo(stream.cuda_stream))
    _, _, _, nodes, _, count = found
    return list(nodes[:count])


def _start_edge(cudart: Any) -> Any:
    """Return an edge from the moment at which all CTAs of a kernel run."""
    edge = cudart.cudaGraphEdgeData()
    edge.from_port = int(cudart.cudaGraphKernelNodePortLaunchCompletion)
    edge.type = int(cudart.cudaGraphDependencyType.cudaGraphDependencyTypeProgrammatic)
    return edge


def _checked(cudart: Any, answer: tuple[Any, ...]) -> Any:
    """Return what a call of CUDA gave; raise RuntimeError where it failed."""
    error, *found = answer
    if error != cudart.cudaError_t.cudaSuccess:
        raise RuntimeError(f"CUDA refuses the launch order of a graph: {error.name}")
    return found[0] if len(found) == 1 else tuple(found)
