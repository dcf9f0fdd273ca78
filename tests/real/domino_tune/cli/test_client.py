"""The command line at a server: the same output as without one, byte for byte except for times."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from domino_tune.client import Client
from domino_tune.requests import TuneRequest
from tests.real.domino_tune.serving import Served, command, environment, process, served
from tests.support.processes import PATIENCE_S, started, wait_until
from tests.support.runs import without_progress
from tests.support.validation_cases import write_files

TUNE = (
    "tune", "--model", "gpt3-1.3b", "--profile", "h100-dgx", "--tp", "2", "--seq-length", "256",
    "--micro-batch-size", "2", "--set", "num_hidden_layers=4", "--search", "random",
    "--trials", "4",
)  # fmt: skip
LONG = (
    "tune", "--model", "gpt3-13b", "--profile", "h100-dgx", "--tp", "8", "--seq-length", "2048",
    "--micro-batch-size", "8", "--tune-also", "micro_batch_size", "--search", "random",
    "--trials", "100000",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server")) as running:
        yield running


def without_seconds(text: str) -> str:
    return re.sub(r'\d+\.\d s\. Among|"seconds": [\d.]+', "TIME", text)


LAYOUTS = (
    "layout", "--model", "gpt3-1.3b", "--profile", "h100-dgx", "--seq-length", "256", "--gpus", "4",
    "--set", "num_hidden_layers=4", "--global-batch-size", "4", "--pp", "1", "--recompute", "none",
)  # fmt: skip
SCALE = (
    "scale", "--model", "gpt3-1.3b", "--profile", "h100-dgx", "--tp", "2", "--seq-length", "512",
    "--set", "num_hidden_layers=4", "--global-batch-size", "4", "--gpus", "2,3,4",
    "--pp", "1", "--recompute", "none",
)  # fmt: skip
RUNS = (
    "model,seq_length,tp,micro_batch_size,overrides,measured_ms\n"
    "gpt3-1.3b,512,4,4,num_hidden_layers=2,12\ngpt3-1.3b,512,2,2,num_hidden_layers=2,11\n"
)


PLAN = (
    "--model", "gpt3-1.3b", "--profile", "h100-dgx", "--tp", "2", "--seq-length", "256",
    "--micro-batch-size", "2", "--set", "num_hidden_layers=4",
)  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", *PLAN),
        ("simulate", *PLAN, "--json"),
        ("whatif", *PLAN, "--change", "link_bandwidth=2x"),
        ("whatif", *PLAN, "--sweep", "tp=1,2,3"),
        ("whatif", *PLAN, "--change", "tp=1", "--retune", "--json"),
    ],
)
def test_the_same_is_predicted(server: Served, tmp_path: Path, words: tuple[str, ...]) -> None:
    here = command(tmp_path, *words)
    there = command(tmp_path, *words, "--server", server.url)
    assert (there.returncode, without_progress(there.stderr)) == (0, without_progress(here.stderr))
    assert there.stdout == here.stdout != ""


def test_a_server_predicts_without_files(tmp_path: Path) -> None:
    at = ("--server", "http://h:1")
    for words, flags in (
        (("simulate", "--trace", "t.json", "--out", "p.json"), "--trace and --out"),
        (("whatif", "--report", "r.html"), "--report"),
    ):
        done = command(tmp_path, *words, *PLAN, *at)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{flags} cannot be written of a server's answer" in done.stderr


def test_the_same_is_printed(server: Served, tmp_path: Path) -> None:
    here = process(tmp_path, *TUNE)
    there = process(tmp_path, *TUNE, "--server", server.url)
    assert (there.returncode, without_progress(there.stderr)) == (0, without_progress(here.stderr))
    assert without_seconds(there.stdout) == without_seconds(here.stdout)
    assert "TIME" in without_seconds(here.stdout)


@pytest.mark.parametrize("words", [LAYOUTS, SCALE], ids=["layouts", "scale"])
def test_the_same_is_printed_of_layouts(
    server: Served, tmp_path: Path, words: tuple[str, ...]
) -> None:
    page = tmp_path / "page.html"
    here = command(tmp_path, *words, "--json")
    there = command(tmp_path, *words, "--json", "--server", server.url, "--report", str(page))
    assert (there.returncode, without_progress(there.stderr)) == (0, without_progress(here.stderr))
    assert without_seconds(there.stdout) == without_seconds(here.stdout)
    if words == SCALE:
        assert "Tokens a second a GPU, by GPUs" in page.read_text("utf-8")


@pytest.fixture(scope="module")
def calibrate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The arguments of a calibration."""
    runs = tmp_path_factory.mktemp("runs") / "runs.csv"
    runs.write_text(RUNS)
    return "calibrate", "--profile", "h100-dgx", "--runs", str(runs), "--json", "--name", "mine"


