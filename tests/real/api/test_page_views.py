"""What the page shows of layouts, of the history and of the library, on all screens."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from domino_tune.store.profiles import dump_profile, load_profile
from tests.real.api.browser import Watched, axe_findings, watched
from tests.real.api.page_steps import LAYOUTS, SCALE, SMALL, done, fill
from tests.real.domino_tune.serving import Served, when_free
from tests.support.processes import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 2048,
}  # fmt: skip


def test_gpus_and_a_global_batch_are_answered_with_layouts(seen: Watched) -> None:
    page = seen.open()
    fill(page, LAYOUTS)
    page.locator("#sums").get_by_text("8 GPUs, 16 sequences, 16,384 tokens").wait_for()
    page.get_by_role("button", name="Find layouts").click()
    page.locator("#answer h1").get_by_text("The best layout is tp 4, pp 2").wait_for()
    assert "fastest" in page.locator("#answer .verdict").inner_text()
    figures = page.locator("#answer .figures").inner_text()
    for name in ("Tokens/s/GPU", "MFU", "Clock", "Peak memory", "usable; fits: "):
        assert name in figures
    assert page.locator("#layouts svg.ranking rect").count() > 1
    assert page.locator("#layouts svg.frontier circle").count() >= 1
    assert page.locator("#pipeline svg").count() == 2
    assert page.locator("#verdict .contest .range").count() > 1
    for place in ("time", "memory", "confidence"):
        assert page.locator(f"#{place} h2").is_visible()
    assert page.locator("#confidence .tornado .change").count() > 1
    assert page.locator("#confidence .sources tbody tr").count() > 3
    assert page.locator("[style*='width']").count() > 20, "the report's bars have their lengths"
    page.get_by_role("link", name="change and ask again").click()
    page.locator("#field-gpus").wait_for()
    assert page.locator("#field-gpus").input_value() == "8"
    assert page.locator("#field-pp").is_visible(), "what was given is shown"
    seen.check()


def test_several_numbers_of_gpus_are_compared(seen: Watched) -> None:
    page = seen.open()
    fill(page, {**SCALE, "gpus": [4, "many"]})
    page.get_by_role("button", name="Compare numbers").click()
    page.locator("#field-gpus-error", has_text="many").wait_for()
    page.locator("#field-gpus").fill("4, 8")
    page.locator("#sums").get_by_text("4, 8 GPUs, 16 sequences").wait_for()
    page.get_by_role("button", name="Compare numbers").click()
    page.locator(".swept", has_text="2 points.").wait_for()
    page.locator(".verdict", has_text="On 8 GPUs, each has").wait_for()
    assert page.locator(".swept tbody th").all_inner_texts() == ["4", "8"]
    assert page.locator(".swept .plot").first.locator("circle").count() == 4
    page.get_by_role("link", name="change and ask again").click()
    page.locator("#field-gpus").wait_for()
    assert page.locator("#field-gpus").input_value() == "4, 8"
    seen.check(422)


def test_a_calibration_says_what_it_learnt(seen: Watched, server: Served, tmp_path: Path) -> None:
    rows = ["label,measured_ms,model,tp,seq_length,micro_batch_size"]
    for tp, micro in ((4, 4), (2, 2)):
        asked = {**SMALL, "tp": tp, "micro_batch_size": micro, "strategy": "megatron"}
        url = f"{server.url}/v1/simulations"
        found = when_free(partial(httpx.post, url, json=asked, timeout=PATIENCE_S)).json()
        rows.append(f"run {tp},{1.08 * found['iteration_ms']},gpt3-1.3b,{tp},1024,{micro}")
    (tmp_path / "runs.csv").write_text("\n".join(rows))
    page = seen.open("#/library")
    page.locator("#calibrate-profile option").nth(1).wait_for(state="attached")
    page.get_by_role("button", name="Calibrate").click()
    page.get_by_text("Choose a table of runs first.").wait_for()
    page.locator("#calibrate-profile").select_option("h100-dgx")
    page.get_by_label("A table of runs").set_input_files(tmp_path / "runs.csv")
    page.get_by_label("Name of the new profile").fill("calibrated-here")
    page.get_by_role("button", name="Calibrate").click()
    page.locator("#answer h1", has_text="On average, a run that it did not see is").wait_for()
    runs = page.locator("#runs .contest:not(.head)")
    assert runs.count() == 2
    assert "run 4" in runs.first.inner_text()
    assert "−7.4 %" in runs.first.inner_text(), "a run 8 % longer than predicted"
    assert page.locator("#learnt .contest .likely").count() > 3
    with page.expect_download() as download:
        page.get_by_role("button", name="Profile", exact=True).click()
    assert load_profile(download.value.path()).name == "calibrated-here"
    page.get_by_role("link", name="Library").click()
    page.get_by_role("button", name="Forget calibrated-here").wait_for()
    seen.check()


def test_what_both_questions_ask_is_kept(seen: Watched) -> None:
    page = seen.open()
    page.locator("form.ask").wait_for()
    page.locator("#field-model").select_option("llama2-7b")
    page.get_by_role("radio", name="A fixed layout").check()
    page.locator("#field-micro_batch_size").wait_for()
    assert page.locator("#field-model").input_value() == "llama2-7b"
    page.locator("#field-seq_length").fill("-5")
    assert page.locator("#sums").inner_text() == ""
    page.get_by_role("button", name="Back to the example").click()
    assert page.locator("#field-seq_length").input_value() == "2048"
    seen.check()


def test_a_slider_goes_back_from_what_does_not_fit(seen: Watched, tuned: str) -> None:
    page = seen.open(f"#/tune/{tuned}/whatif")
    assert page.get_by_label("Sequence length").get_attribute("max") == "3", "2,048 positions"
    slider = page.get_by_label("Micro-batch")
    was = page.locator(".compare td").nth(1).inner_text()
    slider.press("End")
    page.locator("#change-micro_batch_size-error", has_text="256: needs ").wait_for()
    assert page.locator("output[for=change-micro_batch_size]").inner_text() == "4"
    assert page.locator(".compare td").nth(1).inner_text() == was
    assert page.locator(".whatif .total").first.locator(".exposed").count() == 1
    assert page.locator("output[for=change-tp]").inner_text() == "4 ranks"
    seen.check()


def test_what_runs_elsewhere_is_one_click_away(seen: Watched, server: Served) -> None:
    """The short sequences of other tests are fastest as Megatron-LM runs them, and small models
    without graphs as their hosts do."""
    longer = {"seq_length": 2048, "cuda_graph": True}
    tuned, laid_out = (
        done(server, kind, {**asked, **longer})
        for kind, asked in (("tune", SMALL), ("layout", LAYOUTS))
    )
    for kind, one in (("tune", tuned), ("layout", laid_out)):
        result = httpx.get(f"{server.url}/v1/jobs/{one}", timeout=PATIENCE_S).json()["result"]
        there = next(f for f in result["frameworks"] if f["route"] == "simulations")
        page = seen.open(f"#/{kind}/{one}")
        page.get_by_role("button", name=f"Show it for {there['framework']}").click()
        page.locator(".frameworks td", has_text=f"{there['speedup']:.2f}×").wait_for()
    seen.check()


def test_what_does_not_fit_is_changed_in_one_click(seen: Watched) -> None:
    page = seen.open()
    fill(page, {"model": "gpt3-13b", "tp": 2})
    page.locator("#field-tp").press("Enter")
    page.locator("#field-tp-error", has_text="the smallest change that fits: tp = 8").wait_for()
    page.get_by_role("button", name="Use tensor parallel 8").click()
    assert page.locator("#field-tp").input_value() == "8"
    assert page.locator("#field-tp-error").inner_text() == ""
    seen.check(422)


def test_a_plans_name_is_told_in_words(seen: Watched, tuned: str) -> None:
    page = seen.open(f"#/tune/{tuned}/cuts")
    first = page.locator("#cuts .plans tbody th span").first
    assert "row slice" in (first.get_attribute("title") or "")
    page.locator("#cuts summary", has_text="How to read a plan").click()
    page.locator("#cuts .key", has_text="one weight-gradient GEMM").wait_for()
    seen.check()


def test_the_history_is_searched_labelled_and_emptied(seen: Watched, server: Served) -> None:
    ids = [done(server, "tune", {**SMALL, "seq_length": 512 * n, "trials": 2}) for n in (1, 2)]
    page = seen.open("#/history")
    lines = page.locator(".job")
    first = page.locator(f".job[data-id={ids[0]}]")
    first.locator("input.label").fill("night run")
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        first.locator("input.label").press("Enter")
    page.reload()
    first.wait_for()
    assert first.locator("input.label").input_value() == "night run"
    page.get_by_label("Search").fill("NIGHT run")
    lines.nth(1).wait_for(state="detached")
    assert lines.first.get_attribute("data-id") == ids[0]
    page.get_by_label("State").select_option("failed")
    page.get_by_text("Nothing matches.").wait_for()
    page.get_by_label("State").select_option("done")
    first.get_by_role("button", name="Delete").dblclick()
    first.get_by_role("button", name="Delete for good?").wait_for()
    page.get_by_label("Search").focus()  # thinks better of it
    assert first.get_by_role("button", name="for good").count() == 0
    first.get_by_role("button", name="Delete").click()
    first.get_by_role("button", name="Delete for good?").click()
    first.wait_for(state="detached")
    assert httpx.get(f"{server.url}/v1/jobs/{ids[0]}", timeout=PATIENCE_S).status_code == 404
    assert page.evaluate("localStorage.length") == 0, "the server keeps labels"
    page.get_by_label("State").select_option("")
    page.get_by_label("Search").fill("")
    page.locator(f".job[data-id={ids[1]}]").wait_for()
    assert page.get_by_role("button", name="Show older ones").is_hidden()
    seen.check()


def test_older_jobs_are_a_click_away(seen: Watched, server: Served) -> None:
    made = []
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        body = {"kind": "tune", **SMALL}
        for _ in range(51):
            answer = when_free(lambda: client.post("/v1/jobs", json=body))
            made.append(answer.raise_for_status().json()["id"])
        page = seen.open("#/history")
        lines = page.locator(".job")
        lines.nth(49).wait_for()
        assert lines.count() == 50
        page.get_by_role("button", name="Show older ones").click()
        page.locator(f".job[data-id={made[0]}]").wait_for()
        for one in made:
            client.delete(f"/v1/jobs/{one}").raise_for_status()
    seen.check()


def test_two_jobs_stand_side_by_side(seen: Watched, server: Served, tuned: str) -> None:
    same = done(server, "tune", {**SMALL, "seed": 7})
    page = seen.open("#/history")
    for one in (tuned, same):
        page.locator(f".job[data-id={one}] input[type=checkbox]").check()
    page.get_by_role("link", name="Compare the two").click()
    page.locator(".comparison .numbers").wait_for()
    assert page.locator(".comparison .numbers tbody tr").count() == 9
    assert page.locator(".comparison .words td").count() == 8
    changes = page.locator(".comparison .numbers td:last-child").all_inner_texts()
    assert set(changes) == {"the same"}
    page.locator(".verdict", has_text="The two tie").wait_for()
    seen.check()


def test_a_config_becomes_a_model(seen: Watched, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    page = seen.open("#/library")
    page.get_by_label("A Hugging Face config.json").set_input_files(config)
    name = page.locator("#add-model-name")
    page.wait_for_function("document.querySelector('#add-model-name').value === 'llama'")
    name.fill("My Model")
    page.get_by_role("button", name="Add model").click()
    page.get_by_text("A name has small letters").wait_for()
    name.fill("tiny-llama")
    page.get_by_role("button", name="Add model").click()
    page.get_by_text("tiny-llama was added.").wait_for()
    page.get_by_role("link", name="New").click()
    page.locator("form.ask").wait_for()
    page.locator("#field-model").select_option("tiny-llama")
    page.get_by_role("link", name="Library").click()
    page.get_by_role("button", name="Forget tiny-llama").click()
    page.get_by_role("button", name="Forget for good? tiny-llama").click()
    page.locator("#model tbody tr", has_text="tiny-llama").wait_for(state="detached")
    (tmp_path / "wrong.json").write_text("{")
    page.get_by_label("A Hugging Face config.json").set_input_files(tmp_path / "wrong.json")
    page.get_by_text("wrong.json is no JSON file.").wait_for()
    seen.check()


def test_a_profile_is_added_and_replaced(seen: Watched, tmp_path: Path) -> None:
    bundled = load_profile("h100-dgx")
    page = seen.open("#/library")
    for text, said in (("ours was added.", "ours"), ("ours is this file from now on.", "again")):
        mine = replace(bundled, name="ours", machine=replace(bundled.machine, gpu=f"GPU {said}"))
        (tmp_path / "ours.json").write_bytes(dump_profile(mine))
        page.get_by_label("The file of a profile").set_input_files(tmp_path / "ours.json")
        page.wait_for_function("document.querySelector('#add-profile-name').value === 'ours'")
        page.get_by_role("button", name="Add profile").click()
        page.get_by_text(text).wait_for()
        page.locator("#profile tbody tr", has_text=f"GPU {said}").wait_for()
    page.get_by_role("button", name="Forget ours").click()
    page.get_by_role("button", name="Forget for good? ours").click()
    page.locator("#profile tbody tr", has_text="ours").wait_for(state="detached")
    seen.check()


# Screens -----------------------------------------------------------------------------------------


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (360, "light"), (390, "dark"), (1920, "light"), (390, "light"), (1400, "dark"),
        (360, "dark"), (1400, "light"), (1920, "dark"),
    ],
)  # fmt: skip
def test_every_view_fits_and_can_be_used_by_all(
    browser: Browser,
    server: Served,
    tuned: str,
    laid_out: str,
    calibrated: str,
    scaled: str,
    swept: str,
    width: int,
    scheme: str,
) -> None:
    size = {"width": width, "height": 800}
    touch = {"has_touch": True, "is_mobile": True} if width < 400 else {}
    views = (
        ("#/new", "form.ask"), ("#/history", ".job"), ("#/library", "#profile .shelf"),
        (f"#/tune/{tuned}", "#lanes canvas"), (f"#/layout/{laid_out}", "#lanes canvas"),
        (f"#/calibrate/{calibrated}", "#learnt"), (f"#/scale/{scaled}", "svg.plot"),
        (f"#/whatif/{swept}", "svg.plot"), ("docs", ".opblock"),
        (f"#/compare/tune.{tuned}/layout.{laid_out}", ".numbers"),
    )  # fmt: skip
    with watched(browser, server.url, viewport=size, color_scheme=scheme, **touch) as seen:
        for place, ready in views:
            page = seen.open(place)
            page.locator(ready).first.wait_for()
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{place} is {wide} px wide"
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (int(paper.split("(")[1].split(",")[0]) < 128) == (scheme == "dark")
            if place != "docs":  # Swagger UI's own markup and colours
                assert axe_findings(page) == [], place
        seen.check()


def test_a_phone_sees_all_places_and_hints_for_fingers(
    browser: Browser, server: Served, tuned: str
) -> None:
    phone = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}
    with watched(browser, server.url, **phone) as seen:
        page = seen.open(f"#/tune/{tuned}")
        page.locator("#lanes .keys").get_by_text("pinch").wait_for()
        files = page.locator(".contents").get_by_role("link", name="Files")
        box = files.bounding_box()
        assert box
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 390
        files.tap()
        page.wait_for_function("document.activeElement.textContent === 'Take it along'")
        seen.check()
