"""The files of deploy, the Dockerfile and the commands in documents, read for tests."""

from __future__ import annotations

import re
from typing import Any, Final, cast

import typer
import yaml

from domino_tune.cli.commands import VERBS, build_app
from domino_tune.requests.options import Request
from domino_tune.requests.service import ServeRequest
from tests.conftest import REPOSITORY

DEPLOY: Final = REPOSITORY / "deploy"
COMPOSE: Final = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
NGINX: Final = (DEPLOY / "proxy" / "nginx.conf").read_text("utf-8")
PROMETHEUS: Final = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))
KINDS: Final[dict[str, dict[str, Any]]] = {
    one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
}
POD: Final[dict[str, Any]] = KINDS["Deployment"]["spec"]["template"]["spec"]
CONTAINER: Final[dict[str, Any]] = POD["containers"][0]


def stage(name: str) -> list[tuple[str, str]]:
    """Return (instruction, arguments) of one stage of the Dockerfile, continued lines joined."""
    text = (REPOSITORY / "Dockerfile").read_text("utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line]
    pairs = [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]
    (begin,) = (at for at, pair in enumerate(pairs) if pair[1].endswith(f" AS {name}"))
    ends = [at for at, pair in enumerate(pairs) if at > begin and pair[0] == "FROM"]
    return pairs[begin : ends[0] if ends else None]


IMAGE: Final = dict(stage("service"))


def parsed(words: list[str]) -> Request:
    """Return the request of a command line, parsed by the program's own parser."""
    verb = next(v for v in VERBS if words[: len(v.name.split())] == v.name.split())
    path, command = verb.name.split(), cast(Any, typer.main.get_command(build_app()))
    for name in path:
        command = command.commands[name]
    with command.make_context(verb.name, words[len(path) :]) as context:
        request: Request = verb.read(context.params)[0]
    return request


def serving(words: list[str]) -> ServeRequest:
    """Return the request of a `serve` command line."""
    request = parsed(words)
    assert isinstance(request, ServeRequest)
    return request


def documented(name: str) -> list[str]:
    """Return the lines of shell in a document's code blocks, continued lines joined."""
    text = (REPOSITORY / name).read_text("utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return re.sub(r"\\\n\s*", "", "".join(blocks)).splitlines()
