"""The page in a real browser, against the service as users start it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from api.routes.page import assets
from domino_tune.store.plans import load_plan
from tests.real.api.browser import PATIENCE_MS, Watched, watched
from tests.real.api.page_steps import (
    ENDLESS,
    QUESTIONS,
    SMALL,
    done,
    drag,
    fill,
    measurement,
    picture,
)
from tests.real.domino_tune.serving import Served, command, served
from tests.support.processes import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_the_main_journey(seen: Watched, tmp_path: Path) -> None:
    page = seen.open()
    fill(page, SMALL)
    page.locator("#sums").get_by_text("4 GPUs, 4 sequences, 4,096 tokens").wait_for()
    page.get_by_role("button", name="Tune", exact=True).click()
    page.get_by_role("progressbar").wait_for()
    assert page.get_by_role("button", name="Cancel").is_visible()
    assert page.locator("#progress-live").get_attribute("aria-live") == "polite"

    page.locator("#answer h1", has_text="fastest").wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H1"
    assert page.locator("#answer .total .name").all_inner_texts() == [
        "Megatron-LM", "Domino", "No communication"
    ]  # fmt: skip
    page.locator("#lanes canvas").nth(2).wait_for()
    before = picture(page, 0)
    page.get_by_role("button", name="Zoom in").first.click()
    page.wait_for_function(
        "was => document.querySelector('#lanes canvas').toDataURL() !== was", arg=before
    )

    drag(page, "Link bandwidth")
    page.locator(".took", has_text="answered in").wait_for()
    assert page.locator(".compare tbody tr").first.locator("td").nth(2).inner_text() != "±0 %"

    with page.expect_download() as download:
        page.get_by_role("button", name="Plan", exact=True).click()
    download.value.save_as(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert (plan.model.name, plan.cluster.tp) == ("gpt3-1.3b", 4)

    page.get_by_role("link", name="History").click()
    page.locator(".job[data-state=done]").first.wait_for()
    seen.check()


def test_the_last_position_of_a_slider_wins(seen: Watched, tuned: str) -> None:
    page = seen.open(f"#/tune/{tuned}")
    slider = page.get_by_label("Link bandwidth")
    bodies: list[Any] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.url.endswith("/v1/what-ifs") else None)  # fmt: skip # noqa: E501
    slider.focus()
    for _ in range(15):
        slider.press("ArrowLeft")
    page.wait_for_function("document.querySelector('.slider.moved output').textContent === '0.35×'")
    wanted = page.locator(".compare td").nth(1)
    last = ["link_bandwidth=0.354x"]
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while (not bodies or bodies[-1]["change"] != last) and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert bodies[-1]["change"] == last
    answer = httpx.post(f"{seen.origin}/v1/what-ifs", json=bodies[-1], timeout=PATIENCE_S).json()
    right = pytest.approx(answer["points"][0]["iteration_ms"], rel=0.01)
    while float(wanted.inner_text()) != right and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    page.wait_for_load_state("networkidle")
    assert float(wanted.inner_text()) == right
    slider.press("Escape")
    page.wait_for_function("!document.querySelector('.slider.moved')")
    seen.check()


def test_a_sweep_is_drawn_point_by_point(seen: Watched, tuned: str) -> None:
    page = seen.open(f"#/tune/{tuned}/whatif")
    page.locator("#sweep-values").fill("0.5x, 1x, wrong")
    page.get_by_role("button", name="Sweep").click()
    page.locator(".swept", has_text="link_bandwidth cannot be 'wrong'").wait_for()
    page.locator("#sweep-values").fill("0.5x, 1x")
    page.get_by_role("button", name="Sweep").click()
    page.locator(".swept", has_text="2 points.").wait_for()
    assert page.locator(".swept .plot circle").count() == 6
    assert page.locator(".swept .plot").get_by_text("ms", exact=True).is_visible()
    assert page.locator(".swept tbody th").all_inner_texts() == ["0.5x", "1x"]
    page.get_by_role("link", name="History").click()
    page.locator(".job a", has_text="link bandwidth 0.5x, 1x").first.click()
    page.get_by_role("heading", name="Over link bandwidth").wait_for()
    page.locator(".swept .plot circle").nth(5).wait_for()
    seen.check()


def test_a_heat_map_is_walked_with_arrows(seen: Watched, tuned: str) -> None:
    page = seen.open(f"#/tune/{tuned}/cuts")
    best = page.locator(".heat .best")
    best.focus()
    told = page.locator(".told")
    first = told.inner_text()
    assert "column slices: " in first
    best.press("ArrowDown")
    assert told.inner_text() != first
    assert page.locator(".heat td[tabindex='0']").count() == 1
    seen.check()


def test_lanes_are_moved_with_keys(seen: Watched, tuned: str) -> None:
    page = seen.open(f"#/tune/{tuned}")
    canvas = page.locator("#lanes canvas").nth(1)
    canvas.focus()
    shown = [picture(page, 1)]
    for key in ("+", "ArrowRight", "n"):
        canvas.press(key)
        page.wait_for_function(
            "was => document.querySelectorAll('#lanes canvas')[1].toDataURL() !== was",
            arg=shown[-1],
        )
        shown.append(picture(page, 1))
    assert page.locator(".tip").is_visible()
    canvas.press("Escape")
    assert page.locator(".tip").is_hidden()
    page.get_by_role("link", name="New").click()
    page.locator("form.ask").wait_for()
    assert page.locator(".tip").count() == 0, "leaving takes the lanes' own elements away"
    seen.check()


def test_all_of_it_by_keyboard(seen: Watched) -> None:
    page = seen.open()
    page.locator("form.ask").wait_for()
    stops = []
    for _ in range(9):
        page.keyboard.press("Tab")
        stops.append(
            page.evaluate(
                "[document.activeElement.name || document.activeElement.textContent.trim(),"
                " getComputedStyle(document.activeElement).outlineStyle]"
            )
        )
    names = [name for name, _ in stops]
    order = [
        "question", "model", "seq_length", "global_batch_size", "dtype", "profile", "gpus",
        "More options", "Find layouts",
    ]  # fmt: skip
    assert [name for name in names if name in order] == order
    assert all(outline != "none" for _, outline in stops), "focus is seen everywhere"
    fill(page, SMALL)
    page.locator("#field-tp").press("Enter")
    page.get_by_role("progressbar").or_(page.locator("#answer")).first.wait_for()
    seen.check()


def test_errors_stand_beside_their_fields(seen: Watched) -> None:
    page = seen.open()
    fill(page, {**SMALL, "tp": "many"})
    page.locator("#field-tp").press("Enter")
    page.locator("#field-tp-error", has_text="whole number").wait_for()
    page.locator("#field-tp").fill("0")
    page.locator("#field-tp").press("Enter")
    page.locator("#field-tp-error", has_text="1").wait_for()
    assert page.locator("#field-tp").get_attribute("aria-invalid") == "true"
    assert page.evaluate("document.activeElement.id") == "field-tp"
    page.locator("#field-tp").fill("4")
    assert page.locator("#field-tp-error").inner_text() == ""
    page.locator("#field-nodes").fill("3")
    page.locator("#field-nodes").press("Enter")
    page.locator("#field-nodes-error", has_text="over nodes = 3").wait_for()
    page.locator("#field-nodes").fill("")
    page.locator("#field-tp").fill("64")
    page.locator("#field-tp").press("Enter")
    page.locator("#field-tp-error", has_text="Or try overrides").wait_for()
    assert page.locator("#field-overrides-error").inner_text() == ""
    page.locator("#field-tp").fill("4")
    page.get_by_text("More options").click()
    page.locator("#field-overrides").fill("no_such_field=1")
    page.locator("#field-tp").press("Enter")
    page.locator("#field-overrides-error", has_text="no_such_field").wait_for()
    assert page.evaluate("document.activeElement.id") == "field-overrides"
    seen.check(422)


def test_hints_speak_of_fields_and_errors_of_letters(seen: Watched) -> None:
    page = seen.open()
    for question in QUESTIONS.values():
        page.get_by_role("radio", name=question).check()
        page.locator("#field-run_tokens-hint", has_text="“Price of a GPU hour”").wait_for(
            state="attached"
        )
        hints = page.locator("form.ask .hint").all_text_contents()
        assert not [hint for hint in hints if "--" in hint or "`" in hint or "repeated" in hint]
    fill(page, SMALL)
    page.locator("#field-model").evaluate("one => { one.options[0].value = 'No Name'; }")
    page.locator("#field-model").select_option("No Name")
    page.locator("#field-tp").press("Enter")
    page.locator("#field-model-error", has_text="Use small letters, digits").wait_for()
    seen.check(422)


def test_switches_have_a_default_beside_on_and_off(seen: Watched) -> None:
    page = seen.open()
    fill(page, {**SMALL, "overlap_grad_reduce": "false", "sequence_parallel": "true"})
    assert page.locator("#field-overlap_param_gather option").all_inner_texts() == [
        "default", "on", "off"
    ]  # fmt: skip
    with page.expect_request("**/v1/jobs") as asked:
        page.locator("#field-tp").press("Enter")
    body: Any = asked.value.post_data_json
    assert (body["overlap_grad_reduce"], body["sequence_parallel"]) == (False, True)
    assert "overlap_param_gather" not in body
    assert "cuda_graph" not in body
    page.get_by_role("link", name="change and ask again").click()
    page.locator("form.ask").wait_for()
    kept = ("overlap_grad_reduce", "sequence_parallel", "overlap_param_gather")
    assert [page.locator(f"#field-{name}").input_value() for name in kept] == ["false", "true", ""]
    seen.check()


def test_a_running_tune_is_cancelled(seen: Watched) -> None:
    page = seen.open()
    fill(page, ENDLESS)
    page.locator("#field-tp").press("Enter")
    page.locator(".best-so-far", has_text="Best so far").wait_for()
    page.get_by_role("progressbar").and_(page.locator("[value]")).wait_for()
    identity = page.url.rpartition("/")[2]
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("heading", name="History").wait_for()
    page.locator(f".job[data-id={identity}]").wait_for(state="detached")
    seen.check()


def test_the_clock_of_a_running_tune_goes_on_between_events(seen: Watched) -> None:
    page = seen.open()
    fill(page, {**ENDLESS, "trials": 100_002})
    page.locator("#field-tp").press("Enter")
    page.locator(".pace", has_text="so far").wait_for()
    page.route("**/v1/jobs/*/events", lambda route: None)  # no event ever comes
    page.reload()
    page.locator(".pace", has_text="so far").wait_for()
    page.wait_for_function(
        "was => document.querySelector('.pace').textContent.split(' so far')[0] !== was",
        arg=page.locator(".pace").inner_text().partition(" so far")[0],
    )
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("heading", name="History").wait_for()
    seen.check()


def test_a_running_tune_is_stopped_and_its_best_kept(seen: Watched) -> None:
    page = seen.open()
    fill(page, {**ENDLESS, "trials": 100_001})
    page.locator("#field-tp").press("Enter")
    page.locator(".best-so-far", has_text="Best so far").wait_for()
    page.locator(".pace", has_text="looked at").wait_for()
    page.get_by_role("button", name="Stop and keep").click()
    page.locator("#answer .warn", has_text="Stopped and kept").wait_for()
    page.locator("#lanes canvas").first.wait_for()
    seen.check()


def test_paste_blocks(seen: Watched, tuned: str) -> None:
    page = seen.open(f"#/tune/{tuned}")
    page.get_by_role("button", name="Megatron-LM", exact=True).click()
    page.locator("#files pre", has_text="--num-layers").wait_for()
    seen.check()


def test_predicted_against_measured(seen: Watched, tuned: str, server: Served) -> None:
    page = seen.open(f"#/tune/{tuned}/measured")
    page.locator("#measured", has_text=f"/v1/jobs/{tuned}").wait_for()
    done(server, "validate", {"of": tuned, "result": measurement(server, tuned)})
    page.reload()
    rows = page.locator("#measured tbody tr")
    rows.nth(1).wait_for()
    assert "−50 %" in rows.nth(1).inner_text()
    assert page.locator("#measured svg circle").count() == 2
    page.get_by_role("button", name="Delete what was measured").click()
    page.get_by_role("button", name="Delete for good? what was measured").click()
    rows.first.wait_for(state="detached")
    left = httpx.get(f"{server.url}/v1/jobs?kind=validate&of={tuned}", timeout=PATIENCE_S)
    assert left.json()["items"] == []
    seen.check()


def test_docs_show_every_operation(seen: Watched, server: Served) -> None:
    spec = httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE_S).json()
    page = seen.open("docs")
    page.locator(".opblock").first.wait_for()
    assert page.locator(".opblock").count() == sum(len(item) for item in spec["paths"].values())
    seen.check()


def test_a_token_is_asked_for_and_kept_for_the_session(browser: Browser, tmp_path: Path) -> None:
    added = command(tmp_path, "tokens", "add", "me", "--scope", "tune", "--json")
    assert added.returncode == 0, added.stderr
    secret = json.loads(added.stdout)["secret"]
    with served(tmp_path) as server, watched(browser, server.url) as seen:
        page = seen.open()
        dialog = page.get_by_role("dialog")
        dialog.wait_for()
        assert page.evaluate("document.activeElement.id") == "token"
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Give a token").click()
        page.locator("#token").fill("dt_wrong")
        page.keyboard.press("Enter")
        page.get_by_role("dialog").get_by_role("alert").wait_for()
        page.locator("#token").fill(secret)
        page.keyboard.press("Enter")
        page.locator("form.ask").wait_for()
        assert page.evaluate("sessionStorage.getItem('domino_tune.token')") == secret
        assert page.evaluate("localStorage.length") == 0
        assert secret not in page.evaluate("document.documentElement.outerHTML + document.cookie")
        fill(page, SMALL)
        page.locator("#field-tp").press("Enter")
        page.locator("#lanes canvas").first.wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="Plan", exact=True).click()
        assert json.loads(Path(download.value.path()).read_text())["schema"] == 4
        page.get_by_role("button", name="Forget the token").click()
        dialog.wait_for()
        assert page.evaluate("sessionStorage.length") == 0
        assert not [url for url in seen.asked if secret in url]
        seen.check(401)


# Files, without a browser ------------------------------------------------------------------------


def test_files_have_etags_of_their_content(server: Served) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        for path in ("/", "/docs", *(f"/static/{name}" for name in assets())):
            answer = client.get(path)
            assert answer.status_code == 200
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            etag = answer.headers["etag"]
            for said in (etag, f'"other", W/{etag.removeprefix("W/")}', "*"):
                again = client.get(path, headers={"If-None-Match": said})
                assert (again.status_code, again.content) == (304, b"")
            other = client.get(path, headers={"If-None-Match": '"other"'})
            assert other.status_code == 200


def test_nothing_comes_from_other_hosts() -> None:
    for name, asset in assets().items():
        if name.startswith("swagger-ui"):  # names places, and loads nothing from them
            continue
        text = asset.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, name
        assert "@import" not in text, name
        if name.endswith(".html"):
            assert "<style" not in text
            assert " style=" not in text
            assert not re.search(r"\son\w+=", text)
