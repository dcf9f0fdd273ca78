"""The section on the pipeline: one row a stage, one box a pass, the baseline above the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from domino_tune.report.data import Pass, PipelinePicture, ReportData
from domino_tune.report.markup import Html, section, tag
from domino_tune.report.names import ms_text

WIDTH: Final = 1000
LEFT: Final = 30
ROW: Final = 24
LABELLED: Final = 15
"""Least width of a box that the number of its micro-batch fits in."""
NAMES: Final = {
    "F": "forward",
    "B": "backward",
    "I": "gradients of activations",
    "W": "gradients of weights",
}


def pipeline_picture(data: ReportData) -> Html:
    """Return the section of the page, or nothing without a pipeline."""
    if not data.pipelines:
        return Html("")
    longest = max(picture.end_ms for picture in data.pipelines)
    kinds = {one.kind for stage in data.pipelines[0].stages for one in stage}
    legend = tag(
        "p",
        *(tag("span", NAMES[kind], class_=f"key pass-{kind}") for kind in NAMES if kind in kinds),
        class_="pass-keys",
    )
    drawn = [
        tag(
            "figure",
            tag("figcaption", f"{picture.title}: {ms_text(picture.end_ms)} ms"),
            _svg(picture, longest),
        )
        for picture in data.pipelines
    ]
    return section(
        "pipeline", "The pipeline", legend, *drawn,
        lead="One row a stage. A box is a pass of one micro-batch, whose number it bears; lighter "
        "boxes are of later virtual stages. Where nothing is drawn, the stage waits.",
    )  # fmt: skip


def _svg(picture: PipelinePicture, longest_ms: float) -> Html:
    height = ROW * len(picture.stages)
    rows = [
        part
        for number, stage in enumerate(picture.stages)
        for part in _stage(number, stage, (WIDTH - LEFT) / longest_ms)
    ]
    return tag(
        "svg", *rows, viewBox=f"0 0 {WIDTH} {height}", class_="pipeline", role="img",
        aria_label=f"{picture.title}: {ms_text(picture.end_ms)} ms",
    )  # fmt: skip


def _stage(number: int, stage: Sequence[Pass], scale: float) -> Iterator[Html]:
    y = number * ROW
    yield tag("text", str(number), x=LEFT - 8, y=y + 16, class_="stage", text_anchor="end")
    most = max(one.chunk for one in stage)
    for one in stage:
        x, width = LEFT + one.start_ms * scale, (one.end_ms - one.start_ms) * scale
        about = (
            f"{NAMES[one.kind]} of micro-batch {one.micro}"
            + (f", virtual stage {one.chunk}" if most else "")
            + f": {ms_text(one.end_ms - one.start_ms)} ms"
        )
        box = tag(
            "rect", x=f"{x:.2f}", y=y + 2, width=f"{max(0.3, width - 0.4):.2f}", height=ROW - 4,
            class_=f"pass-{one.kind}", opacity=f"{1 - 0.45 * one.chunk / max(1, most):.2f}",
        )  # fmt: skip
        label = (
            tag("text", str(one.micro), x=f"{x + width / 2:.2f}", y=y + 16, text_anchor="middle",
                class_="micro")
            if width > LABELLED
            else ""
        )  # fmt: skip
        yield tag("g", tag("title", about), box, label)
