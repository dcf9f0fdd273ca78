"""The page of a sweep over numbers of GPUs."""

from __future__ import annotations

from domino_tune.report.page import scale_html
from domino_tune.results.layouts import ScalePoint, ScaleResult
from domino_tune.store.plans import ProfileRef
from simulator.plan import MEGATRON
from simulator.presets import MODELS
from tests.support.pages import layout
from tests.unit.domino_tune.report.test_html import Reader, read

NONE = ScalePoint(gpus=8, error="No <b>layout</b> fits.")
WITHOUT = layout(980.0, MEGATRON)


def point(gpus: int, rate: float, gain: float = 1.02) -> ScalePoint:
    return ScalePoint(
        gpus=gpus,
        layout=layout(rate, domino_gain=gain),
        tokens_per_second=rate * gpus,
        scaling_efficiency=rate / 1000.0,
        best_without_domino=WITHOUT,
        optimality="proven",
        warnings=("A <warning>.",),
    )


def written(*points: ScalePoint) -> Reader:
    """The page of the points, read."""
    result = ScaleResult(
        points=points,
        model=MODELS["gpt3-1.3b"],
        profile=ProfileRef(name="<h100>", content_id="sha256:0"),
        seq_length=2048,
        global_batch_size=512,
        seconds=1.0,
    )
    return read(scale_html(result, [("Ask <again>", "python -m domino_tune")]))


def test_the_page_has_plots_and_a_row_a_number() -> None:
    page = written(NONE, point(16, 1000.0), point(1024, 850.0, 1.034))
    assert page.ids == ["answer", "scale", "numbers", "asked", "again"]
    assert (page.links, page.scripts) == ([], 1)
    assert "On 1,024 GPUs, each has 85 % of its speed on 16" in page.text
    assert "Domino adds at most 3.4 %, on 1,024 GPUs" in page.text
    assert "512 sequences of 2,048 tokens" in page.text
    assert "What Domino adds to the best layout, by GPUs" in page.text
    assert "No <b>layout</b> fits." in page.text
    assert "16, 1,024 GPUs: A <warning>." in page.text
    assert "870,400" in page.text


def test_one_layout_without_a_gain() -> None:
    page = written(NONE, point(16, 1000.0, 1.0))
    assert "Only 16 GPUs have a layout, and each trains 1,000 tokens a second" in page.text
    assert "At none of them does Domino add" in page.text
    assert "What Domino adds" not in page.text
