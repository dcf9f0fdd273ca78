"""Models: presets, and configs under names of one's own."""

from __future__ import annotations

from typing import Any

import httpx

from simulator.presets import MODELS
from tests.support.asked import CELL, good, refused

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
    refused(client.get("/v1/models", params={"cursor": "none"}), 422)


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
