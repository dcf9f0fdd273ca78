"""Deployments against the program: its command lines, its limits, what its image installs.

No container engine is needed: each command is parsed by the program that a container would run.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from importlib.metadata import requires
from ipaddress import ip_network
from pathlib import Path

import pytest
from dask.utils import parse_bytes
from distributed.cli import dask_scheduler, dask_worker
from packaging.requirements import Requirement

from api.parts import Settings
from api.routes.health import PING_S
from domino_tune.base.origin import VERSION
from domino_tune.verbs.tune_measured import check_measurable
from simulator.errors import InputError
from tests.conftest import REPOSITORY
from tests.real.deployment import (
    COMPOSE,
    CONTAINER,
    DEPLOY,
    IMAGE,
    KINDS,
    NGINX,
    POD,
    SERVICES,
    documented,
    parsed,
    serving,
    stage,
)
from tests.support.load.loads import DEPLOYED_MIB, MIB

SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sbatch"))
DASK = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}
LIMITS = Settings(database_url="sqlite://")
GRACE_S = 10
"""After SIGTERM, all jobs are back in the queue within this time."""
LONGEST_WAIT_S = 30
"""The longest wait that `Prefer: wait` may ask for."""


def words_of(script: Path, folder: Path, **variables: str) -> list[str]:
    """Return what a batch script gives the program, run by bash where `srun` and `python` print."""
    for name in ("srun", "python"):
        (folder / name).write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
        (folder / name).chmod(0o755)
    environment = {"PATH": str(folder), "HOME": str(folder), "SLURM_CPUS_PER_TASK": "8"}
    done = subprocess.run(
        ["/bin/bash", str(script)], env=environment | variables, cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    words = done.stdout.split("\0")[:-1]
    at = words.index("-m")
    assert words[at + 1] == "domino_tune"
    return words[at + 2 :]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_bash_and_the_command_line_take_a_batch_script(script: Path, tmp_path: Path) -> None:
    words = words_of(script, tmp_path)
    assert words[0] == script.stem
    parsed(words)
    assert "--report-to" not in words


def test_what_a_batch_job_measured_goes_to_the_job_that_tuned(tmp_path: Path) -> None:
    job = "https://tuner.example/v1/jobs/job_0"
    words = words_of(DEPLOY / "slurm" / "validate.sbatch", tmp_path, DOMINO_TUNE_JOB=job)
    assert words[-2:] == ["--report-to", job]
    parsed(words)


def test_measured_tuning_is_allowed_where_its_script_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the environment of a batch script, which starts it once; srun would once a rank."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
    assert "\nsrun " not in (DEPLOY / "slurm" / "measure.sbatch").read_text()
    check_measurable()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    with pytest.raises(InputError, match="cannot run under Slurm"):
        check_measurable()


def needed(extras: set[str]) -> set[str]:
    """Return the names of all distributions that domino_tune with ``extras`` installs."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
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


def test_the_image_has_what_it_needs_and_no_torch() -> None:
    install = next(rest for word, rest in stage("service") if word == "RUN" and "pip" in rest)
    extras = re.search(r"'\.\[([a-z,]+)\]'", install)
    assert extras is not None
    names = needed(set(extras[1].split(",")))
    assert {"fastapi", "uvicorn", "sqlalchemy", "psycopg", "psycopg-binary", "distributed"} <= names
    assert "torch" not in names


def test_the_image_is_built_from_what_it_copies() -> None:
    """The ignore file does not exclude what the build reads."""
    ignored = (REPOSITORY / ".dockerignore").read_text("utf-8").split()
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "api", "domino_tune"):
        assert f"!{name}" in ignored


@pytest.mark.parametrize(
    "words", [json.loads(IMAGE["CMD"]), SERVICES["api"]["command"], CONTAINER["args"]]
)
def test_containers_serve_what_the_command_line_takes(words: list[str]) -> None:
    request = serving(words)
    assert (request.host, str(request.port)) == ("0.0.0.0", IMAGE["EXPOSE"])


def test_containers_run_this_version() -> None:
    """Under a name that can be pushed, the same in all files."""
    name = f"registry.example.com/team/domino-tune:{VERSION}"
    images = {one["image"] for one in (*SERVICES.values(), CONTAINER)}
    ours = {image for image in images if "domino-tune" in image}
    assert ours == {name, f"${{DOMINO_TUNE_IMAGE:-{name}}}"}
    assert f"export DOMINO_TUNE_IMAGE={name}" in documented("docs/service.md")


@pytest.mark.parametrize("name", DASK)
def test_dask_takes_what_compose_gives_it(name: str) -> None:
    assert SERVICES[name]["entrypoint"] == ["dask"]
    verb, *words = SERVICES[name]["command"]
    assert verb == name
    with DASK[name].make_context(name, list(words)) as context:
        given = context.params
    if name == "worker":
        slices = serving(SERVICES["api"]["command"]).workers
        assert slices is not None
        assert int(given["n_workers"]) == COMPOSE["services"]["api"]["deploy"]["replicas"] * slices
        assert parse_bytes(given["memory_limit"]) >= 2 << 30


