"""One layer of a timeline as text: for terminals and documents."""

from __future__ import annotations

from typing import Final

from simulator.errors import InputError
from simulator.schedule import COMPUTE, TP, Timeline

FIRST: Final = "attn.norm"
"""Role of the op that a layer begins with."""
LANES: Final = {"compute": COMPUTE, "network": TP}
WAITING: Final = "·"


def drawn_layer(timeline: Timeline, columns: int) -> str:
    """Return the middle layer's forward pass over time: a line for what computes and one for the
    sums and gathers of tensor parallelism, a digit of base 16 for each slice; then its
    milliseconds. Raise InputError where no layer follows another."""
    begin_ns, end_ns = _layer(timeline)
    lines = []
    for name, lane in LANES.items():
        line = [WAITING] * columns
        for op, *span in timeline.lane(lane):
            first, last = (round((at - begin_ns) / (end_ns - begin_ns) * columns) for at in span)
            for at in range(max(first, 0), min(last, columns)):
                line[at] = f"{op.slice:x}"
        lines.append(f"{name} {''.join(line)}")
    return "\n".join([*lines, f"{(end_ns - begin_ns) / 1e6:.2f} ms"])


def _layer(timeline: Timeline) -> tuple[int, int]:
    """Return when the first slice comes to the middle layer, and when to the layer after it."""
    begins: dict[int, int] = {}
    for op, start_ns, _ in timeline.lane(COMPUTE):
        if op.role == FIRST and op.slice == 0:
            begins.setdefault(op.layer, start_ns)
    layers = sorted(begins)
    if len(layers) < 2:
        raise InputError("A layer is drawn up to the next one; simulate two layers or more.")
    middle = (len(layers) - 1) // 2
    return begins[layers[middle]], begins[layers[middle + 1]]
