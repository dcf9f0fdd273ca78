"""The client at a real server: submit, wait, result."""

from __future__ import annotations

import json
from pathlib import Path

from domino_tune.client import Client
from domino_tune.requests import TuneRequest
from domino_tune.results import to_json
from domino_tune.verbs.tune import tune
from tests.real.domino_tune.serving import served

ASKED = TuneRequest(
    model="gpt3-1.3b", profile="h100-dgx", tp=2, seq_length=256, micro_batch_size=2,
    overrides=("num_hidden_layers=4",), search="random", trials=4,
)  # fmt: skip


def test_a_tune_is_what_it_is_here(tmp_path: Path) -> None:
    with served(tmp_path) as running, Client(running.url) as client:
        job = client.wait(client.submit("tune", ASKED))
        assert job.state == "done"
        assert client.file(job.id, "plan").startswith(b"{")
    here = json.loads(json.dumps(to_json(tune(ASKED))))
    assert {**here, "seconds": 0} == {**job.result(), "seconds": 0}
