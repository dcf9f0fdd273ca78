"""What to say of measured steps whose launches are predicted as free, as under CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence

from domino_tune.runtime.measured import Measured


def graph_notes(measured: Sequence[Measured]) -> list[str]:
    """How steps were launched, where launches are predicted as free: what was no CUDA graph was
    launched op by op, and what was has no ops that can be timed."""
    reasons = [one for one in measured if one.why_not_captured]
    if not reasons and not any(one.captured for one in measured):
        return ["Launches are predicted as free, under CUDA graphs; here each op is launched."]
    found = [
        f"{one.label} could not be captured as a CUDA graph ({one.why_not_captured}): each of its "
        "ops is launched, which is predicted as free."
        for one in reasons
    ]
    if any(one.captured for one in measured):
        found.append(
            "Iterations are measured as whole CUDA graphs; times of ops, communication and "
            "timelines are of further steps without a graph."
        )
    return found
