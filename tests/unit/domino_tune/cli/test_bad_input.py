"""Whatever a user gets wrong: exit code 2, a message that helps, nothing written half-way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domino_tune.cli.commands import main
from domino_tune.store.plans import Predicted, _checksum
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.verbs import models
from tests.support.runs import Runner

PROFILE = "--profile"
WORKLOAD = (
    "--profile", "a100-sxm", "--tp", "8", "--seq-length", "1024", "--micro-batch-size", "16",
)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["profile", "list"], ["`profile list`", "Did you mean `profiles list`?"]),
        (["profiles", "lst"], ["Did you mean `profiles list`?", "check, diff, import, list"]),
        (["simulat"], ["Did you mean `simulate`?"]),
        (["tune", "--seeed", "3"], ["--seeed", "--seed"]),
        (["simulate", "--model", "gpt3-13", *WORKLOAD], ["'gpt3-13b'", "llama3-405b"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, "--profile", "h100"], ["a100-sxm"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, "--order", "gredy"], ["'greedy'", "paper"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, "--dtype", "bf61"], ["'bf16'", "fp64"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, "--set", "num_heds=8"], ["num_heads"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, "--set", "vocab_size"], ["KEY=VALUE"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, "--set", "n_layer=x"], ["whole number"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, "--set", "hidden_dropout=nan"], ["finite"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, "--tp", "0"], ["--tp", "≥ 1"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, "--tp", "-8"], ["--tp"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, "--tp", "nan"], ["--tp"]),
        (["simulate", "--model", "gpt3-13b"], ["--profile, --tp, --seq-length", "--plan"]),
        (["tune"], ["--model, --profile, --tp"]),
        (["simulate", "--plan", "no.json"], ["'no.json' does not exist"]),
        (["simulate", "--model", "no.json", *WORKLOAD], ["'no.json' does not exist"]),
        (["simulate", "--model", "gpt3-13b", *WORKLOAD, PROFILE, "no.json"], ["does not exist"]),
        (["whatif", "--model", "gpt3-13b", *WORKLOAD], ["link_bandwidth", "--sweep"]),
        (["whatif", "--model", "gpt3-13b", *WORKLOAD, "--change", "conten=2x"], ["'contention'"]),
        (["whatif", "--model", "gpt3-13b", *WORKLOAD, "--change", "tp=-2"], ["tp cannot be '-2'"]),
        (["whatif", "--model", "gpt3-13b", *WORKLOAD, "--change", "gpu_flops=0x"], ["gpu_flops"]),
        (
            ["whatif", "--model", "gpt3-13b", *WORKLOAD, "--sweep", "link_latency=1x,2gbit"],
            ["2gbit", "5us"],
        ),
        (
            ["profiles", "import", "x", "--format", "f", "--into", "a100-sxm", "--name", "n"],
            ["'x' does not exist"],
        ),
    ],
)  # fmt: skip
def test_unknown_and_malformed(run: Runner, arguments: list[str], expected: list[str]) -> None:
    message = run.refused(*arguments)
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tp", "16"], ["num_attention_heads = 40", "tp = 16", "num_attention_heads=64"]),
        (["--tp", "3"], ["num_attention_heads = 40", "2 or 4"]),
        (["--set", "intermediate_size=20481"], ["intermediate_size = 20481", "20480 or 20488"]),
        (["--col-slices", "3"], ["hidden_size = 5120", "3", "2 and 4"]),
        (["--row-slices", "17"], ["--row-slices", "16"]),
        (["--row-slices", "8", "--micro-batch-size", "4"], ["row_slices ≤ 4"]),
        (["--order", "inter", "--row-slices", "3"], ["2 row slices", "--order intra"]),
        (["--order", "intra", "--set", "wgrad=fill"], ["'fill'", "'greedy'"]),
        (["--strategy", "megatron", "--row-slices", "2"], ["unsliced", "--row-slices"]),
        (["--col-slices", "2", "--set", "mlp_col_slices=4"], ["--set attn_col_slices"]),
        (["--set", "comm_ctas=8"], ["comm_ctas in [0]"]),
        (["--seq-length", "4096", "--micro-batch-size", "1"], ["--set max_position_embeddings"]),
        (["--nodes", "3"], ["3", "use one of 1, 2, 4, 8"]),
        (["--pp", "3"], ["num_hidden_layers = 40", "--set pp_layers=13,14,13"]),
        (["--recompute", "per-op", "--no-sequence-parallel"], ["leave out --no-sequence-parallel"]),
        (
            ["--model", "qwen3-30b-a3b", "--tp", "1", "--ep", "256", "--dp", "256"],
            ["num_experts = 128", "use --ep 1, 2, 4, 8"],
        ),
        (
            ["--model", "qwen3-30b-a3b", "--tp", "2", "--dp", "4", "--ep", "8"],
            ["etp 2 × ep 8", "use --set etp=1, or an --ep that divides 4"],
        ),
        (["--tp", "8", "--dp", "4", "--nodes", "2"], ["use one of 4, 8, 16, 32"]),
        (["--set", "num_attention_heads=48"], ["hidden_size = 5120", "40 or 64"]),
    ],
)
def test_what_does_not_fit(run: Runner, options: list[str], expected: list[str]) -> None:
    message = run.refused("simulate", "--model", "gpt3-13b", *WORKLOAD, *options)
    for part in expected:
        assert part in message


@pytest.mark.parametrize("section", ["gemm", "attention", "pointwise", "collectives"])
def test_profile_without_a_section(run: Runner, section: str) -> None:
    path = run.folder / "poor.json"
    without: dict[str, Any] = {section: None}
    save_profile(replace(load_profile("h100-dgx"), name="poor", **without), path)
    message = run.refused("simulate", *run.workload, "--profile", str(path))
    assert f"no '{section}' section" in message


def test_profile_without_contention_warns(run: Runner) -> None:
    path = run.folder / "poor.json"
    save_profile(replace(load_profile("h100-dgx"), name="poor", contention=None), path)
    done = run("simulate", *run.workload, "--profile", str(path))
    assert done.code == 0
    assert "no contention section" in done.err


def test_far_outside_the_profile_warns(run: Runner) -> None:
    longer = (
        "--profile", "h100-dgx", "--seq-length", "65536", "--micro-batch-size", "2", "--set",
        "num_hidden_layers=2",
    )  # fmt: skip
    done = run("simulate", "--model", "llama3-8b", *WORKLOAD, *longer, "--json")
    assert done.code == 0
    result = json.loads(done.out)
    assert result["confidence"] == "low"
    assert any("outside the profile's range" in text for text in result["warnings"])


class TestPlanFiles:
    @pytest.fixture
    def plan(self, run: Runner) -> Path:
        return run.plan()

    def refuse(self, run: Runner, plan: Path, text: str) -> str:
        bad = run.folder / "bad.json"
        bad.write_text(text)
        message = run.refused("plan", "show", str(bad))
        assert run.refused("simulate", "--plan", str(bad)) == message
        return message

    def edited(self, path: Path, **changes: Any) -> str:
        """The file with keys changed, and the right checksum put on it."""
        content = json.loads(path.read_text()) | changes
        del content["checksum"]
        content["checksum"] = _checksum(content)
        return json.dumps(content)

    def test_truncated(self, run: Runner, plan: Path) -> None:
        text = plan.read_text()
        for length in (0, 1, len(text) // 2, len(text) - 2):
            assert "truncated" in self.refuse(run, plan, text[:length])

    def test_tampered(self, run: Runner, plan: Path) -> None:
        text = plan.read_text().replace('"seq_length": 256', '"seq_length": 255')
        assert "checksum" in self.refuse(run, plan, text)

    def test_numbers_may_be_written_otherwise(self, run: Runner, plan: Path) -> None:
        """As by a program that reads JSON and writes it again: 2048.0 becomes 2048."""
        content = self.edited(plan, predicted=dict.fromkeys(Predicted.__dataclass_fields__, 8.0))
        other = run.folder / "other.json"
        other.write_text(content.replace("8.0", "8"))
        assert run("plan", "show", str(other)).code == 0

    def test_not_a_number(self, run: Runner, plan: Path) -> None:
        text = plan.read_text()
        for value in ("NaN", "Infinity", "1e999"):
            bad = text.replace('"peak_memory_gib": ', f'"peak_memory_gib": {value}, "x": ')
            assert "finite" in self.refuse(run, plan, bad)

    def test_keys(self, run: Runner, plan: Path) -> None:
        assert "Unknown key 'more'" in self.refuse(run, plan, self.edited(plan, more=1))
        message = self.refuse(run, plan, self.edited(plan, prediction=1))
        assert "Did you mean 'predicted'? Known: cluster, model" in message
        twice = plan.read_text().replace('"schema": 4,', '"schema": 4, "schema": 4,', 1)
        assert "twice" in self.refuse(run, plan, twice)
        content = json.loads(plan.read_text())
        del content["workload"]
        assert "'workload' is missing" in self.refuse(run, plan, json.dumps(content))

    def test_keys_that_have_a_default_are_required_too(self, run: Runner, plan: Path) -> None:
        inner = json.loads(plan.read_text())["workload"]
        del inner["dtype"]
        message = self.refuse(run, plan, self.edited(plan, workload=inner))
        assert "workload: the key 'dtype' is missing" in message

    def test_other_schemas(self, run: Runner, plan: Path) -> None:
        assert "newer" in self.refuse(run, plan, self.edited(plan, schema=5))
        for schema in (1, 2, 3):
            older = self.refuse(run, plan, self.edited(plan, schema=schema))
            assert f"schema {schema} is from before" in older
            assert "make the plan again with `domino-tune tune --out FILE`" in older
        assert "'4' is not 4" in self.refuse(run, plan, self.edited(plan, schema="4"))

    def test_content_that_no_plan_has(self, run: Runner, plan: Path) -> None:
        content = json.loads(plan.read_text())
        inner = {**content["plan"], "row_slices": 99}
        assert "1 … 16" in self.refuse(run, plan, self.edited(plan, plan=inner))
        inner = {**content["workload"], "micro_batch_size": -1}
        assert "≥ 1" in self.refuse(run, plan, self.edited(plan, workload=inner))
        inner = {**content["workload"], "micro_batch_size": 2.0}
        message = self.refuse(run, plan, self.edited(plan, workload=inner))
        assert "workload.micro_batch_size: must be a valid integer, got 2.0" in message

    def test_order_that_is_not_the_plans(self, run: Runner, plan: Path) -> None:
        order = json.loads(plan.read_text())["order"]
        order["forward"]["tokens"] = order["forward"]["tokens"][1:]
        bad = self.edited(plan, order=order)
        assert "every fragment once" in self.refuse(run, plan, bad)
        order["forward"]["tokens"] = ["nonsense"]
        bad = self.edited(plan, order=order)
        assert "Bad token" in self.refuse(run, plan, bad)
        order["forward"] = {"stride": True, "tokens": []}
        bad = self.edited(plan, order=order)
        assert "order.forward.stride: must be a valid integer, got True" in self.refuse(
            run, plan, bad
        )

    def test_plan_and_slices_together(self, run: Runner, plan: Path) -> None:
        message = run.refused("simulate", "--plan", str(plan), "--row-slices", "2")
        assert "leave out --row-slices" in message


class TestModelFiles:
    def refuse(self, run: Runner, content: Any) -> str:
        path = run.folder / "model.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return run.refused("simulate", "--model", str(path), *run.workload[2:])

    def test_not_json(self, run: Runner) -> None:
        assert "truncated" in self.refuse(run, '{"name": ')
        assert "one JSON object" in self.refuse(run, "[]")

    def test_keys(self, run: Runner) -> None:
        tiny = json.loads(Path(run.tiny).read_text())
        assert "hidden_size" in self.refuse(run, {**tiny, "hiden_size": 4})
        message = self.refuse(run, {**tiny, "hidden_size": "512"})
        assert "hidden_size: must be a valid integer, got '512'" in message
        assert "≥ 1" in self.refuse(run, {**tiny, "num_hidden_layers": 0})
        assert "'vocab_size' is missing" in self.refuse(
            run, {key: value for key, value in tiny.items() if key != "vocab_size"}
        )

    def test_config_json(self, run: Runner) -> None:
        llama = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8}
        assert "num_hidden_layers" in self.refuse(run, llama)
        assert "model_type" in self.refuse(run, {**llama, "model_type": "lama"})
        assert "mixture" in self.refuse(run, {**llama, "num_local_experts": 8})


class TestNothingHalfWritten:
    @pytest.mark.parametrize("flag", ["--out", "--trace", "--report"])
    def test_no_such_folder(self, run: Runner, flag: str) -> None:
        before = run.files()
        path = str(run.folder / "no" / "such" / "file")
        assert "no folder" in run.refused("tune", *run.workload, flag, path)
        assert "is a folder" in run.refused("tune", *run.workload, flag, str(run.folder))
        assert run.files() == before

    @pytest.mark.parametrize(
        "flags", [("--out", "--report"), ("--trace", "--report"), ("--out", "--trace")]
    )
    def test_two_results_into_one_file(self, run: Runner, flags: tuple[str, str]) -> None:
        (run.folder / "link").symlink_to("one")
        places = (flags[0], str(run.folder / "one"), flags[1], str(run.folder / "link"))
        message = run.refused("tune", *run.workload, *places)
        assert all(flag in message for flag in flags)
        assert run.files() == {"link", "tiny.json"}

    def test_a_name_too_long(self, run: Runner) -> None:
        message = run.refused("tune", *run.workload, "--out", str(run.folder / ("x" * 300)))
        assert "too long" in message

    def test_a_failed_command_leaves_the_old_file(self, run: Runner) -> None:
        path = run.folder / "plan.json"
        path.write_text("old")
        run.refused("tune", *run.workload, "--micro-batch-size", "99999", "--out", str(path))
        assert path.read_text() == "old"
        assert run.files() == {"plan.json", "tiny.json"}

    def test_failed_import_leaves_no_profile(self, run: Runner) -> None:
        table = run.folder / "table.csv"
        table.write_text("m,n,k,us\n128,128,128,-1\n")
        message = run.refused(
            "profiles", "import", str(table),
            "--format", "gemm-csv", "--into", "h100-dgx", "--name", "mine",
        )  # fmt: skip
        assert "line 2" in message
        assert run.files() == {"table.csv", "tiny.json"}


def test_interrupted(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(request: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "models", interrupt)
    done = run("models")
    assert done.code == 130
    assert done.err == "error: interrupted.\n"


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(request: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(models, "models", fail)
    with pytest.raises(RuntimeError):
        main(["models"])