def test_compose_gives_the_memory_that_loads_may_take() -> None:
    assert parse_bytes(SERVICES["api"]["mem_limit"].replace("g", "GiB")) == DEPLOYED_MIB * MIB


def test_containers_wait_until_jobs_are_back_in_the_queue() -> None:
    assert int(SERVICES["api"]["stop_grace_period"].removesuffix("s")) > GRACE_S
    _, asleep_s = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert POD["terminationGracePeriodSeconds"] > int(asleep_s) + GRACE_S
    assert CONTAINER["readinessProbe"]["timeoutSeconds"] > PING_S


def test_the_ingress_lets_the_service_refuse() -> None:
    given = KINDS["Ingress"]["metadata"]["annotations"]
    stated = {name.rpartition("/")[2]: value for name, value in given.items()}
    assert int(stated["proxy-body-size"].removesuffix("m")) << 20 > LIMITS.upload_bytes
    assert int(stated["proxy-read-timeout"]) > LONGEST_WAIT_S
    assert int(stated["limit-rps"]) >= LIMITS.rate_per_s
    (network,) = serving(CONTAINER["args"]).trusted_proxy
    assert ip_network(network).is_private


def seconds(directive: str, text: str = NGINX) -> int:
    """Return a time of the proxy's configuration, in seconds."""
    found = re.search(rf"^\s*{directive} (\d+)([smh]);", text, re.MULTILINE)
    assert found is not None, directive
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def location(opening: str) -> str:
    """Return the text inside one location of the proxy's configuration."""
    return NGINX.partition(f"location {opening} {{")[2].partition("}")[0]


def test_the_proxy_lets_the_service_refuse() -> None:
    """A body that is too large, a caller who asks too often, a wait that is too long."""
    sizes = [int(size) << 20 for size in re.findall(r"client_max_body_size (\d+)m;", NGINX)]
    assert len(sizes) == 2
    assert LIMITS.body_bytes < sizes[0] <= 2 * LIMITS.body_bytes
    assert LIMITS.upload_bytes < sizes[1] <= 2 * LIMITS.upload_bytes
    assert "client_max_body_size" in location("/v1/profiles/")
    rate = re.search(r"limit_req_zone \S+ zone=requests:\d+m rate=(\d+)r/s;", NGINX)
    burst = re.search(r"limit_req zone=requests burst=(\d+) nodelay;", NGINX)
    assert rate is not None
    assert burst is not None
    assert LIMITS.rate_per_s <= int(rate[1])
    assert LIMITS.burst <= int(burst[1])
    assert "limit_req " not in location("/v1/profiles/")  # it would replace the server's
    assert seconds("proxy_read_timeout") > LONGEST_WAIT_S
    for directive in ("client_header_timeout", "client_body_timeout"):
        assert seconds(directive) <= 10


def test_the_proxy_passes_events_on_as_they_come() -> None:
    found = re.search(r"location ~ (\S+events\S*) \{", NGINX)
    assert found is not None
    inside = location(f"~ {found[1]}")
    assert "proxy_buffering off;" in inside
    assert seconds("proxy_read_timeout", inside) >= 3600
    assert re.match(found[1], "/v1/jobs/job_0/events")
    assert not re.match(found[1], "/v1/jobs/job_0/files/plan")


@pytest.mark.parametrize("name", ["docs/service.md", "docs/using.md", "README.md"])
def test_documented_commands_are_taken(name: str) -> None:
    """Every `python -m domino_tune …`, and every command that runs in the image."""
    starts = re.compile(r"python -m domino_tune |^domino-tune |run --rm api ")
    after = [starts.split(line)[1] for line in documented(name) if starts.search(line)]
    asked = [shlex.split(words.partition("|")[0], comments=True) for words in after]
    assert len(asked) >= 2
    for words in asked:
        if "--help" not in words:
            parsed(words)


def test_secrets_are_made_before_the_first_container_needs_them() -> None:
    """By the documented commands, in their order, run in the repository's folder."""
    lines = [line.strip() for line in documented("docs/service.md")]
    first = next(at for at, line in enumerate(lines) if "compose.yaml run" in line)
    before = "\n".join(lines[:first])
    for name in (*SERVICES["api"]["secrets"], *SERVICES["database"]["secrets"]):
        made = Path(COMPOSE["secrets"][name]["file"]).name
        assert re.search(rf"-(out|keyout) {re.escape(made)}\b", before), name
    for at, line in enumerate(lines):
        if line.startswith("cd "):  # what follows runs there only
            assert lines[at - 1] == "("


def test_the_first_token_reaches_the_database_as_its_pods_do() -> None:
    lines = documented("docs/service.md")
    (at,) = (at for at, line in enumerate(lines) if "kubectl apply" in line)
    told = " ".join(lines[at - 2 : at])
    pod = {item["name"]: item.get("value") for item in CONTAINER["env"]}
    assert f"PGSSLMODE={pod['PGSSLMODE']}" in told
    assert f"PGSSLROOTCERT={Path(pod['PGSSLROOTCERT'] or '').name}" in told
