"""plan show and export, models, and the profiles verbs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from domino_tune.requests import ExportFormat
from domino_tune.store.formats.megatron import megatron_arguments, training_arguments
from domino_tune.store.plans import save_plan
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.plan import DOCUMENTS, RUNS, export_plan
from simulator.case import Case
from simulator.dtypes import MS_PER_NS
from simulator.errors import InfeasiblePlanError
from simulator.plan import SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload
from tests.support.plans import (
    DOMINO,
    SHARDED,
    USERBUFFERS,
    WORKLOAD,
    plan_file,
    profile,
)
from tests.support.runs import Runner

TWO_SLICES = replace(DOMINO, sequence_parallel=False)


@pytest.fixture
def plan(run: Runner) -> Path:
    return run.plan()


def test_show(run: Runner, plan: Path) -> None:
    done = run("plan", "show", str(plan))
    assert done.code == 0
    for words in ("row_slices", "predicted iteration", "forward order", "attn.norm:0"):
        assert words in done.out
    assert json.loads(run("plan", "show", str(plan), "--json").out) == json.loads(plan.read_text())


def test_export_env(run: Runner, plan: Path) -> None:
    done = run("plan", "export", str(plan), "--to", "env")
    assert done.out == "export CUDA_DEVICE_MAX_CONNECTIONS=1\nexport TORCH_NCCL_HIGH_PRIORITY=1\n"


@pytest.mark.parametrize(("order", "said"), [("free", ""), ("comm_first", "of their stream")])
def test_one_hardware_queue_only_where_the_launch_order_needs_it(
    run: Runner, order: str, said: str
) -> None:
    path = run.folder / f"{order}.json"
    words = ("--set", f"launch_order={order}", "--out", str(path))
    search = ("--search", "random", "--trials", "2")
    assert run("tune", *run.workload, *search, *words).code == 0
    done = run("plan", "export", str(path), "--to", "env")
    assert "export CUDA_DEVICE_MAX_CONNECTIONS" not in done.out
    assert said in done.out


def test_export_megatron_to_a_file(run: Runner, plan: Path) -> None:
    path = run.folder / "args.sh"
    assert run("plan", "export", str(plan), "--to", "megatron", "--out", str(path)).out == ""
    text = path.read_text()
    for line in ("    --num-layers 6\n", "    --tensor-model-parallel-size 2\n", "    --bf16\n"):
        assert line in text


def test_a_plan_that_deepspeed_cannot_run_is_never_exported_to_it(run: Runner, plan: Path) -> None:
    path = run.folder / "args.sh"
    message = run.refused("plan", "export", str(plan), "--to", "deepspeed", "--out", str(path))
    assert "tune --target deepspeed" in message
    assert not path.exists()
    assert "Did you mean" in run.refused("plan", "export", str(plan), "--to", "megatrn")


def test_what_deepspeed_cannot_run_is_no_advice_to_leave_out_an_option(run: Runner) -> None:
    """Nobody gave --target; the search would say to leave it out."""
    gated = plan_file(DOMINO, workload=replace(WORKLOAD, seq_length=2048))
    with pytest.raises(InfeasiblePlanError, match="cannot run llama3-8b's MLP") as caught:
        export_plan(gated, "deepspeed")
    assert "--target" not in str(caught.value)
    message = run.refused("tune", *run.workload, "--micro-batch-size", "1", "--target", "deepspeed")
    assert "leave out --target deepspeed" in message


@pytest.mark.parametrize("at_hand", [True, False])
def test_deepspeed_says_what_its_own_order_costs(at_hand: bool) -> None:
    """The cost is what simulating the plan in that order gives."""
    workload = replace(WORKLOAD, seq_length=2048)
    greedy = plan_file(TWO_SLICES, MODELS["gpt3-2.7b"], workload)
    found = profile() if at_hand else load_profile("a100-sxm")
    made = export_plan(greedy, "deepspeed", lambda _: found)
    assert made.settings == {"domino_intra_layer_overlap": False}
    note = made.notes[0]
    assert "in its own order (inter, each weight gradient beside its dgrad), not greedy" in note
    inter = replace(greedy.plan, order="inter", wgrad="eager")
    case = Case(model=greedy.model, workload=workload, cluster=greedy.cluster, profile=profile())
    own_ms = predict(case, inter).makespan_ns * MS_PER_NS
    cost = f"{1345.67 / own_ms:.2f}x instead of 1.09x ({own_ms:,.1f} ms instead of 1,234.6 ms;"
    assert (cost in note) == at_hand
    assert ("baseline 1,345.7 ms" in note) == at_hand


@pytest.mark.parametrize("order", ["inter", "intra"])
def test_deepspeed_runs_its_own_orders_as_planned(order: Any) -> None:
    plan = replace(TWO_SLICES, order=order, wgrad="eager", comm_ctas=16)
    made = export_plan(
        plan_file(plan, MODELS["gpt3-2.7b"], replace(WORKLOAD, seq_length=2048)), "deepspeed"
    )
    assert made.settings == {"domino_intra_layer_overlap": order == "intra"}
    setting, kernels = made.notes
    assert "domino/language_model.py" in setting
    assert "kernels of megatron-te, not PyTorch's" in kernels


@pytest.mark.parametrize("plan", [replace(TWO_SLICES, sequence_parallel=True), SHARDED])
def test_deepspeed_cannot_run_other_cuts(plan: SlicePlan) -> None:
    file = plan_file(plan, MODELS["gpt3-2.7b"], replace(WORKLOAD, seq_length=2048))
    with pytest.raises(InfeasiblePlanError, match="needs 2 row slices"):
        export_plan(file, "deepspeed")


def test_every_format_writes_what_the_verb_and_json_say(run: Runner) -> None:
    path = run.folder / "rival.json"
    for plan, formats in (
        (USERBUFFERS, ("megatron", "env", "te-userbuffers", "megatron-bridge")),
        (SHARDED, ("torchtitan",)),
    ):
        save_plan(plan_file(plan), path)
        for to in formats:
            out = run.folder / f"{to}.out"
            assert run("plan", "export", str(path), "--to", to, "--out", str(out)).code == 0
            told = json.loads(run("plan", "export", str(path), "--to", to, "--json").out)
            assert (told["document"] != "") == (to in DOCUMENTS)
            assert told["document"] in out.read_text()
            assert all(entry in out.read_text() for entry in told["arguments"])
            assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in out.read_text()
    assert {*RUNS, "deepspeed", "env"} == set(get_args(ExportFormat))
    assert "it runs in Megatron-LM" in run.refused("plan", "export", str(path), "--to",
                                                   "te-userbuffers")  # fmt: skip


def test_llama_arguments() -> None:
    arguments = megatron_arguments(
        MODELS["llama3-70b"],
        Workload(seq_length=4096, micro_batch_size=2, grad_accumulation=4),
        ClusterSpec(tp=8, dp=2),
    )
    wanted = {
        "--swiglu", "--normalization RMSNorm", "--group-query-attention", "--num-query-groups 8",
        "--position-embedding-type rope", "--rotary-base 500000", "--disable-bias-linear",
        "--untie-embeddings-and-output-weights", "--global-batch-size 16",
    }  # fmt: skip
    assert wanted <= set(arguments)


def test_arguments_of_layouts() -> None:
    workload = Workload(
        seq_length=8192, micro_batch_size=1, grad_accumulation=16, recompute="full",
        overlap_p2p=True, cp_comm="a2a",
    )  # fmt: skip
    cluster = ClusterSpec(tp=8, pp=4, vpp=5, cp=2)
    arguments = megatron_arguments(MODELS["llama3-70b"], workload, cluster)
    wanted = {
        "--pipeline-model-parallel-size 4", "--num-layers-per-virtual-pipeline-stage 4",
        "--context-parallel-size 2", "--cp-comm-type a2a", "--recompute-granularity full",
        "--recompute-method uniform", "--recompute-num-layers 1",
    }  # fmt: skip
    assert wanted <= set(arguments)
    assert "--no-overlap-p2p-communication" not in arguments
    shared = training_arguments(
        MODELS["llama3-8b"],
        replace(workload, data_parallel="distributed-optimizer"),
        cluster,
        sequence_parallel=True,
    )
    assert shared == [
        "--sequence-parallel", "--use-distributed-optimizer", "--overlap-grad-reduce",
        "--overlap-param-gather",
    ]  # fmt: skip
    uneven = replace(workload, pp_layers=(3, 2), overlap_p2p=False, recompute_layers=2)
    five = replace(MODELS["llama3-8b"], num_hidden_layers=5)
    arguments = megatron_arguments(five, uneven, ClusterSpec(tp=1, pp=2))
    wanted = {"--pipeline-model-parallel-layout 'Ettt|ttL'", "--recompute-method block"}
    assert wanted <= set(arguments)


@pytest.mark.parametrize(
    ("fields", "vpp", "message"),
    [
        ({"pp_schedule": "gpipe"}, 1, "no option for --pp-schedule gpipe"),
        ({"overlap_p2p": True}, 1, "make the plan without --overlap-p2p"),
        ({}, 2, "make the plan with --overlap-p2p"),
        ({"recompute": "selective", "recompute_layers": 2}, 1, "without --recompute-layers"),
    ],
)
def test_layouts_that_megatron_does_not_run(fields: dict[str, Any], vpp: int, message: str) -> None:
    workload = Workload(seq_length=8192, micro_batch_size=1, grad_accumulation=16, **fields)
    with pytest.raises(InfeasiblePlanError, match=message):
        megatron_arguments(MODELS["llama3-70b"], workload, ClusterSpec(tp=8, pp=2, vpp=vpp))


def test_qwen3_and_gemma2_arguments() -> None:
    workload, cluster = Workload(seq_length=4096, micro_batch_size=2), ClusterSpec(tp=8)
    arguments = megatron_arguments(MODELS["qwen3-32b"], workload, cluster)
    assert {"--qk-layernorm", "--kv-channels 128", "--num-query-groups 8"} <= set(arguments)
    gemma = replace(MODELS["llama3-8b"], post_norm=True, scaled_embeddings=True)
    with pytest.raises(InfeasiblePlanError, match=r"no option .* post_norm, scaled_embeddings"):
        megatron_arguments(gemma, workload, cluster)


def test_models(run: Runner) -> None:
    done = run("models")
    assert done.code == 0
    for name in MODELS:
        assert name in done.out
    listed = json.loads(run("models", "--json").out)
    assert listed[0]["parameters"] == MODELS["gpt3-1.3b"].parameters


def test_profiles_list_show_check(run: Runner) -> None:
    assert "h100-dgx" in run("profiles", "list").out
    listed = json.loads(run("profiles", "list", "--json").out)
    assert {"a100-sxm", "h100-dgx"} <= {item["name"] for item in listed}
    assert "memory bandwidth" in run("profiles", "show", "h100-dgx").out
    shown = json.loads(run("profiles", "show", "h100-dgx", "--json").out)
    assert shown["missing"] == ["skew"]  # nobody has published how far ranks drift apart
    assert shown["machine"]["gpus_per_node"] == 8
    checked = json.loads(run("profiles", "check", "h100-dgx", "--json").out)
    assert {item["section"] for item in checked["sections"]} >= {"gemm", "collectives"}
    assert "is valid" in run("profiles", "check", "a100-sxm").out


def test_profiles_import_and_diff(run: Runner) -> None:
    table = run.folder / "gemms.csv"
    table.write_text("m,n,k,us\n256,512,512,11.5\n512,512,512,13\n")
    done = run(
        "profiles", "import", str(table),
        "--format", "gemm-csv", "--into", "h100-dgx", "--name", "mine",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "2 gemm rows" in done.out
    assert "mine" in run("profiles", "list").out
    differences = json.loads(run("profiles", "diff", "h100-dgx", "mine", "--json").out)
    assert ["name", '"h100-dgx"', '"mine"'] in differences["differences"]
    assert "gemm.rows" in run("profiles", "diff", "h100-dgx", "mine").out
    assert "same content" in run("profiles", "diff", "mine", "mine").out
    assert run("simulate", *run.workload, "--profile", "mine").code == 0
    assert "gemm-csv" in run.refused(
        "profiles", "import", str(table),
        "--format", "gem-csv", "--into", "h100-dgx", "--name", "mine",
    )  # fmt: skip


def test_an_import_does_not_stand_in_front_of_a_bundled_profile(run: Runner) -> None:
    table = run.folder / "gemms.csv"
    table.write_text("m,n,k,us\n256,512,512,11.5\n")
    message = run.refused(
        "profiles", "import", str(table),
        "--format", "gemm-csv", "--into", "h100-dgx", "--name", "h100-dgx",
    )  # fmt: skip
    assert "bundled" in message
    assert "--name" in message
