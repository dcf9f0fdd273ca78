"""Triton's kernels without a GPU: interpreted they equal the formulas, and a Hopper takes them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.real.domino_tune.runtime.ops import interpreted

triton = pytest.importorskip("triton", reason="no Triton: pip install 'domino_tune[kernels]'")
TOLERANCE = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 0.01, "float16": 0.002}
"""The formulas round after each operator, the kernels once."""
HOPPER = ("cuda", 90, 32)


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    pytest.importorskip(
        "triton", minversion="3.9", reason="the interpreter of older Tritons fails with NumPy 2.4"
    )
    with interpreted.interpreting() as pool:
        yield pool


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_they_compute_what_the_formulas_do(dtype: str, process: ProcessPoolExecutor) -> None:
    found = process.submit(interpreted.differences, dtype).result()
    assert len(found) == 23
    misses = {name: error for name, error in found.items() if not error <= TOLERANCE[dtype]}
    assert not misses


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_a_step_gives_the_same_parameters(model: str, process: ProcessPoolExecutor) -> None:
    assert process.submit(interpreted.step_difference, model).result() < 1e-10


def test_masks_do_not_depend_on_the_cut(process: ProcessPoolExecutor) -> None:
    assert process.submit(interpreted.masks_cut_anyhow).result()


def _arguments(kernel: object, **given: object) -> tuple[dict[str, str], dict[str, object]]:
    """Types by name and constants: pointers to bf16 where nothing else is given."""
    names = kernel.arg_names  # type: ignore[attr-defined]
    types = {name: given.get(name, "*bf16") for name in names}
    constants = {name: value for name, value in types.items() if not isinstance(value, str)}
    return {n: "constexpr" if n in constants else str(t) for n, t in types.items()}, constants


def test_a_hopper_takes_them() -> None:
    """Compiled for sm_90, without one: what the interpreter forgives, the compiler may not."""
    from triton import language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from domino_tune.runtime.lanes import kernels
    from domino_tune.runtime.lanes import kernels as ours

    wide = {"WIDE": tl.float32}
    size, row = "i32", {**wide, "width": "i32", "BLOCK": 8192}
    block = {**wide, "width": size, "BLOCK": ours.BLOCK}
    cases = [
        (ours.rms_norm_kernel, {**row, "EPS": 1e-5, "rstd": "*fp32"}),
        (
            ours.rms_norm_grad_kernel,
            {**row, "rows": size, "rstd": "*fp32", "sums": "*fp32", "HAS_RESIDUAL": True},
        ),
        (
            ours.dropout_add_kernel,
            {**block, "mask_stride": size, "residual_stride": size, "result_stride": size,
             "mask": "*u8", "HAS_BIAS": True, "HAS_MASK": True, "KEEP": 0.9},
        ),
        (
            ours.rotate_kernel,
            {**wide, "BLOCK": ours.BLOCK, "stride": size, "seq": size, "half": size,
             "pairs": size, "SIGN": -1.0},
        ),
        (ours.swiglu_kernel, block),
        (ours.swiglu_grad_kernel, block),
        (
            kernels.mask_kernel,
            {"mask": "*u8", "step": "*fp32", "first": size, "key": size, "threshold": size,
             "elements": size, "quarter": size, "BLOCK": kernels.BLOCK},
        ),
        *(
            (kernels.carry_kernel,
             {"left": "*fp32", "right": "*fp32", "total": "*fp32", "stamps": stamps, "first": size,
              "count": size, "chunk_ns": size, "blocks": size, "BLOCK": 4096})
            for stamps in ("*i64", None)
        ),
        (kernels.stamp_kernel, {"stamp": "*i64"}),
    ]  # fmt: skip
    for kernel, given in cases:
        types, constants = _arguments(kernel, **given)
        compiled = triton.compile(
            ASTSource(kernel, types, constants), target=GPUTarget(*HOPPER),
            options={"enable_fp_fusion": True},
        )  # fmt: skip
        assert compiled.asm["cubin"], kernel.__name__


def test_a_wide_norms_gradient_stays_in_registers(tmp_path: Path) -> None:
    """At hidden sizes from 12,288: GPT-3 175B, Llama-3 405B."""
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from domino_tune.runtime.lanes import kernels as ours

    row = ours._row_block(16384)
    types, constants = _arguments(
        ours.rms_norm_grad_kernel, WIDE=tl.float32, width="i32", rows="i32", rstd="*fp32",
        sums="*fp32", HAS_RESIDUAL=True, BLOCK=row["BLOCK"],
    )  # fmt: skip
    compiled = triton.compile(
        ASTSource(ours.rms_norm_grad_kernel, types, constants), target=GPUTarget(*HOPPER),
        options={"enable_fp_fusion": True, "num_warps": row["num_warps"]},
    )  # fmt: skip
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    told = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True)
    (stack,) = re.findall(r"STACK:(\d+)", told.stdout)
    assert int(stack) <= 16, told.stdout
