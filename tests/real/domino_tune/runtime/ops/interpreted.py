"""Triton's kernels interpreted on the CPU, beside the formulas.

In a process of its own: whether Triton interprets is decided where it is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from unittest.mock import patch

import torch

from domino_tune.runtime.ops import pointwise_formulas
from domino_tune.runtime.ops.pointwise import PointwiseFunctions
from lab.gpu.ops import single_gpu_session
from simulator.plan import SlicePlan
from tests.real.domino_tune.runtime.jobs import GPT, LLAMA, Job, batch

Tensor = torch.Tensor
TOKENS, WIDTH = 13, 1100
"""More columns than an elementwise program takes."""
PLAN = SlicePlan(
    row_slices=2, attn_col_slices=2, mlp_col_slices=2, order="intra", wgrad="eager",
)  # fmt: skip


def interpreting() -> ProcessPoolExecutor:
    """A process in which kernels are interpreted."""
    return ProcessPoolExecutor(1, get_context("spawn"), initializer=_interpret)


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"


def kernels() -> PointwiseFunctions:
    """The Triton functions."""
    from domino_tune.runtime.lanes import kernels as pointwise_kernels

    return pointwise_kernels


def differences(dtype: str) -> dict[str, float]:
    """Largest difference of each function's results, relative to the largest result."""
    torch.manual_seed(0)
    inputs = _Inputs(getattr(torch, dtype))
    ours, theirs = (_results(functions, inputs) for functions in (kernels(), pointwise_formulas))
    return {name: _difference(ours[name], theirs[name]) for name in theirs}


class _Inputs:
    def __init__(self, dtype: torch.dtype) -> None:
        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=dtype)

        self.x, self.dy, self.residual = (drawn(TOKENS, WIDTH) for _ in range(3))
        self.weight, self.bias = drawn(WIDTH), drawn(WIDTH)
        self.whole = drawn(TOKENS, 2 * WIDTH)
        self.turned = drawn(WIDTH, TOKENS).t()
        self.mask = torch.rand(TOKENS, 2 * WIDTH) > 0.1
        self.packed = drawn(3 * 15, 5 * 8)
        self.cosine, self.sine = drawn(15, 1, 4), drawn(15, 1, 4)
        self.a = drawn(TOKENS, 2 * WIDTH)


def _results(functions: PointwiseFunctions, given: _Inputs) -> dict[str, Tensor]:
    """Everything there is to call, in every way."""
    y, rstd = functions.rms_norm(given.x, given.weight, 1e-5)
    found = {
        "norm": y,
        "rstd": rstd,
        "swiglu": torch.empty_like(given.x),
        "swiglu_grad": torch.empty_like(given.a),
        "dropout_grad": functions.dropout_grad(given.x, given.mask[:, :WIDTH], 0.9),
    }
    functions.swiglu(given.a, found["swiglu"])
    functions.swiglu_grad(given.dy, given.a, found["swiglu_grad"])
    room = torch.empty(2 * TOKENS, WIDTH, dtype=given.x.dtype)[TOKENS:]
    assert functions.rms_norm(given.x, given.weight, 1e-5, room)[0] is room
    assert torch.equal(room, y)
    for name, residual in (("", None), (" + residual", given.residual)):
        backward = given.dy, given.x, given.weight, rstd, residual
        dx, dweight = functions.rms_norm_grad(*backward)
        assert functions.rms_norm_grad(*backward, room)[0] is room
        assert torch.equal(room, dx)
        found |= {f"dx{name}": dx, f"dweight{name}": dweight}
    for sign in (1.0, -1.0):
        found[f"rotated {sign}"] = given.packed.clone()
        functions.rotate(found[f"rotated {sign}"], 3, given.cosine, given.sine, sign)
    for bias in (None, given.bias):
        for mask in (None, given.mask):
            result = torch.zeros_like(given.whole)
            for columns in (slice(0, WIDTH), slice(WIDTH, 2 * WIDTH)):
                functions.dropout_add(
                    given.x, bias, None if mask is None else mask[:, columns], 0.9,
                    given.whole[:, columns], result[:, columns],
                )  # fmt: skip
            found[f"out {bias is not None} {mask is not None}"] = result
            # A residual of a wider tensor, and one that is transposed: any stride is right.
            for place, residual in (("wide", given.whole[:, :WIDTH]), ("turned", given.turned)):
                alone = torch.zeros_like(given.x)
                functions.dropout_add(
                    given.x, bias, None if mask is None else mask[:, :WIDTH], 0.9, residual, alone
                )
                found[f"{place} {bias is not None} {mask is not None}"] = alone
    return found


def _difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    return float((ours - theirs).double().abs().max() / theirs.double().abs().max())


def step_difference(model: str) -> float:
    """Largest relative difference of a sliced fp64 step's loss, gradient norm and parameters."""
    job = Job(name="", model={"gpt": GPT, "llama": LLAMA}[model], sequences=3, plan=PLAN)
    ours, theirs = _step(job, kernels), _step(job, lambda: pointwise_formulas)
    assert len(ours) == len(theirs) > 10
    return max(map(_difference, ours, theirs))


def _step(job: Job, functions: Callable[[], PointwiseFunctions]) -> list[Tensor]:
    model = replace(job.model, hidden_dropout=0.1)
    with patch("domino_tune.runtime.ops.pointwise_for", lambda device: functions()):
        session = single_gpu_session(model, job.workload, job.cluster, torch.device("cpu"))
        session.training = job.training
        executor = session.executor(job.plan, None)
        result = executor.run_step(*batch(job, 0))
    named = session.parameters.weights
    return [
        torch.tensor([result.loss, result.grad_norm], dtype=torch.float64),
        *(named[name] for name in sorted(named)),
    ]


def masks_cut_anyhow() -> bool:
    """Whether the mask kernel draws the same rows however a batch is cut."""
    from domino_tune.runtime.lanes.kernels import drawn_mask

    def drawn(first: int, last: int) -> Tensor:
        return drawn_mask(
            range(first, last), (9, 7), 0.3, key=5, step=3, device=torch.device("cpu")
        )  # fmt: skip

    whole, cut = drawn(0, 4), torch.cat([drawn(0, 1), drawn(1, 4)])
    kept = float(drawn(0, 40).double().mean())
    return torch.equal(whole, cut) and abs(kept - 0.7) < 0.05
