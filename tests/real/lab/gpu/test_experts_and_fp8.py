"""Stages ``fp8`` and ``grouped`` on a CPU, small: kernels are right, and every way has a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", reason="no Triton: pip install 'domino_tune[kernels]'")

import torch

from lab import sizes_of
from lab.gpu.fp8 import LAYOUTS, fp8_cases
from lab.gpu.grouped import Experts, grouped_cases, shares
from lab.gpu.stage import Stage
from tests.real.domino_tune.runtime.ops.interpreted import interpreting

CPU = torch.device("cpu")
FEW = Experts("few", 64, 32, 4, 2)


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """A process in which kernels are interpreted: whether they are is decided at the import."""
    pytest.importorskip(
        "triton", minversion="3.9", reason="the interpreter of older Tritons fails with NumPy 2.4"
    )
    with interpreting() as pool:
        yield pool


def _rows(stage: str, folder: Path) -> list[dict[str, object]]:
    mine = Stage(folder, stage, 4.0, "mine", CPU)
    if stage == "fp8":
        mine.run(fp8_cases(mine, ((256, 384, 512),), ((256, 384),)))
    else:
        mine.run(grouped_cases(mine, (FEW,), (32,), 64))
    return mine.rows()


def test_every_way_has_a_time(process: ProcessPoolExecutor, tmp_path: Path) -> None:
    casts, gemms = process.submit(_rows, "fp8", tmp_path).result()
    assert len(casts["casts"]) == 9  # type: ignore[arg-type]
    # A CPU has no blocks of scales.
    assert set(gemms["failed"]) == {f"blockwise {layout}" for layout in LAYOUTS}  # type: ignore[call-overload]
    assert len(gemms["ns"]) == 9  # type: ignore[arg-type]
    grouped, quantized, permutation = process.submit(_rows, "grouped", tmp_path).result()
    assert [len(cell["ns"]) for cell in grouped["cells"]] == [5, 3, 5, 3]  # type: ignore[attr-defined]
    assert not any(cell["failed"] for cell in grouped["cells"])  # type: ignore[attr-defined]
    for cell in quantized["quantized"]:  # type: ignore[attr-defined]
        assert len(cell["ns"]) + len(cell["failed"]) == 4
    assert len(permutation["ways"]) == 6  # type: ignore[arg-type]


def _casts_differ() -> float:
    from lab.gpu.kernels import Casts

    torch.manual_seed(0)
    x = torch.randn(200, 300, dtype=torch.bfloat16)
    one = Casts(x)
    one.per_tensor(turn=True)
    whole = one.out.float() / one.scale
    one.by_block(turn=True)
    blocks = one.scales.repeat_interleave(128, 0)[:300].t()
    turned = one.turned_scales.repeat_interleave(128, 0)[:200].t()
    by_row, by_column = one.out.float() * blocks, (one.turned.float() * turned).t()
    errors = torch.cat([(got - x.float()).abs().flatten() for got in (whole, by_row, by_column)])
    return float(errors.quantile(0.95))


def test_casts_are_near_and_turned(process: ProcessPoolExecutor) -> None:
    # e4m3 has 3 bits, and the interpreter loses a carry in some numbers.
    assert process.submit(_casts_differ).result() < 0.1


def _there_and_back() -> float:
    from lab.gpu.kernels import permuted, unpermuted

    torch.manual_seed(0)
    tokens, top, hidden = 20, 2, 1100
    x = torch.randn(tokens, hidden, dtype=torch.bfloat16)
    order = torch.randperm(tokens * top)
    many, few = torch.empty(tokens * top, hidden, dtype=torch.bfloat16), torch.empty_like(x)
    permuted(x, order // top, many)
    place = torch.argsort(order).view(tokens, top)
    unpermuted(many, place, torch.full((tokens, top), 0.5), few)
    return float((few - x).float().abs().max())


def test_tokens_come_back(process: ProcessPoolExecutor) -> None:
    assert process.submit(_there_and_back).result() == 0


def test_a_hopper_takes_the_kernels() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lab.gpu import kernels

    plane = {"x": "*bf16", "out": "*fp8e4nv", "turned": "*fp8e4nv", "rows": "i32", "columns": "i32",
             "TURN": True, "TILE": kernels.TILE}  # fmt: skip
    rows = {"out": "*bf16", "width": "i32", "BLOCK": 1024}
    cases = [
        (kernels.cast_kernel, {**plane, "scale": "*fp32"}),
        (kernels.block_cast_kernel, {**plane, "scales": "*fp32", "turned_scales": "*fp32"}),
        (kernels.permute_kernel, {**rows, "x": "*bf16", "source": "*i64"}),
        (kernels.unpermute_kernel,
         {**rows, "y": "*bf16", "place": "*i64", "weight": "*fp32", "TOP": 8}),
    ]  # fmt: skip
    for kernel, given in cases:
        constants = {name: value for name, value in given.items() if not isinstance(value, str)}
        types = {
            name: "constexpr" if name in constants else given[name] for name in kernel.arg_names
        }
        compiled = triton.compile(
            ASTSource(kernel, types, constants),
            target=GPUTarget("cuda", 90, 32),
            options={"enable_fp_fusion": True},
        )
        assert compiled.asm["cubin"], kernel.__name__


def test_a_linears_gemms_have_the_same_flops() -> None:
    assert {sizes_of(layout, (2, 3, 5)) for layout in LAYOUTS} == {(2, 3, 5), (2, 5, 3), (3, 5, 2)}


def test_rows_are_shared_out() -> None:
    assert shares(512, 4, even=True) == [128] * 4
    uneven = shares(1000, 4, even=False)
    assert sum(uneven) == 1000
    assert uneven == sorted(uneven)
