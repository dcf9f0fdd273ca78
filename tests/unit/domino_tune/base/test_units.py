from __future__ import annotations

import pytest

from domino_tune.base.units import Dimension, QuantityError, parse_quantity

ALL: tuple[Dimension, ...] = ("factor", "number", "bytes", "bytes/s", "s", "flop/s")


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("2x", 2, "factor"), ("1.5×", 1.5, "factor"), ("50%", 0.5, "factor"), ("16", 16, "number"),
        ("1gbit", 1.25e8, "bytes/s"), ("400Gb/s", 5e10, "bytes/s"), ("400Gbps", 5e10, "bytes/s"),
        ("400GB/s", 4e11, "bytes/s"), ("1 GiB/s", 2**30, "bytes/s"), ("5us", 5e-6, "s"),
        ("5 µs", 5e-6, "s"), ("1e3ns", 1e-6, "s"), ("80GiB", 80 * 2**30, "bytes"),
        (".5kB", 500, "bytes"), ("900TFLOPS", 9e14, "flop/s"), ("1PFLOP/s", 1e15, "flop/s"),
    ],
)  # fmt: skip
def test_values_and_units(text: str, value: float, dimension: Dimension) -> None:
    found = parse_quantity("it", text, ALL)
    assert found.value == pytest.approx(value)
    assert found.dimension == dimension


@pytest.mark.parametrize(
    "text", ["", "x", "-2x", "nan", "inf", "1e999x", "2 apples", "1gbit2", "1..5x", "0x10", "2xx"]
)
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(QuantityError, match=r"^it (cannot|must).*2x, 5us"):
        parse_quantity("it", text, ("factor", "s"))


def test_another_dimension_is_refused() -> None:
    with pytest.raises(QuantityError, match="5us"):
        parse_quantity("link_latency", "5GB/s", ("factor", "s"))
