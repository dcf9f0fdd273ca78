"""What torch itself keeps and makes of logits and gathered inputs, beside what is predicted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from simulator.edges import PARALLEL_LOSS, PLAIN_LOSS
from simulator.implementation import IMPLEMENTATIONS
from tests.support.torch_bytes import Peak

RANKS, TOKENS, HIDDEN, VOCABULARY = 4, 256, 16, 8192
BF16_BYTES = 2
SMALL = 0.3
"""Bytes a logit of what has no vocabulary: losses, targets, hidden states, the head's gradient."""


@pytest.fixture
def ranks() -> Iterator[DeviceMesh]:
    """Ranks whose collectives move nothing; this process is the first."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield init_device_mesh("cpu", (RANKS,))
    dist.destroy_process_group()


def peak_of_a_loss(mesh: DeviceMesh | None, *, held: bool) -> float:
    """Return the bytes of a logit at the peak of a step through head and loss. ``held``: the
    program keeps the logits through backward; else it deletes them, as torchtitan does."""
    rows = VOCABULARY // (mesh.size() if mesh else 1)
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(VOCABULARY, (TOKENS,))
    with loss_parallel() if mesh else nullcontext(), Peak() as peak:
        if mesh:
            logits: torch.Tensor = functional.linear(
                DTensor.from_local(x, mesh, [Replicate()], run_check=False),
                DTensor.from_local(head, mesh, [Shard(0)], run_check=False),
            )
        else:
            logits = functional.linear(x, head)
        loss = functional.cross_entropy(logits.float(), targets)
        if not held:
            del logits
        loss.backward()  # type: ignore[no-untyped-call]
    each: float = peak.most / (TOKENS * rows)
    return each


@pytest.mark.parametrize(("held", "more"), [(False, 0), (True, BF16_BYTES)])
def test_the_loss_of_all_logits(held: bool, more: int) -> None:
    assert 0 <= peak_of_a_loss(None, held=held) - PLAIN_LOSS - more < SMALL


@pytest.mark.parametrize(("held", "more"), [(False, 0), (True, BF16_BYTES)])
def test_the_loss_of_divided_logits(ranks: DeviceMesh, held: bool, more: int) -> None:
    assert 0 <= peak_of_a_loss(ranks, held=held) - PARALLEL_LOSS - more < SMALL


def test_dtensor_keeps_what_it_gathered_for_a_gemm(ranks: DeviceMesh) -> None:
    """Between the passes live the input of all tokens, and the output."""
    assert IMPLEMENTATIONS["torch"].keeps_gathered
    linear = torch.nn.Linear(HIDDEN, RANKS * HIDDEN, bias=False, dtype=torch.bfloat16)
    parallelize_module(linear, ranks, ColwiseParallel(input_layouts=Shard(0)))
    share = torch.randn(TOKENS // RANKS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    with Peak() as peak:
        output = linear(share)
        kept = peak.alive
    assert output.shape == (TOKENS, HIDDEN)
    assert kept == 2 * TOKENS * HIDDEN * BF16_BYTES
