"""Logs of Megatron-LM: the run that each describes, checked by how it would be simulated."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from domino_tune.requests import SimulateRequest
from domino_tune.requests.options import request_from_text
from domino_tune.store.formats.megatron_arguments import NEEDED, VOCABULARY
from domino_tune.store.formats.megatron_log import read_megatron_log
from domino_tune.verbs.resolve import plan_of, resolve
from simulator.case import Case
from simulator.errors import InputError

GPT: Final[dict[str, Any]] = {
    "accumulate_allreduce_grads_in_fp32": True, "add_bias_linear": True, "add_qkv_bias": False,
    "attention_dropout": 0.1, "bf16": True, "bias_dropout_fusion": True,
    "bias_swiglu_fusion": True, "check_for_nan_in_loss_and_grad": True,
    "context_parallel_size": 1, "cp_comm_type": "['p2p']", "cross_entropy_loss_fusion": False,
    "data_parallel_size": 2, "deterministic_mode": False, "ffn_hidden_size": 8192,
    "fp16": False, "fp8": None, "global_batch_size": 16, "gradient_accumulation_fusion": True,
    "group_query_attention": False, "hidden_dropout": 0.1, "hidden_size": 2048,
    "kv_channels": 128, "load": "", "log_params_norm": False, "max_position_embeddings": 2048,
    "micro_batch_size": 2, "moe_permute_fusion": False, "multi_latent_attention": False,
    "normalization": "LayerNorm",
    "num_attention_heads": 16, "num_experts": None, "num_layers": 24,
    "num_layers_per_virtual_pipeline_stage": None, "num_query_groups": 1,
    "overlap_grad_reduce": True, "overlap_p2p_comm": False, "overlap_param_gather": False,
    "pipeline_model_parallel_size": 1, "position_embedding_type": "learned_absolute",
    "qk_layernorm": False, "rampup_batch_size": None, "recompute_granularity": None,
    "recompute_method": None, "recompute_num_layers": None, "seq_length": 2048,
    "sequence_parallel": True, "split": "969, 30, 1", "squared_relu": False, "swiglu": False,
    "tensor_model_parallel_size": 4, "tp_comm_overlap": False,
    "untie_embeddings_and_output_weights": False, "use_distributed_optimizer": True,
    "virtual_pipeline_model_parallel_size": None, "window_size": None, "world_size": 8,
}  # fmt: skip
LLAMA: Final[dict[str, Any]] = {
    **GPT, "add_bias_linear": False, "attention_dropout": 0.0, "ffn_hidden_size": 14336,
    "group_query_attention": True, "hidden_dropout": 0.0, "hidden_size": 4096,
    "max_position_embeddings": 8192, "normalization": "RMSNorm", "num_attention_heads": 32,
    "num_layers": 32, "num_query_groups": 8, "position_embedding_type": "rope",
    "seq_length": 8192, "swiglu": True, "untie_embeddings_and_output_weights": True,
    "micro_batch_size": 1,
}  # fmt: skip
TIMES: Final = (31234.5, 925.1, 618.4, 617.9, 640.0)
FOUND_MS: Final = 618.4
SIZE: Final = 50257


def log(arguments: dict[str, Any], *, times: tuple[float, ...] = TIMES, padded: int = 50304) -> str:
    """Return a shortened output of Megatron-LM."""
    block = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    iterations = [
        f" [2025-11-13 16:30:{number:02}] iteration {number:8}/     500 | consumed samples: "
        f"{number * 16:12} | elapsed time per iteration (ms): {time_ms:.1f} | throughput per GPU "
        "(TFLOP/s/GPU): 401.2 | learning rate: 1.500000E-04 | global batch size:    16 | lm loss: "
        "1.092E+01 | loss scale: 1.0 | grad norm: 5.960 | number of skipped iterations:   0 |"
        for number, time_ms in enumerate(times, 1)
    ]
    return "\n".join(
        [
            f"using world size: {arguments.get('world_size')}, data-parallel size: 2",
            "------------------------ arguments ------------------------",
            *block,
            "-------------------- end of arguments ---------------------",
            "INFO:megatron.core.num_microbatches_calculator:setting number of microbatches to "
            "constant 4",
            "> building GPT2BPETokenizer tokenizer ...",
            f" > padded vocab (size: {SIZE}) with {padded - SIZE} dummy tokens "
            f"(new size: {padded})",
            "[after megatron is initialized] datetime: 2025-11-13 16:26:06 ",
            *iterations,
        ]
    )


def case_of(text: str) -> Case:
    """Return the case that is simulated for a log's run."""
    return resolved(text)[0]


