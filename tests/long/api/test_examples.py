"""Every example of the API's documentation runs: each call of curl that its page shows, in a real
browser, is given to a shell, and its answer is as the description says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import httpx
import pytest

from api.app import route_table
from domino_tune.service.sql.database import open_database
from domino_tune.service.tokens import TokenDesk
from domino_tune.store.profiles import load_profile, save_profile
from tests.real.api.browser import chromium, watched
from tests.real.api.page_steps import measured
from tests.support.asked import described, ended
from tests.support.processes import PATIENCE_S
from tests.support.service import serving

JOBS: Final = ("tune", "sweep", "layout_search", "scale", "calibration")
"""Ends of the names of operations that make jobs; each goes before those that look at the job."""


@dataclass(kw_only=True)
class Shown:
    """The calls of the page by their operation, run in ``folder`` against a service at ``url``."""

    url: str
    folder: Path
    secret: str
    calls: dict[str, str]
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, name: str) -> httpx.Response:
        """Run an operation's call in a shell. Its answer."""
        shell = (
            'curl() { command curl --silent --show-error --dump-header head --output body "$@"; }\n'
        )
        (self.folder / "body").write_bytes(b"")
        done = subprocess.run(
            ["bash", "-euc", shell + self.calls[name]], cwd=self.folder, text=True,
            capture_output=True, timeout=PATIENCE_S,
            env={"PATH": "/usr/bin:/bin", "DOMINO_TUNE_TOKEN": self.secret, **self.variables},
        )  # fmt: skip
        assert done.returncode == 0, (name, done.stderr)
        head = (self.folder / "head").read_text().splitlines()
        status = int(head[0].split()[1])
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        route = next(one for one in route_table() if one.name == name)
        url = re.search(r'"(http[^"]*)"', self.calls[name])
        assert url is not None
        place = re.sub(r"\$([A-Z_]+)", lambda found: self.variables[found[1]], url[1])
        request = httpx.Request(route.method, place)
        body = (self.folder / "body").read_bytes()
        return httpx.Response(status, headers=headers, content=body, request=request)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    folder = tmp_path_factory.mktemp("examples")
    database = open_database(f"sqlite:///{folder}/jobs.db")
    secret = TokenDesk(database).add("examples", "examples", "admin")
    database.close()
    profile = replace(load_profile("h100-dgx"), name="my-machine")
    save_profile(profile, folder / "my-machine.json")
    with serving(folder, tokens_required=True) as service, chromium() as browser:
        with watched(browser, service.url) as seen:
            page = seen.open("docs")
            page.locator("details.operation").first.wait_for()
            found: dict[str, str] = page.evaluate(
                "() => Object.fromEntries([...document.querySelectorAll('details.operation')]"
                ".map(one => [one.id, one.querySelector('pre code').textContent]))"
            )
            seen.check()
        yield Shown(url=service.url, folder=folder, secret=secret, calls=found)


def test_every_operation_has_an_example_that_runs(shown: Shown) -> None:
    headers = {"Authorization": f"Bearer {shown.secret}"}
    kept: dict[str, str] = {}
    with httpx.Client(base_url=shown.url, headers=headers, timeout=PATIENCE_S) as client:
        for name in (f"create_{kind}" for kind in JOBS):
            answer = good(shown, name)
            job = ended(client, answer.headers["location"])
            assert job["state"] == "done", job["error"]
            kept[f"/v1/{job['kind']}s"] = job["id"]
            if name == "create_tune":
                plain = json.dumps(measured(job["result"]["simulation"]))
                (shown.folder / "validation.json").write_text(plain)
    paths = {one.name: one.path for one in route_table()}
    rest = [name for name in shown.calls if name not in {f"create_{kind}" for kind in JOBS}]
    for name in sorted(rest, key=last):
        for start, identity in kept.items():
            if paths[name].startswith(start):
                shown.variables["JOB_ID"] = identity
        answer = good(shown, name)
        if name == "add_validation":
            shown.variables["VALIDATION_ID"] = answer.json()["id"]


def last(name: str) -> int:
    """Where an operation goes: what deletes goes after all else, and a part before the whole."""
    if name.startswith("delete_validation"):
        return 2
    return 3 if name.startswith("delete_") else int(name == "list_validations")


def good(shown: Shown, name: str) -> httpx.Response:
    answer = shown.run(name)
    assert answer.is_success, (name, shown.calls[name], answer.text[:1000])
    described(answer)
    return answer
