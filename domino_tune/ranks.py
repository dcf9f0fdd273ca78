"""From a request's fields about real ranks to what the launcher takes."""

from __future__ import annotations

import shutil
from typing import cast

from domino_tune.quantities import parse_quantity
from domino_tune.requests import RanksFields
from domino_tune.runtime.launch_spec import Backend, LaunchSpec

BITS = 8


def launch_spec(request: RanksFields, *, tp: int, dp: int = 1) -> LaunchSpec:
    """The launch of ``tp`` · ``dp`` ranks. Raises InputError on what cannot be started."""
    link = request.emulate_link
    rate = parse_quantity("--emulate-link", link, ("bytes/s",)).value if link else None
    return LaunchSpec(
        tp=tp,
        dp=dp,
        backend=cast("Backend", request.backend or default_backend(emulated=rate is not None)),
        emulate_link_bits_per_s=None if rate is None else round(rate * BITS),
        nproc_per_node=request.nproc_per_node,
    )


def default_backend(*, emulated: bool) -> Backend:
    """nccl where NVIDIA's driver is installed and no link is emulated, else gloo."""
    return "nccl" if shutil.which("nvidia-smi") and not emulated else "gloo"
