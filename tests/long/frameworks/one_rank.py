"""A process group of one rank, which frameworks ask for."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def one_rank() -> Iterator[None]:
    """Be the only rank."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        yield
        dist.destroy_process_group()
