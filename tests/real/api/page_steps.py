"""What a visitor of the page does, and what a cluster would report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx

from tests.real.domino_tune.serving import Served
from tests.support.asked import ended
from tests.support.processes import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Page

SMALL = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "tp": 4, "seq_length": 1024, "micro_batch_size": 4,
}  # fmt: skip
"""A tune of seconds."""
ENDLESS = {**SMALL, "search": "random", "trials": 100_000}
LAYOUTS = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "seq_length": 1024, "gpus": 8,
    "global_batch_size": 16, "tp": 4, "pp": 2,
}  # fmt: skip
"""A search of layouts of seconds, whose best one is a pipeline."""

SCALE = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "seq_length": 1024, "gpus": [4, 8],
    "global_batch_size": 16, "tp": 4,
}  # fmt: skip
"""A search at two numbers of GPUs, of seconds."""


def done(server: Served, kind: str, body: dict[str, Any] | str) -> str:
    """The id of a job that has come to its end. A body that is text is whole JSON already."""
    text = body if isinstance(body, str) else json.dumps({"kind": kind, **body})
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        made = client.post("/v1/jobs", content=text, headers=headers).raise_for_status()
        job = ended(client, made.json()["links"]["self"])
    assert job["state"] == "done", job["error"]
    return str(job["id"])


QUESTIONS = {
    int: "GPUs and a global batch", list: "Several numbers of GPUs", type(None): "A fixed layout",
}  # fmt: skip
"""Type of `gpus` of each question -> how the form calls the question."""


def fill(page: Page, values: dict[str, Any]) -> None:
    """Fill the form's fields by their names; the fields say which question is asked."""
    page.locator("form.ask").wait_for()
    page.get_by_role("radio", name=QUESTIONS[type(values.get("gpus"))]).check()
    page.locator("#field-gpus" if "gpus" in values else "#field-micro_batch_size").wait_for()
    first = page.locator("fieldset .field [name]").evaluate_all("all => all.map(one => one.name)")
    if not set(values) <= set(first):
        page.get_by_text("More options").click()
    for name, value in values.items():
        field = page.locator(f"#field-{name}")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(str(value))
        else:
            field.fill(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def picture(page: Page, index: int) -> str:
    """What a canvas of the timeline shows, as text that changes with it."""
    canvas = page.locator("#lanes canvas").nth(index)
    return str(canvas.evaluate("canvas => canvas.toDataURL()"))


def drag(page: Page, name: str) -> None:
    """Drag the slider ``name`` from its middle to the left, in steps as a hand does."""
    slider = page.get_by_label(name)
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box
    y, x = box["y"] + box["height"] / 2, box["x"] + box["width"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - box["width"] / 3, y, steps=20)
    page.mouse.up()


def measurement(server: Served, tuned: str) -> dict[str, Any]:
    """What `validate` would say had the tune's plan and the baseline taken twice their time."""
    job = httpx.get(f"{server.url}/v1/jobs/{tuned}", timeout=PATIENCE_S).json()
    return measured(job["result"]["best"])


def measured(found: dict[str, Any]) -> dict[str, Any]:
    """The same for a plan whose simulation is given."""
    megatron = {
        **found["plan"], "label": "megatron", "strategy": "megatron", "row_slices": 1,
        "attn_col_slices": 1, "mlp_col_slices": 1, "attn_dgrad_slices": 1, "mlp_dgrad_slices": 1,
        "merge_wgrad": False,
    }  # fmt: skip
    plans = [
        _measured("baseline", megatron, found["baseline_ms"]),
        _measured("plan.json", found["plan"], found["iteration_ms"]),
    ]
    same = {name: found[name] for name in ("profile", "model", "workload", "cluster")}
    return {
        "plans": plans, "max_error": None, "present_speed": None, "machine_differences": [],
        "warnings": [], "rounds": 10, "interrupted": False,
        "emulated_collectives": False, "backend": "nccl", "emulate_link_bits_per_s": None, **same,
    }  # fmt: skip


def _measured(name: str, plan: dict[str, Any], predicted_ms: float) -> dict[str, Any]:
    def iteration(ms: float) -> dict[str, Any]:
        return {
            "iteration_ms": ms, "speedup": None, "comm_ms": None, "exposed_comm_ms": None,
            "hidden_comm_fraction": None, "peak_memory_gib": None,
        }  # fmt: skip

    twice = 2 * predicted_ms
    return {
        "name": name, "plan": plan, "predicted": iteration(predicted_ms),
        "measured": iteration(twice), "error": -0.5, "error_at_present_speed": None,
        "interval_ms": {"low": 0.98 * twice, "high": 1.03 * twice}, "spread_ms": 1.0, "loss": 10.0,
        "failed": "", "makespans_ms": [twice, twice], "captured": False, "why_not_captured": "",
        "roles": [
            {"role": "attn.qkv", "count": 8, "predicted_ms": 1.0, "measured_ms": 2, "ratio": 2.0}
        ],
    }  # fmt: skip
