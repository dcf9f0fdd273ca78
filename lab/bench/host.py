"""What the host of an eager framework spends on a kernel, measured here on a layer without work."""

from __future__ import annotations

from domino_tune.base.tables import Table
from domino_tune.measure.machine import cpu_name
from domino_tune.store.profiles import load_profile
from lab.bench.host_job import measure


def host() -> list[Table]:
    """Return the host's time of Megatron-LM's layer of 2022, and a kernel's share of it."""
    times = measure()
    launch = load_profile("a100-sxm").launch
    assert launch is not None
    passes = {
        "forward, saving random states": (times.forward_us, times.forward_kernels),
        "forward again and backward": (times.backward_us, times.backward_kernels),
    }
    each = sum(spent for spent, _ in passes.values()) / sum(count for _, count in passes.values())
    rows = [
        (what, f"{spent:,.0f}", str(count), f"{spent / count:.1f}")
        for what, (spent, count) in passes.items()
    ]
    spent_us, kernels = map(sum, zip(*passes.values(), strict=True))
    whole_us = spent_us + kernels * launch.cost_us["pointwise"]
    rows.append(("both", f"{times.forward_us + times.backward_us:,.0f}", "", f"{each:.1f}"))
    return [
        Table(
            title=f"Host time of a checkpointed layer in eager PyTorch, on {cpu_name()}",
            columns=("pass", ">us a layer", ">kernels", ">us a kernel"),
            rows=rows,
            notes=[
                "Tensors have a few elements, so this is Python, PyTorch's dispatcher and "
                "autograd. A GPU's driver comes on top of it: the profile's "
                f"{launch.cost_us['pointwise']:g} us a kernel, so "
                f"{whole_us * 1e-3:.1f} ms a layer in all."
            ],
        )
    ]