def resolved(text: str) -> tuple[Case, str]:
    row = read_megatron_log(text, "run.log")
    request = request_from_text(SimulateRequest, {**row.options, "profile": "h100-dgx"})
    case = resolve(request)
    return case, plan_of(request, None, case).strategy


def test_a_gpt_is_read_as_it_ran() -> None:
    row = read_megatron_log(log(GPT), "run.log")
    assert (row.label, row.measured_ms) == ("run.log", FOUND_MS)
    case, strategy = resolved(log(GPT))
    model, work, cluster = case.model, case.workload, case.cluster
    assert strategy == "megatron"
    assert (cluster.tp, cluster.dp, cluster.pp, cluster.cp, cluster.vpp) == (4, 2, 1, 1, 1)
    assert (work.micro_batch_size, work.grad_accumulation, work.seq_length) == (2, 4, 2048)
    assert (model.num_hidden_layers, model.hidden_size, model.head_dim) == (24, 2048, 128)
    assert (model.num_attention_heads, model.num_key_value_heads) == (16, 16)
    assert (model.intermediate_size, model.vocab_size) == (8192, 50304)
    assert (model.hidden_act, model.norm, model.position_embedding) == (
        "gelu", "layernorm", "learned",
    )  # fmt: skip
    assert model.tie_word_embeddings
    assert (model.attention_bias, model.mlp_bias, model.hidden_dropout) == (True, True, 0.1)
    assert (work.data_parallel, work.dtype, work.grad_dtype) == (
        "distributed-optimizer", "bf16", "fp32",
    )  # fmt: skip
    assert (work.overlap_grad_reduce, work.overlap_param_gather) == (True, False)
    assert case.sequence_parallel is True
    assert work.implementation.name == "megatron-te"
    assert not work.implementation.cross_entropy_loss_fusion


@pytest.mark.parametrize(
    ("told", "fused"),
    [
        ({}, False),  # versions before the argument
        ({"cross_entropy_loss_fusion": False}, False),
        ({"cross_entropy_loss_fusion": True}, True),
    ],
)
@pytest.mark.parametrize("layers", ["transformer_engine", "local"])
def test_a_loss_is_one_kernel_only_if_the_log_says_so(
    told: dict[str, Any], fused: bool, layers: str
) -> None:
    left = {key: value for key, value in GPT.items() if key != "cross_entropy_loss_fusion"}
    case = case_of(log({**left, "transformer_impl": layers, **told}))
    assert case.workload.implementation.cross_entropy_loss_fusion is fused


