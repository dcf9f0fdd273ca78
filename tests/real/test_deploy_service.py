"""The deployment files of the service agree with the command line, the routes, and each other.

No container engine is needed: each command is parsed by the program that a container would run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from importlib.metadata import requires
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from dask.utils import parse_bytes
from distributed.cli import dask_scheduler, dask_worker
from packaging.requirements import Requirement

from api.settings import Settings
from domino_tune.base.version import VERSION
from domino_tune.requests.service import ServeRequest
from lab.load.memory import DEPLOYED_BYTES
from tests.conftest import REPOSITORY
from tests.real.test_deploy import parsed

DEPLOY = REPOSITORY / "deploy"
GRACE_S = 10
"""After SIGTERM, all jobs are back in the queue within this time."""
LONGEST_WAIT_S = 30
"""The longest wait that `Prefer: wait` may ask for."""
DASK = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: one for name, one in SERVICES.items() if one["image"].startswith("domino-tune")}
NGINX = (DEPLOY / "proxy" / "nginx.conf").read_text(encoding="utf-8")
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))


def stage(name: str) -> list[tuple[str, str]]:
    """Return (instruction, arguments) of one stage of the Dockerfile, continued lines joined."""
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line]
    pairs = [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]
    (begin,) = (at for at, pair in enumerate(pairs) if pair[1].endswith(f" AS {name}"))
    ends = [at for at, pair in enumerate(pairs) if at > begin and pair[0] == "FROM"]
    return pairs[begin : ends[0] if ends else None]


IMAGE = dict(stage("service"))


def served(words: list[str]) -> ServeRequest:
    """Return the request of a `serve` command line."""
    assert words[0] == "serve"
    request = parsed(words)
    assert isinstance(request, ServeRequest)
    return request


# The image --------------------------------------------------------------------------------------


def test_image_serves_as_an_ordinary_user() -> None:
    assert json.loads(IMAGE["ENTRYPOINT"]) == ["domino-tune"]
    request = served(json.loads(IMAGE["CMD"]))
    assert (request.host, str(request.port)) == ("0.0.0.0", IMAGE["EXPOSE"])
    user, group = map(int, IMAGE["USER"].split(":"))
    assert user == group > 1000
    order = [word for word, _ in stage("service")]
    assert order.index("USER") > max(at for at, word in enumerate(order) if word == "RUN")


def test_image_writes_to_its_volume_only() -> None:
    environment = dict(pair.split("=", 1) for pair in IMAGE["ENV"].split())
    assert environment["HOME"] == environment["DOMINO_TUNE_HOME"] == IMAGE["VOLUME"]
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    made = next(rest for word, rest in stage("service") if word == "RUN" and "useradd" in rest)
    assert made.count(IMAGE["VOLUME"]) == 2


def needed(extras: set[str]) -> set[str]:
    """Return the names of all distributions that domino_tune with ``extras`` installs."""
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [Requirement(line) for line in project["dependencies"]]
    for extra in extras:
        wanted += map(Requirement, project["optional-dependencies"][extra])
    found: set[str] = set()
    while wanted:
        one = wanted.pop()
        if one.name in found:
            continue
        found.add(one.name)
        for line in requires(one.name) or ():
            other = Requirement(line)
            asked = [{"extra": extra} for extra in one.extras or {""}]
            if other.marker is None or any(other.marker.evaluate(each) for each in asked):
                wanted.append(other)
    return found


def test_image_has_what_it_needs_and_no_torch() -> None:
    install = next(rest for word, rest in stage("service") if word == "RUN" and "pip" in rest)
    extras = re.search(r"'\.\[([a-z,]+)\]'", install)
    assert extras is not None
    names = needed(set(extras[1].split(",")))
    assert {"fastapi", "uvicorn", "sqlalchemy", "psycopg", "psycopg-binary", "distributed"} <= names
    assert "torch" not in names


def test_image_is_built_from_what_it_copies() -> None:
    """The ignore file does not exclude what the build reads."""
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").split()
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "api", "domino_tune"):
        assert f"!{name}" in ignored


# Compose ----------------------------------------------------------------------------------------


def test_compose_has_every_part() -> None:
    assert set(SERVICES) == {"api", "database", "scheduler", "worker", "proxy", "prometheus"}
    assert COMPOSE["services"]["api"]["deploy"]["replicas"] > 1


def test_compose_serves_what_the_command_line_takes() -> None:
    request = served(SERVICES["api"]["command"])
    assert request.host == "0.0.0.0"
    assert request.database == "postgresql://domino@database/domino"
    assert SERVICES["database"]["environment"]["POSTGRES_USER"] == "domino"
    assert SERVICES["database"]["environment"]["POSTGRES_DB"] == "domino"
    assert request.executor == "dask://scheduler:8786"


@pytest.mark.parametrize("name", sorted(DASK))
def test_compose_starts_dask_as_it_takes_it(name: str) -> None:
    assert SERVICES[name]["entrypoint"] == ["dask"]
    verb, *words = SERVICES[name]["command"]
    assert verb == name
    with DASK[name].make_context(name, list(words)) as context:
        given = context.params
    if name == "scheduler":
        assert given["port"] == "8786"
    else:
        assert given["scheduler"] == "tcp://scheduler:8786"
        slices = served(SERVICES["api"]["command"]).workers
        assert slices is not None
        assert int(given["n_workers"]) == COMPOSE["services"]["api"]["deploy"]["replicas"] * slices
        assert parse_bytes(given["memory_limit"]) >= 2 << 30
        processes = int(given["n_workers"]) * parse_bytes(given["memory_limit"])
        assert parse_bytes(SERVICES["worker"]["mem_limit"].replace("g", "GiB")) > processes
        assert given["local_directory"].startswith("/tmp/")


@pytest.mark.parametrize("name", sorted(OURS))
def test_compose_restricts_our_containers(name: str) -> None:
    ours = OURS[name]
    assert ours["image"] == f"domino-tune:{VERSION}"
    assert ours["user"] == IMAGE["USER"]
    assert ours["read_only"] is True
    assert "/tmp" in ours["tmpfs"]
    assert ours["cap_drop"] == ["ALL"]
    assert ours["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "pids_limit", "restart"} <= set(ours)


def test_compose_gives_the_memory_that_loads_are_run_with() -> None:
    assert parse_bytes(SERVICES["api"]["mem_limit"].replace("g", "GiB")) == DEPLOYED_BYTES


def test_compose_trusts_its_proxy_alone() -> None:
    address = SERVICES["proxy"]["networks"]["front"]["ipv4_address"]
    assert served(SERVICES["api"]["command"]).trusted_proxy == (address,)
    (network,) = COMPOSE["networks"]["front"]["ipam"]["config"]
    assert ip_address(address) in ip_network(network["subnet"])


def test_compose_checks_the_database_it_talks_to() -> None:
    api, database = SERVICES["api"], SERVICES["database"]
    assert api["environment"]["PGSSLMODE"] == "verify-full"
    assert api["environment"]["PGSSLROOTCERT"] == "/run/secrets/database_ca"
    assert api["secrets"] == ["database_ca"]
    given = " ".join(database["command"])
    assert "ssl=on" in given
    for name in database["secrets"]:
        assert f"=/run/secrets/{name}" in given
    used = {secret for one in SERVICES.values() for secret in one.get("secrets", ())}
    assert used == set(COMPOSE["secrets"])
    (mounted,) = (volume for volume in database["volumes"] if volume.startswith("./"))
    ours, theirs, _ = mounted.split(":")
    assert f"hba_file={theirs}" in given
    rules = [line.split() for line in (DEPLOY / ours).read_text().splitlines() if line[:1] != "#"]
    assert [rule[0] for rule in rules] == ["local", "hostssl"]


def test_compose_waits_until_jobs_are_back_in_the_queue() -> None:
    assert int(SERVICES["api"]["stop_grace_period"].removesuffix("s")) > GRACE_S


def test_compose_publishes_to_this_machine_only() -> None:
    published = {name: one["ports"] for name, one in SERVICES.items() if "ports" in one}
    assert set(published) == {"proxy", "prometheus"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_compose_gives_dask_and_sql_their_own_networks() -> None:
    def members(network: str) -> set[str]:
        return {name for name, one in SERVICES.items() if network in one["networks"]}

    assert members("work") == {"api", "scheduler", "worker"}
    assert members("data") == {"api", "database"}
    internal = {name for name, one in COMPOSE["networks"].items() if one.get("internal")}
    assert internal == {"front", "data", "work"}


# The proxy and Prometheus ------------------------------------------------------------------------


def seconds(directive: str, text: str = NGINX) -> int:
    """Return a time of the proxy's configuration, in seconds."""
    found = re.search(rf"^\s*{directive} (\d+)([smh]);", text, re.MULTILINE)
    assert found is not None, directive
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def location(opening: str) -> str:
    """Return the text inside one location of the proxy's configuration."""
    return NGINX.partition(f"location {opening} {{")[2].partition("}")[0]