@pytest.fixture(scope="module")
def calibrated(
    server: Served, calibrate: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The output of the server's calibration."""
    done = command(tmp_path_factory.mktemp("home"), *calibrate, "--server", server.url)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_calibration_at_the_server(
    server: Served, calibrate: tuple[str, ...], calibrated: str, tmp_path: Path
) -> None:
    here = json.loads(command(tmp_path, *calibrate).stdout)
    found = json.loads(calibrated)
    assert (found["parts"], found["runs"]) == (here["parts"], here["runs"])
    assert found["path"] is None
    with Client(server.url) as client:
        assert client.get_profile("mine")[0]


@pytest.mark.usefixtures("calibrated")
def test_jobs_are_listed_by_label_kind_and_state(server: Served, tmp_path: Path) -> None:
    with Client(server.url) as client:
        job = client.jobs(kind="calibrate").items[0]
        assert client.set_label(job.id, "Night run").label == "Night run"
        assert [one.id for one in client.jobs(q="NIGHT fitted mine h100").items] == []
        assert [one.id for one in client.jobs(q="NIGHT mine").items] == [job.id]
    words = ("--search", "night", "--kind", "calibrate", "--state", "done", "--json")
    found = command(tmp_path, "jobs", "list", "--server", server.url, *words)
    assert [one["label"] for one in json.loads(found.stdout)] == ["Night run"]
    table = command(tmp_path, "jobs", "list", "--server", server.url, "--search", "night")
    assert job.id in table.stdout
    shown = command(tmp_path, "jobs", "show", job.id, "--server", server.url)
    assert "Kept as mine." in shown.stdout
    odd = command(tmp_path, "jobs", "list", "--server", server.url, "--kind", "dance")
    assert odd.returncode == 2


def test_the_same_files_are_written(server: Served, tmp_path: Path) -> None:
    written = {}
    for place, more in (("here", ()), ("there", ("--server", server.url))):
        folder = tmp_path / place
        folder.mkdir()
        names = ("plan.json", "trace.json", "report.html")
        words = [
            word
            for flag, name in zip(("--out", "--trace", "--report"), names, strict=True)
            for word in (flag, str(folder / name))
        ]
        assert command(tmp_path, *TUNE, *words, *more).returncode == 0
        again = command(tmp_path, *TUNE, "--trace", str(folder / "trace.json.gz"), *more)
        assert again.returncode == 0
        written[place] = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(written["there"]) == {"plan.json", "trace.json", "trace.json.gz", "report.html"}
    for name, data in written["here"].items():
        if name == "report.html":  # it says how to make it again, and how long it took
            assert shown(written["there"][name]) == shown(data)
        else:
            assert written["there"][name] == data


def shown(page: bytes) -> str:
    """Return a page without the command that made it and the time that it took."""
    text = re.sub(r"python -m domino_tune (tune|layout|scale) [^<]*", "COMMAND", page.decode())
    return re.sub(r"<div><dt>Time</dt><dd>[\d.]+ s</dd></div>", "", text)


@pytest.mark.parametrize(
    "wrong", [("--set", "num_hidden_layer=4"), ("--micro-batch-size", "4096"), ("--tp", "3")]
)
def test_the_same_exit_code(server: Served, tmp_path: Path, wrong: tuple[str, ...]) -> None:
    here = command(tmp_path, *TUNE, *wrong)
    there = command(tmp_path, *TUNE, *wrong, "--server", server.url)
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout) == (2, "")
    assert there.stderr.startswith("error: ")
    assert "Traceback" not in there.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--model", "a/config.json", "--server", "http://h:1"), "is a file"),
        (("--server", "h:1"), "no server's URL"),
        (("--server", "http://h:1", "--token-file", "/none"), "cannot be read"),
        (("--token-file", "/none"), "--token-file needs --server"),
    ],
)
def test_what_is_refused_here(tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    done = command(tmp_path, *TUNE, *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_nobody_there_is_6(tmp_path: Path) -> None:
    done = command(tmp_path, *TUNE, "--server", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (6, "")
    assert "http://127.0.0.1:9 cannot be reached" in done.stderr


def test_ctrl_c_deletes_the_job(server: Served, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "domino_tune", *LONG, "--server", server.url]
    with Client(server.url) as client:
        before = {job.id for job in client.jobs(kind="tune").items}

        def made() -> set[str]:
            return {job.id for job in client.jobs(kind="tune").items} - before

        with started(words, env=environment(tmp_path), stderr=subprocess.PIPE) as tuning:
            wait_until(made)  # whether or not the command line has received the answer
            tuning.send_signal(signal.SIGINT)
            assert tuning.communicate(timeout=PATIENCE_S)[1].endswith("error: interrupted.\n")
        assert tuning.returncode == 130
        wait_until(lambda: not made())


def test_jobs_are_listed_stopped_and_deleted(server: Served, tmp_path: Path) -> None:
    at = ("--server", server.url)
    with Client(server.url) as client:
        job = client.submit(
            "tune",
            TuneRequest(
                model="gpt3-13b", profile="h100-dgx", tp=8, seq_length=2048, micro_batch_size=8,
                search="random", trials=100_000,
            ),
        )  # fmt: skip
        wait_until(lambda: client.job(job.id).plain["best"] and client.job(job.id).left)
    running = command(tmp_path, "jobs", "show", job.id, *at)
    assert "running" in running.stdout
    assert "≤ " in running.stdout
    kept = command(tmp_path, "jobs", "stop", job.id, *at)
    assert kept.returncode == 0, kept.stderr
    assert "done until it was told to stop" in kept.stdout
    assert "others may be faster" in kept.stdout
    listed = json.loads(command(tmp_path, "jobs", "list", "--json", *at).stdout)
    assert listed[0]["id"] == job.id
    assert listed[0]["stopped_by"] == "user"
    assert job.id in command(tmp_path, "jobs", "list", "--limit", "1", *at).stdout
    gone = command(tmp_path, "jobs", "delete", job.id, *at)
    assert gone.stdout == f"Job {job.id} is deleted.\n"
    missing = command(tmp_path, "jobs", "show", job.id, *at)
    assert missing.returncode == 2
    assert "There is no job" in missing.stderr


def test_a_token_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(command(tmp_path, "tokens", "add", "ci").stdout)
    secret = (tmp_path / "token").read_text().strip()
    with served(tmp_path) as running:
        there = (*TUNE, "--json", "--server", running.url)
        without = command(tmp_path, *there)
        assert (without.returncode, without.stdout) == (2, "")
        assert "token" in without.stderr
        assert command(tmp_path, *there, "--token-file", str(tmp_path / "token")).returncode == 0
        assert command(tmp_path, *there, DOMINO_TUNE_TOKEN=secret).returncode == 0
        wrong = command(tmp_path, *there, DOMINO_TUNE_TOKEN=secret[:-1] + "?")
        assert wrong.returncode == 2
        assert secret[:-1] not in wrong.stderr


class Reports:
    """A tune at a server, of a question that this machine can run, and how to validate it."""

    def __init__(self, server: Served, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.profile = write_files(folder).profile
        self.plan = str(folder / "plan.json")
        config = {
            "model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 256,
            "n_positions": 32, "attn_pdrop": 0.0,
        }  # fmt: skip
        with Client(server.url) as client:
            client.add_model("small", json.dumps(config).encode())
            client.put_profile("here", Path(self.profile).read_bytes())
            tuned = command(
                folder, "tune", "--model", "small", "--profile", "here", "--tp", "2",
                "--seq-length", "32", "--micro-batch-size", "4", "--dtype", "fp32", "--search",
                "random", "--trials", "2", "--server", server.url, "--out", self.plan,
            )  # fmt: skip
            assert tuned.returncode == 0, tuned
            self.job = client.jobs(kind="tune").items[0].id

    def url(self, server: str) -> str:
        return f"{server}/v1/jobs/{self.job}"

    def validate(self, to: str, *more: str) -> subprocess.CompletedProcess[str]:
        options = ("--plan", self.plan, "--profile", self.profile, "--backend", "gloo")
        return command(
            self.folder, "validate", *options, "--rounds", "3", "--json", "--report-to", to, *more
        )

    def received(self) -> list[dict[str, object]]:
        with Client(self.server.url) as client:
            found = client.jobs(kind="validate", of=self.job).items
            return [dict(client.job(one.id).result()) for one in reversed(found)]

    def unsent(self) -> list[Path]:
        return sorted((self.folder / "unsent").glob("*"))


@pytest.fixture(scope="module")
def reports(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    pytest.importorskip("torch")
    return Reports(server, tmp_path_factory.mktemp("reports"))


def test_measured_results_are_reported(reports: Reports) -> None:
    before = len(reports.received())
    done = reports.validate(reports.url(reports.server.url))
    assert done.returncode == 0, done.stderr
    (mine,) = reports.received()[before:]
    assert mine["measured"] == json.loads(done.stdout)
    assert reports.unsent() == []


def test_what_cannot_be_sent_is_kept_and_can_be_sent_again(reports: Reports) -> None:
    before = len(reports.received())
    nobodys = f"{reports.server.url}/v1/jobs/job_{'0' * 32}"
    done = reports.validate(nobodys, "--max-error", "1e-9%")
    assert done.returncode == 3, done.stderr  # the prediction is off, as the measurement says
    assert "were not sent; they are saved in" in done.stderr
    (unsent,) = reports.unsent()
    assert json.loads(unsent.read_bytes()) == json.loads(done.stdout)
    said = re.search(r"Send them with: python -m domino_tune (send .*)\n", done.stderr)
    assert said
    words, copy = said[1].split()[:-1], unsent.read_bytes()
    assert command(reports.folder, *words, reports.url("http://127.0.0.1:9")).returncode == 6
    assert unsent.exists()
    for _ in range(2):  # the second time as if the first answer was lost
        unsent.write_bytes(copy)
        sent = command(reports.folder, *words, reports.url(reports.server.url))
        assert sent.returncode == 0, sent
        assert not unsent.exists()
    assert len(reports.received()) == before + 1


def test_a_bad_place_is_refused_before_anything_is_run(reports: Reports) -> None:
    for url in (reports.server.url, "ftp://x/v1/jobs/job_0"):
        done = reports.validate(url)
        assert (done.returncode, done.stdout) == (2, "")
