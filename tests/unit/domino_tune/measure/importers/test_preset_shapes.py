"""Shapes of presets: a table that no preset looks up is imported with a warning."""

from __future__ import annotations

import pytest

from domino_tune.measure.importers import read_table
from domino_tune.measure.importers.preset_shapes import preset_shapes
from simulator.presets import MODELS

ATTENTION = "src,batch_size,isl,num_heads,head_dim,us\n"


def warnings(importer: str, text: str) -> tuple[str, ...]:
    return read_table(text.encode(), importer).warnings


@pytest.mark.parametrize(
    "line",
    [
        "4096,12288,4096,500",  # qkv of llama2-7b at tp 1
        "77,5120,1728,9",  # fc2 of llama2-13b at tp 8
        "4096,2048,11008,400",  # half the columns of llama2-7b's fc2
    ],
)
def test_gemms_of_presets(line: str) -> None:
    assert warnings("gemm-csv", f"m,n,k,us\n{line}\n") == ()
    assert warnings("gemm-csv", f"m,n,k,us\n{line}\n5,6,7,8\n") == ()


def test_gemms_of_no_preset() -> None:
    (warning,) = warnings("gemm-csv", "m,n,k,us\n5,6,7,8\n50,6,7,9\n5,7,6,8\n")
    assert warning.startswith("None of the 2 imported GEMM shapes (n, k) occurs in any preset at ")
    assert "tp 1…8" in warning
    assert "interpolate" in warning


def test_attention() -> None:
    assert warnings("attention-csv", f"{ATTENTION}sglang-0.5.9,2,1024,32,128,50\n") == ()
    (warning,) = warnings("attention-csv", f"{ATTENTION}sglang-0.5.9,2,1024,7,96,50\n")
    assert "None of the 1 imported attention shapes" in warning


def test_every_preset_has_its_shapes() -> None:
    shapes = preset_shapes()
    for model in MODELS.values():
        if model.q_lora_rank:
            queries = model.num_attention_heads * model.head_dim, model.q_lora_rank
        else:
            queries = model.qkv_size, model.hidden_size
        assert ("forward", *queries) in shapes
        heads = (model.num_attention_heads, model.num_key_value_heads)
        assert ("forward", *heads, model.head_dim, True) in shapes