def test_proxy_forwards_to_the_api() -> None:
    assert f"set $api http://api:{served(SERVICES['api']['command']).port};" in NGINX
    listens = re.findall(r"^\s*listen (\d+);", NGINX, re.MULTILINE)
    assert [port.rpartition(":")[2] for port in SERVICES["proxy"]["ports"]] == listens
    (mounted,) = SERVICES["proxy"]["volumes"]
    assert (DEPLOY / mounted.partition(":")[0]).is_file()


def test_proxy_waits_longer_than_a_caller_may_ask_for() -> None:
    assert seconds("proxy_read_timeout") > LONGEST_WAIT_S
    for directive in ("client_header_timeout", "client_body_timeout"):
        assert seconds(directive) <= Settings(database_url="sqlite://").receive_s


def test_proxy_lets_the_api_refuse_a_body_that_is_too_large() -> None:
    limits = Settings(database_url="sqlite://")
    sizes = [int(size) << 20 for size in re.findall(r"client_max_body_size (\d+)m;", NGINX)]
    assert len(sizes) == 2
    assert limits.body_bytes < sizes[0] <= 2 * limits.body_bytes
    assert limits.upload_bytes < sizes[1] <= 2 * limits.upload_bytes
    assert "client_max_body_size" in location("/v1/profiles/")


