"""Profiles: files under names, guarded by ETags; tables imported into them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from domino_tune.requests import ProfilesImportRequest
from domino_tune.store.profiles import dump_profile, load_profile, parse_profile
from domino_tune.verbs.profiles import imported_profile, profiles_import
from simulator.errors import InputError
from simulator.presets import MODELS
from simulator.profile import Profile
from tests.support.asked import CELL, good, refused

JSON = {"Content-Type": "application/json"}
TABLE = "m,n,k,us\n4096,12288,4096,650\n8192,12288,4096,1280\n"


def named(name: str, created: str = "2026-01-01") -> Profile:
    return replace(load_profile("h100-dgx"), name=name, created=created)


def put(client: httpx.Client, profile: Profile, **headers: str) -> httpx.Response:
    given = {**JSON, **{key.replace("_", "-"): value for key, value in headers.items()}}
    return client.put(f"/v1/profiles/{profile.name}", content=dump_profile(profile), headers=given)


def test_a_bundled_one_is_read_only(client: httpx.Client) -> None:
    answer = client.get("/v1/profiles/h100-dgx", headers={"Accept-Encoding": "identity"})
    found = parse_profile(answer.content, source="the answer")
    assert found == load_profile("h100-dgx")
    assert answer.headers["etag"] == f'"{found.content_id}"'
    refused(put(client, load_profile("h100-dgx")), 409)
    refused(client.delete("/v1/profiles/h100-dgx"), 409)


def test_replacing_needs_to_know_what_is_replaced(client: httpx.Client) -> None:
    first, second = named("guarded"), named("guarded", "2026-02-02")
    made = put(client, first)
    assert good(made, 201)["content_id"] == first.content_id
    tag = made.headers["etag"]
    good(put(client, first), 200)  # the same again changes nothing
    refusal = put(client, second)
    refused(refusal, 428)
    assert refusal.headers["etag"] == tag
    refused(put(client, second, If_Match='"sha256:0"'), 412)
    refused(put(client, second, If_Match=f"W/{tag}"), 412)
    refused(put(client, second, If_None_Match="*"), 412)
    refused(put(client, second, If_Match="bare"), 400)
    replaced = put(client, second, If_Match=f'"other", {tag}')
    good(replaced)
    assert replaced.headers["etag"] == f'"{second.content_id}"'
    refused(put(client, first, If_Match=tag), 412)
    assert parse_profile(client.get("/v1/profiles/guarded").content, source="it") == second
    refused(client.delete("/v1/profiles/guarded", headers={"If-Match": tag}), 412)
    good(client.delete("/v1/profiles/guarded"), 204)
    refused(client.get("/v1/profiles/guarded"), 404)
    refused(client.delete("/v1/profiles/guarded"), 404)
    refused(put(client, first, If_Match="*"), 412)


def test_it_can_be_tuned_on_and_jobs_keep_what_they_were_made_on(client: httpx.Client) -> None:
    good(put(client, named("mine")), 201)
    asked = {**CELL, "profile": "mine"}
    own = good(client.post("/v1/simulations", json=asked))
    theirs = good(client.post("/v1/simulations", json=CELL))
    assert own["profile"]["name"] == "mine"
    assert own["iteration_ms"] == theirs["iteration_ms"]
    slower = replace(named("mine"), launch=None)
    tag = client.get("/v1/profiles/mine").headers["etag"]
    good(put(client, slower, If_Match=tag))
    changed = good(client.post("/v1/simulations", json=asked))
    assert changed["profile"]["content_id"] == slower.content_id != own["profile"]["content_id"]
    names = [one["name"] for one in good(client.get("/v1/profiles"))["items"]]
    assert names == sorted(names)
    assert {"a100-sxm", "h100-dgx", "mine"} <= set(names)
    good(client.delete("/v1/profiles/mine"), 204)
    refused(client.post("/v1/simulations", json={**asked, "seq_length": 256}), 422)


def test_an_import_is_the_verbs(
    client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"format": "gemm-csv", "into": "h100-dgx"}
    answer = import_table(client, "imported", asked, {"Idempotency-Key": "import-1"})
    told = good(answer, 201)
    (tmp_path / "table").write_text(TABLE)
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path))
    local = profiles_import(
        ProfilesImportRequest(
            file=str(tmp_path / "table"), name="imported", format="gemm-csv", into="h100-dgx"
        )
    )
    for name in ("section", "rows", "replaced", "note"):
        assert told[name] == getattr(local, name)
    assert told["warnings"] == list(local.warnings)
    assert told["profile"]["content_id"] == local.profile.content_id
    assert answer.headers["etag"] == f'"{local.profile.content_id}"'
    again = import_table(client, "imported", asked, {"Idempotency-Key": "import-1"})
    assert (again.status_code, again.json()) == (201, told)
    slower = refused(import_table(client, "slower", {**asked, "into": "a100-sxm"}), 422)
    assert "above the peak of A100" in slower["detail"]
    other = {**asked, "into": "h200-sxm"}
    refused(import_table(client, "imported", other, {"Idempotency-Key": "import-1"}), 422)
    refused(import_table(client, "imported", other), 428)
    good(import_table(client, "imported", other, {"If-Match": answer.headers["etag"]}))


def test_an_import_into_itself_is_made_once(client: httpx.Client) -> None:
    data = dump_profile(named("grown"))
    put = client.put("/v1/profiles/grown", content=data, headers=JSON)
    asked = {"format": "gemm-csv", "into": "grown"}
    headers = {"Idempotency-Key": "grown-1", "If-Match": put.headers["etag"]}
    first = import_table(client, "grown", asked, headers)
    again = import_table(client, "grown", asked, headers)
    assert good(again) == good(first)
    assert again.headers["etag"] == first.headers["etag"] != put.headers["etag"]
    client.delete("/v1/profiles/grown", headers={"If-Match": first.headers["etag"]})
    assert good(import_table(client, "grown", asked, headers)) == first.json()


def import_table(
    client: httpx.Client, name: str, asked: dict[str, str], headers: dict[str, str] | None = None
) -> httpx.Response:
    given = {"Content-Type": "text/csv", **(headers or {})}
    return client.post(f"/v1/profiles/{name}/import", params=asked, content=TABLE, headers=given)


def test_a_section_is_bounded() -> None:
    base = load_profile("h100-dgx")
    assert base.gemm
    asked = ProfilesImportRequest(file="t", name="new", format="gemm-csv", into="h100-dgx")
    most = len(base.gemm.rows) + TABLE.count("\n") - 1
    made, _ = imported_profile(asked, base, TABLE.encode(), most_rows=most)
    assert made.gemm
    assert len(made.gemm.rows) <= most
    with pytest.raises(InputError, match="together they may be"):
        imported_profile(asked, base, TABLE.encode(), most_rows=most - 1)


# Models -------------------------------------------------------------------------------------------
# Presets, and configs under names of one's own.

CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 16,
    "intermediate_size": 2816, "vocab_size": 32000, "auto_map": {"a": "b"},
    "torch_dtype": "bfloat16",
}  # fmt: skip


def add(client: httpx.Client, name: str, config: Any, **headers: str) -> httpx.Response:
    given = {key.replace("_", "-"): value for key, value in headers.items()}
    return client.post("/v1/models", params={"name": name}, json=config, headers=given)


def test_presets_are_there(client: httpx.Client) -> None:
    found, cursor = [], None
    while True:
        asked = {"limit": "5", **({"cursor": cursor} if cursor else {})}
        page = good(client.get("/v1/models", params=asked))
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    names = [one["name"] for one in found]
    assert names[: len(MODELS)] == list(MODELS)
    for one in found[: len(MODELS)]:
        assert one["parameters"] == MODELS[one["name"]].parameters
    for bad in ({"cursor": "none"}, {"limit": 0}, {"limit": 201}):
        refused(client.get("/v1/models", params=bad), 422)


def test_a_config_becomes_a_model_that_can_be_used(client: httpx.Client) -> None:
    answer = add(client, "tiny-llama", CONFIG)
    made = good(answer, 201)
    assert answer.headers["location"] == "/v1/models/tiny-llama"
    assert made["model"]["hidden_size"] == 1024
    assert any("auto_map" in note for note in made["notes"])
    assert made in good(client.get("/v1/models", params={"limit": 200}))["items"]
    found = good(client.post("/v1/simulations", json={**CELL, "model": "tiny-llama"}))
    assert found["model"]["num_hidden_layers"] == 8
    assert any("auto_map" in said for said in found["warnings"])
    good(add(client, "tiny-llama", {**CONFIG, "num_hidden_layers": 4}))
    deeper = good(client.post("/v1/simulations", json={**CELL, "model": "tiny-llama"}))
    assert deeper["model"]["num_hidden_layers"] == 4


def test_a_key_makes_one(client: httpx.Client) -> None:
    first = good(add(client, "keyed", CONFIG, Idempotency_Key="model-1"), 201)
    assert good(add(client, "keyed", CONFIG, Idempotency_Key="model-1"), 201) == first
    refused(add(client, "other", CONFIG, Idempotency_Key="model-1"), 422)


def test_a_model_can_be_deleted(client: httpx.Client) -> None:
    good(add(client, "leaving", CONFIG), 201)
    assert client.delete("/v1/models/leaving").status_code == 204
    refused(client.delete("/v1/models/leaving"), 404)
    refused(client.delete("/v1/models/gpt3-13b"), 409)