@pytest.mark.parametrize(
    ("told", "noted"),
    [
        ({"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}, False),
        ({"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "native"}, True),
        ({"cross_entropy_loss_fusion": True}, True),
        ({"cross_entropy_loss_fusion": False, "cross_entropy_fusion_impl": "native"}, False),
    ],
)
def test_megatrons_own_fused_loss_is_told(told: dict[str, Any], noted: bool) -> None:
    note = read_megatron_log(log({**GPT, **told}), "run.log").note
    assert ("native is predicted as te" in note) is noted


def test_a_llama_with_grouped_queries_is_read_as_it_ran() -> None:
    model = case_of(log(LLAMA, padded=128256)).model
    assert (model.hidden_act, model.gated_mlp, model.norm) == ("silu", True, "rmsnorm")
    assert (model.position_embedding, model.tie_word_embeddings) == ("rope", False)
    assert (model.num_attention_heads, model.num_key_value_heads, model.head_dim) == (32, 8, 128)
    assert (model.attention_bias, model.mlp_bias, model.hidden_dropout) == (False, False, 0.0)
    assert (model.vocab_size, model.max_position_embeddings) == (128256, 8192)


def test_a_bias_of_qkv_alone_is_no_bias_of_what_follows() -> None:
    model = case_of(log({**LLAMA, "add_qkv_bias": True, "qk_layernorm": True})).model
    assert (model.attention_bias, model.proj_bias, model.mlp_bias) == (True, False, False)
    assert model.qk_norm


def test_grouped_queries_count_only_where_they_are_switched_on() -> None:
    assert case_of(log({**LLAMA, "group_query_attention": False})).model.num_key_value_heads == 32


@pytest.mark.parametrize(
    "told",
    [
        {"virtual_pipeline_model_parallel_size": 3, "num_layers_per_virtual_pipeline_stage": 4},
        {"virtual_pipeline_model_parallel_size": 3},
        {"num_layers_per_virtual_pipeline_stage": 4},
        {"num_virtual_stages_per_pipeline_rank": 3},
    ],
    ids=str,
)
def test_virtual_stages_are_told_in_several_ways(told: dict[str, Any]) -> None:
    piped = {**GPT, "pipeline_model_parallel_size": 2, "overlap_p2p_comm": True, **told}
    case = case_of(log(piped))
    assert (case.cluster.pp, case.cluster.vpp, case.cluster.dp) == (2, 3, 1)
    assert case.workload.grad_accumulation == 8
    assert case.workload.overlap_p2p


def test_a_pipeline_without_virtual_stages() -> None:
    case = case_of(log({**GPT, "pipeline_model_parallel_size": 2}))
    assert (case.cluster.pp, case.cluster.vpp, case.workload.overlap_p2p) == (2, 1, False)


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        (
            "[rank0]:2025-03-01 10:00:00,1 - root - INFO - step: 10  loss:  8.2  memory: 40.1GiB"
            "(50.1%)  tps: 5,120  tflops: 250.1  mfu: 25.3%", "torchtitan",
        ),
        (
            "Training epoch 0, iteration 9/99 | lr: 1e-05 | global_step: 9 | train_step_timing in "
            "s: 6.2", "NeMo",
        ),
        ("Epoch 0: 9%| 9/99 [v_num=1, train_step_timing in s=24.00]", "NeMo"),
        (
            "\x1b[31mstep: 10  \x1b[32mloss:  8.2  \x1b[38;2;180;60;0mgrad_norm: 1.1  \x1b[34m"
            "tps: 5,120\x1b[39m", "torchtitan",
        ),
    ],
)  # fmt: skip
def test_logs_without_options_are_named(line: str, framework: str) -> None:
    with pytest.raises(InputError, match=rf"a log of {framework}, .* give the run as a row of"):
        read_megatron_log(f"{line}\n{line}\n", "run.log")


@pytest.mark.parametrize("printed", ["['a2a']", "a2a"])
def test_context_parallel_ranks(printed: str) -> None:
    case = case_of(log({**LLAMA, "context_parallel_size": 2, "cp_comm_type": printed}))
    assert (case.cluster.cp, case.cluster.dp, case.workload.cp_comm) == (2, 1, "a2a")


@pytest.mark.parametrize(
    ("told", "kind", "layers"),
    [
        ({"recompute_granularity": "selective"}, "selective", 0),
        ({"recompute_granularity": "full", "recompute_method": "uniform"}, "full", 0),
        (
            {
                "recompute_granularity": "full", "recompute_method": "block",
                "recompute_num_layers": 5,
            },
            "full", 5,
        ),
        (
            {
                "recompute_granularity": "full", "recompute_method": "block",
                "recompute_num_layers": 0,
            },
            "none", 0,
        ),
    ],
)  # fmt: skip
def test_recomputation(told: dict[str, Any], kind: str, layers: int) -> None:
    work = case_of(log({**GPT, **told})).workload
    assert (work.recompute, work.recompute_layers) == (kind, layers)


@pytest.mark.parametrize(
    ("told", "shared"),
    [
        ({"use_distributed_optimizer": False}, "replicas"),
        ({"use_torch_fsdp2": True, "use_distributed_optimizer": False}, "fsdp"),
    ],
)
def test_what_replicas_share(told: dict[str, Any], shared: str) -> None:
    assert case_of(log({**GPT, **told})).workload.data_parallel == shared


@pytest.mark.parametrize(
    ("told", "dtypes"),
    [
        ({"accumulate_allreduce_grads_in_fp32": False}, ("bf16", "bf16")),
        ({"bf16": False, "fp16": True}, ("fp16", "fp32")),
        (
            {"bf16": False, "fp16": True, "accumulate_allreduce_grads_in_fp32": False},
            ("fp16", "bf16"),
        ),
        ({"bf16": False}, ("fp32", "fp32")),
    ],
)
def test_precisions(told: dict[str, Any], dtypes: tuple[str, str]) -> None:
    row = read_megatron_log(log({**GPT, **told}), "run.log")
    assert (row.options["dtype"], row.options.get("grad_dtype", "fp32")) == dtypes


def test_a_recipe_of_fp8_is_read() -> None:
    told = {
        "fp8": "hybrid", "fp8_recipe": "tensorwise", "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 2, "fp8_param_gather": True,
    }  # fmt: skip
    work = case_of(log({**GPT, **told})).workload
    assert (work.fp8_recipe, work.fp8_param_gather) == ("tensorwise", True)
    assert (work.num_layers_at_start_in_bf16, work.num_layers_at_end_in_bf16) == (1, 2)
    assert case_of(log({**GPT, "fp8": "e4m3"})).workload.fp8_recipe == "delayed"
    assert (
        read_megatron_log(log({**GPT, "fp4": "e2m1"}), "run.log").options["fp8_recipe"] == "nvfp4"
    )


def test_overlap_by_userbuffers_is_their_strategy() -> None:
    assert resolved(log({**GPT, "tp_comm_overlap": True}))[1] == "userbuffers"
    alone = {"tp_comm_overlap": True, "tensor_model_parallel_size": 1, "global_batch_size": 32}
    assert resolved(log({**GPT, **alone}))[1] == "megatron"


@pytest.mark.parametrize("prefix", ["0: ", "  3: ", "[default0]:", "[rank0]: ", "node-4.site: "])
def test_lines_behind_a_rank_are_read(prefix: str) -> None:
    plain = log(GPT)
    behind = "\n".join(prefix + line for line in plain.splitlines())
    assert read_megatron_log(behind, "run.log") == read_megatron_log(plain, "run.log")


def test_lines_of_other_systems_and_colours_do_no_harm() -> None:
    noisy = "\x1b[32mINFO\x1b[0m ..... starting .....\r\n" + log(GPT).replace("\n", "\r\n")
    assert read_megatron_log(noisy, "run.log") == read_megatron_log(log(GPT), "run.log")


def test_older_logs_print_the_vocabulary_among_the_arguments() -> None:
    older = {name: value for name, value in GPT.items() if name != "context_parallel_size"}
    text = re.sub(r" > padded vocab.*\n", "", log({**older, VOCABULARY: 50432}))
    assert case_of(text).model.vocab_size == 50432
    assert case_of(text).cluster.cp == 1


def test_of_several_starts_the_last_counts() -> None:
    again = log(GPT) + "\n" + log({**GPT, "micro_batch_size": 1}, times=(9.0, 9.0, 500.0))
    row = read_megatron_log(again, "run.log")
    assert (row.options["micro_batch_size"], row.measured_ms) == ("1", 500.0)


def test_short_runs_count_from_their_first_iteration() -> None:
    assert read_megatron_log(log(GPT, times=(10.0, 20.0)), "run.log").measured_ms == 15.0


def test_a_log_without_iterations_is_refused() -> None:
    with pytest.raises(InputError, match="has no line with `elapsed time per iter"):
        read_megatron_log(log(GPT, times=()), "run.log")
    with pytest.raises(InputError, match="has no line"):
        read_megatron_log("", "run.log")


@pytest.mark.parametrize("name", [name for name in NEEDED if name != VOCABULARY])
def test_a_missing_argument_is_named(name: str) -> None:
    left = {key: value for key, value in GPT.items() if key != name}
    with pytest.raises(InputError, match=f"run.log does not print {name};"):
        read_megatron_log(log(left), "run.log")


def test_all_missing_parts_are_named_at_once() -> None:
    only_times = "\n".join(line for line in log(GPT).splitlines() if "elapsed" in line)
    with pytest.raises(InputError) as refused:
        read_megatron_log(only_times, "run.log")
    assert all(name in str(refused.value) for name in NEEDED)
    without = re.sub(r" > padded vocab.*\n", "", log(GPT))
    with pytest.raises(InputError, match=f"does not print {VOCABULARY};"):
        read_megatron_log(without, "run.log")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"fp8": "hybrid", "fp8_recipe": "custom"}, "fp8_recipe = custom, which is not simulated"),
        ({"rampup_batch_size": "[16, 16, 1000]"}, "rampup_batch_size = "),
        ({"squared_relu": True}, "squared_relu = True"),
        (
            {"context_parallel_size": 2, "cp_comm_type": "['a2a+p2p']"},
            "cp_comm_type = a2a+p2p, which is not simulated",
        ),
    ],
)
def test_what_is_not_simulated_is_refused(told: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_megatron_log(log({**GPT, **told}), "run.log")
    assert said in str(refused.value)


COUNTS: Final = (
    "world_size", "global_batch_size", "micro_batch_size", "seq_length",
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
)  # fmt: skip


@pytest.mark.parametrize("value", ["eight", "0", "-8", "8.0", "", "9" * 5000, "٨", "1 2"])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_that_are_none_are_refused(name: str, value: str) -> None:
    with pytest.raises(InputError) as refused:
        read_megatron_log(log({**GPT, name: value}), "run.log")
    assert f"run.log: {name} must be a whole number above 0" in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "name",
    ["num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "num_query_groups",
     "kv_channels", "max_position_embeddings", "hidden_dropout"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["many", "-1", "9" * 5000, "4 5"])
def test_shapes_that_are_none_are_refused(name: str, value: str) -> None:
    with pytest.raises(InputError):
        case_of(log({**LLAMA, name: value}))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"world_size": 6}, "world_size = 6 does not divide by tp × pp × cp = 4"),
        ({"world_size": 2}, "world_size = 2 does not divide by"),
        ({"global_batch_size": 6}, "global_batch_size = 6 does not divide by dp × micro_batch"),
        (
            {
                "pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 5,
            },
            "num_layers = 24 does not divide by pp × num_layers_per_virtual_pipeline_stage = 10",
        ),
        (
            {
                "pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": "few",
            },
            "num_layers_per_virtual_pipeline_stage must be a whole number above 0",
        ),
    ],
)  # fmt: skip
def test_counts_that_do_not_fit_each_other_are_refused(told: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_megatron_log(log({**GPT, **told}), "run.log")
    assert said in str(refused.value)


@pytest.mark.parametrize("time", ["...", "nan", "-5.0", "9" * 400, "0.0"])
def test_iterations_that_take_no_time_are_refused(time: str) -> None:
    text = log(GPT, times=()) + f"\n | elapsed time per iteration (ms): {time} |"
    with pytest.raises(InputError):
        read_megatron_log(text, "run.log")


def test_iterations_that_warm_up_are_told() -> None:
    said = read_megatron_log(log(GPT, times=(9e3, 8e3)), "run.log").note
    assert "run.log logs no more than 2 times, so iterations that warm up are counted." in said
    assert "warm up" not in read_megatron_log(log(GPT), "run.log").note


def test_a_start_without_iterations_is_named() -> None:
    whole = log(GPT).split("\n")
    again = "\n".join(whole[1 : -len(TIMES)])
    restart = f"restarted in line {len(whole) + 1}, and from there on has no line"
    with pytest.raises(InputError, match=restart):
        read_megatron_log(f"{log(GPT)}\n{again}", "run.log")