def test_proxy_holds_the_bodies_that_one_caller_sends() -> None:
    inside = location("/v1/profiles/")
    many = re.search(r"limit_conn uploaders (\d+);", inside)
    size = re.search(r"client_max_body_size (\d+)m;", inside)
    assert many is not None
    assert size is not None
    assert "limit_conn callers " in inside
    (place,) = SERVICES["proxy"]["tmpfs"]
    room = int(place.removeprefix("/tmp:size=").removesuffix("m"))
    assert 2 * int(many[1]) * int(size[1]) < room < int(SERVICES["proxy"]["mem_limit"][:-1])


def test_proxy_lets_a_caller_ask_as_often_as_a_token_may() -> None:
    limits = Settings(database_url="sqlite://")
    rate = re.search(r"limit_req_zone \S+ zone=requests:\d+m rate=(\d+)r/s;", NGINX)
    burst = re.search(r"limit_req zone=requests burst=(\d+) nodelay;", NGINX)
    assert rate is not None
    assert burst is not None
    assert limits.rate_per_s <= int(rate[1])
    assert limits.burst <= int(burst[1])
    assert "limit_req_status 429;" in NGINX
    assert "limit_req " not in location("/v1/profiles/")  # it would replace the server's
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in NGINX


def test_proxy_passes_events_on_as_they_come() -> None:
    found = re.search(r"location ~ (\S+events\S*) \{", NGINX)
    assert found is not None
    inside = location(f"~ {found[1]}")
    assert "proxy_buffering off;" in inside
    assert seconds("proxy_read_timeout", inside) >= 3600
    for kind in ("tunes", "sweeps", "layouts"):
        assert re.match(found[1], f"/v1/{kind}/job_0/events")
    assert not re.match(found[1], "/v1/tunes/job_0/plan")


