"""Price: what GPUs cost an hour, and what training then costs."""

from __future__ import annotations

from typing import NamedTuple

HOUR_S = 3600.0
TRILLION = 1e12
DAY_S = 24 * HOUR_S


class Price(NamedTuple):
    """``gpu_hour``: of one GPU, in any currency. ``run_tokens``: of the run that is asked for, or
    0."""

    gpu_hour: float
    run_tokens: float = 0.0


class Cost(NamedTuple):
    """In the currency of ``gpu_hour``: of a step, of 1e12 tokens, and of the run, which takes
    ``run_days``; these are None where no run was asked for. Without failures, restarts and
    evaluations."""

    gpu_hour: float
    step: float
    trillion_tokens: float
    run_tokens: float | None
    run: float | None
    run_days: float | None


def cost_of(price: Price | None, step_s: float, gpus: int, tokens: int) -> Cost | None:
    """Return what steps of ``step_s`` with ``tokens`` each cost on ``gpus``; None without a
    price."""
    if price is None:
        return None
    step = price.gpu_hour * gpus * step_s / HOUR_S
    if not price.run_tokens:
        return Cost(price.gpu_hour, step, TRILLION / tokens * step, None, None, None)
    steps = price.run_tokens / tokens
    return Cost(
        price.gpu_hour, step, TRILLION / tokens * step, price.run_tokens, steps * step,
        steps * step_s / DAY_S,
    )  # fmt: skip
