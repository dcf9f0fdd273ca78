"""Hostile requests against a real process: each is answered, and as the document says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.real.api.hostile.corpus import corpus
from tests.real.api.hostile.documented import undocumented
from tests.real.api.hostile.exchange import exchange
from tests.support.postgres import running_postgres
from tests.support.processes import PATIENCE_S
from tests.support.service import Service, serving

CORPUS = corpus()
RECEIVE_S = 1.0


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("hostile")
    with ExitStack() as stack:
        given: dict[str, Any] = {"receive_s": RECEIVE_S, "burst": 100_000}
        if request.param == "postgresql":
            given["database_url"] = stack.enter_context(running_postgres()).url()
        made = stack.enter_context(serving(folder, **given))
        yield made
        assert made.process.poll() is None
        assert "Traceback" not in made.log.read_text()
        assert " ERROR " not in made.log.read_text()


def test_the_corpus_is_large() -> None:
    assert len(CORPUS) >= 80


def test_all_are_answered_well(service: Service) -> None:
    document = httpx.get(f"{service.url}/openapi.json").json()
    quick = [name for name, one in CORPUS.items() if not one.slow]
    slow = [name for name, one in CORPUS.items() if one.slow]
    answers = {name: exchange(service.port, CORPUS[name].parts) for name in quick}
    with ThreadPoolExecutor(len(slow)) as threads:
        sent = {n: threads.submit(exchange, service.port, CORPUS[n].parts) for n in slow}
        answers |= {name: future.result() for name, future in sent.items()}
    wrong = {}
    for name, answer in answers.items():
        fault = undocumented(document, list(CORPUS[name].parts), answer)
        if answer.status not in CORPUS[name].statuses or fault:
            wrong[name] = (answer.status, fault, answer.body[:300])
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())


def test_problems_point_at_something(service: Service) -> None:
    for name in ("NaN", "a duplicate key", "an unknown key", "0 ranks", "a path for a model"):
        plain = json.loads(exchange(service.port, CORPUS[name].parts).body)
        assert plain["status"] == 422
        assert all(fault["pointer"].startswith("#") for fault in plain["errors"]), name
        assert plain["errors"], name


def test_the_log_tells_no_bodies_and_no_tokens(service: Service) -> None:
    secret = "dt_" + "Z" * 43
    httpx.post(
        f"{service.url}/v1/tunes?q=hidden1", json={"model": "hidden2"},
        headers={"Authorization": f"Bearer {secret}", "Idempotency-Key": "hidden3"},
    )  # fmt: skip
    end = time.monotonic() + PATIENCE_S
    while '"route": "/v1/tunes"' not in (log := Path(service.log).read_text()):
        assert time.monotonic() < end, log  # the line comes after the answer
        time.sleep(0.01)
    assert not [word for word in (secret, "hidden1", "hidden2", "hidden3") if word in log]