def test_prometheus_asks_every_replica() -> None:
    (job,) = PROMETHEUS["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert found["names"] == ["api"]
    assert found["port"] == served(SERVICES["api"]["command"]).port
    (secret,) = SERVICES["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    assert secret in COMPOSE["secrets"]
    files = [volume.split(":") for volume in SERVICES["prometheus"]["volumes"]]
    assert (DEPLOY / files[0][0]).is_file()
    assert f"--config.file={files[0][1]}" in SERVICES["prometheus"]["command"]
    assert f"--storage.tsdb.path={files[1][1]}" in SERVICES["prometheus"]["command"]


# All of them ------------------------------------------------------------------------------------


def test_no_secret_is_in_the_repository() -> None:
    ignored = (REPOSITORY / ".gitignore").read_text(encoding="utf-8").split()
    assert {".env", "deploy/secrets/"} <= set(ignored)
    for one in SERVICES.values():
        for name, value in one.get("environment", {}).items():
            assert "PASSWORD" not in name or value.startswith("${DATABASE_PASSWORD:?")
    for path in [*DEPLOY.rglob("*"), REPOSITORY / "docs" / "service.md", REPOSITORY / "Dockerfile"]:
        if path.is_file() and "secrets" not in path.parts:
            assert not re.search(r"dt_[A-Za-z0-9_-]{43}|BEGIN [A-Z ]*PRIVATE", path.read_text())


def test_installed_linters_agree(tmp_path: Path) -> None:
    """Each linter on the path checks its files. None of them is required."""
    here = tmp_path / "nginx.conf"
    here.write_text(NGINX.replace("/tmp/", f"{tmp_path}/"))
    linters = {
        "nginx": ["-t", "-q", "-c", str(here)],
        "promtool": ["check", "config", "--syntax-only", "deploy/prometheus.yml"],
        "hadolint": ["--ignore", "DL3013", "Dockerfile"],
        "kubeconform": ["-strict", "-summary", "deploy/kubernetes.yaml"],
        "docker-compose": ["-f", "deploy/compose.yaml", "config", "--quiet"],
        "shellcheck": ["-x", "scripts/load", ".ci/run"],
    }
    for name, words in linters.items():
        if shutil.which(name):
            done = subprocess.run(
                [name, *words], cwd=REPOSITORY, capture_output=True, text=True, check=False,
                env={**os.environ, "DATABASE_PASSWORD": "x"},
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr


def documented(name: str) -> list[str]:
    """Return the lines of shell in a document's code blocks, continued lines joined."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return re.sub(r"\\\n\s*", "", "".join(blocks)).splitlines()


@pytest.mark.parametrize("name", ["docs/service.md", "README.md"])
def test_documented_commands_are_taken(name: str) -> None:
    """Every `python -m domino_tune …`, and every command that runs in the image."""
    starts = re.compile(r"python -m domino_tune |run --rm api ")
    behind = [starts.split(line)[1] for line in documented(name) if starts.search(line)]
    asked = [shlex.split(words.partition("|")[0], comments=True) for words in behind]
    assert len(asked) >= 2
    for words in asked:
        if "--help" not in words:
            parsed(words)


def test_documented_dask_commands_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for line in documented("docs/service.md") if line.startswith("dask ")]
    for line in lines:
        _, name, *words = shlex.split(line)
        for file in filter(re.compile(r"\.pem$").search, words):
            Path(file).touch()
        with DASK[name].make_context(name, words) as context:
            assert Path(context.params["tls_ca_file"]).name == "ca.pem"
    assert len(lines) == 2
