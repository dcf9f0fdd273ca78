"""Logs of Megatron-LM: read its arguments and the time of its iterations as a run.

Megatron-LM prints every argument once, as `` name ........ value``, later the size to which it pads
the vocabulary, and for each logged iteration ``elapsed time per iteration (ms): 1234.5``, in older
forks ``(s): 1.2`` (megatron/training: arguments.py, tokenizer, training.py). Launchers put marks
before lines; the first rank prints the arguments, the last one the times.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from domino_tune.store.formats.launcher_marks import Line, by_rank, unknown_mark, unmarked
from domino_tune.store.formats.megatron_arguments import (
    AWARE,
    FLASH,
    FSDP,
    FUSED_LOSS,
    FUSED_LOSS_BY,
    FUSED_ROWS,
    GRAPHS,
    KERNELS,
    KINDS,
    LONGEST_VALUE,
    MOMENTS,
    MORE_SHAPE,
    NEEDED,
    OFFLOAD,
    REFUSED,
    SAME,
    SHAPE,
    SWITCHES,
    VOCABULARY,
    expert_fields,
    expert_note,
    expert_options,
    has_experts,
    is_usual,
    not_simulated,
)
from domino_tune.store.formats.run_table import RunRow, checked_ms
from simulator.dtypes import FP8_RECIPES, MOMENTS_DTYPES
from simulator.errors import InputError
from simulator.implementation import IMPLEMENTATIONS
from simulator.modules import GRAPH_SCOPES, RECOMPUTE_MODULES
from simulator.overlap import EP_OVERLAP
from simulator.specs import CP_COMM

_START: Final = re.compile(r"-{3,} arguments -{3,}")
_END: Final = re.compile(r"-{3,} end of arguments -{3,}")
_ARGUMENT: Final = re.compile(r"\s*([A-Za-z]\w*) (\.*)(?: (.*))?$")
_CONTENT: Final = re.compile(rf"\b[a-z_]+ \.{{4,}} |{_START.pattern}")
"""What identifies a line of the arguments, wherever in the line it occurs."""
_ELAPSED: Final = re.compile(
    r"elapsed time per iteration \((ms|s)\): *([0-9]{1,400}(?:\.([0-9]{1,20}))?)"
)
OTHER_LOGS: Final = {
    "torchtitan": re.compile(r"\bstep: *[0-9]+ {1,9}loss: "),
    "NeMo": re.compile(r"train_step_timing in s[:=]"),
}
"""Framework -> what lines of its log have that does not print options."""
_MS: Final = {"ms": 1.0, "s": 1e3}
_PADDED: Final = re.compile(r"padded vocab \(size: \d+\).*\(new size: (\d+)\)")
_MOMENTS: Final = {"float32": "fp32", "bfloat16": "bf16", "uint8": "fp8"}
"""How torch prints the dtype of moments -> what it is here."""
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
WARM_UP: Final = 2
"""Logged iterations to leave out: the first ones compile, allocate and warm up."""


def read_megatron_log(text: str, source: str) -> RunRow:
    """Return the run of a log, with the median of its iterations; if it started several times, the
    last.

    Its note lists the arguments that were ignored although they are not at their default. Raise
    InputError if arguments or iterations are missing, or cannot be simulated.
    """
    every = unmarked(enumerate(text.splitlines(), 1))
    lines = _last_start(every)
    found = _elapsed(lines)
    if not found:
        where = "has no"
        if _elapsed(every):
            where = f"restarted in line {lines[0].number}, and from there on has no"
        said = "\n".join(line.text for line in every)
        other = next((name for name, line in OTHER_LOGS.items() if line.search(said)), "")
        if other:
            raise InputError(
                f"{source} is a log of {other}, which does not print the job's options; give the "
                "run as a row of --runs: options of simulate, and measured_ms (docs/using.md)."
            )
        raise InputError(
            f"{source} {where} line with `elapsed time per iteration (ms):`; give the output of "
            "rank 0 and of the last rank, with --log-interval."
        )
    arguments = _arguments(lines)
    padded = _PADDED.findall("\n".join(line.text for line in lines))
    if padded and arguments.get(VOCABULARY, "None") == "None":
        arguments[VOCABULARY] = padded[-1]
    _check(arguments, source, lines)
    times = [_MS[unit] * float(value) for unit, value, _ in found]
    unit, _, decimals = found[-1]
    few = f"{source} logs no more than {WARM_UP} times, so iterations that warm up are counted. "
    few *= len(times) <= WARM_UP
    return RunRow(
        label=source,
        options=_options(arguments, source),
        measured_ms=checked_ms(str(statistics.median(times[WARM_UP:] or times)), source),
        rounding_ms=_MS[unit] * 0.5 * 10 ** -len(decimals),
        note=f"{few}{_note(arguments, source)}".rstrip(),
    )


def _last_start(lines: Sequence[Line]) -> Sequence[Line]:
    starts = [at for at, line in enumerate(lines) if _START.search(line.text)]
    return lines[starts[-1] :] if starts else lines


def _elapsed(lines: Sequence[Line]) -> Sequence[tuple[str, str, str]]:
    """Return unit, value and decimals of each iteration, from the rank that prints most of them."""
    ranks = by_rank(lines, _ELAPSED.search)
    return max(
        ([one for line in rank for one in _ELAPSED.findall(line.text)] for rank in ranks), key=len
    )


def _arguments(lines: Sequence[Line]) -> dict[str, str]:
    """Return the arguments that the rank of the first line prints. Between start and end, accept
    even a name so long that no dot is left before its value."""
    mark = lines[0].mark
    started = bool(_START.search(lines[0].text))
    found = {}
    for line in lines:
        if mark and line.mark not in ("", mark) and started:
            continue
        if started and _END.search(line.text):
            break
        told = _ARGUMENT.match(line.text)
        if told and (started or len(told[2]) > 1):
            found[told[1]] = (told[3] or "").strip()
    return found


def _check(arguments: Mapping[str, str], source: str, lines: Sequence[Line]) -> None:
    """Raise InputError for arguments that are missing or cannot be simulated."""
    missing = [name for name in NEEDED if arguments.get(name, "None") == "None"]
    mark = "" if arguments.keys() & SAME.keys() else unknown_mark(lines, _CONTENT)
    if mark:
        raise InputError(
            f"Lines of {source} begin with {mark!r}, a mark of no launcher that is known here, so "
            "its arguments cannot be read; take it off every line."
        )
    if missing:
        raise InputError(
            f"{source} does not print {', '.join(missing)}; give a log from its beginning, where "
            "Megatron-LM prints its arguments and the size of its padded vocabulary; or give the "
            "run as a row of --runs."
        )
    for name, usual in REFUSED.items():
        if arguments.get(name, usual[0]) not in usual:
            raise not_simulated(source, name, arguments[name])
    for name, value in arguments.items():
        if OFFLOAD in name and value == "True" and not is_usual(name, value):
            raise not_simulated(source, name, value)


def _note(arguments: Mapping[str, str], source: str) -> str:
    """Return what was ignored, and what was read as something else."""
    read = {"recompute_num_layers"} if arguments.get("recompute_method") == "block" else set[str]()
    if _moments(arguments, source).get("moments_dtype", "fp32") != "fp32":
        read.add(AWARE)
    told = [
        f"{name} = {value[:LONGEST_VALUE]}"
        for name, value in sorted(arguments.items())
        if not is_usual(name, value) and name not in read
    ]
    notes = []
    if told:
        notes.append(
            f"{source}: predicted without {', '.join(told)}: not looked at, and not Megatron-LM's "
            "default."
        )
    if _is(arguments, "checkpoint_activations") and _recomputed(arguments)[0] == "full":
        notes.append(f"{source}: checkpoint_activations = True is read as full recomputation.")
    if _is_local(arguments):
        notes.append(
            f"{source}: transformer_impl is {arguments.get('transformer_impl', 'not printed')}, "
            "read as --implementation megatron-2022."
        )
    by = arguments.get(FUSED_LOSS_BY, "native")
    if _is(arguments, FUSED_LOSS) and by != "te":
        notes.append(
            f"{source}: {FUSED_LOSS_BY} = {by[:LONGEST_VALUE]} is predicted as te, one kernel of "
            "TransformerEngine that copies no logits to fp32."
        )
    balanced = expert_note(arguments, source)
    return " ".join([*notes, *([balanced] if balanced else [])])


def _options(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the options of simulate that mean the same as the arguments."""

    def whole(name: str, default: str = "") -> int:
        text = arguments.get(name, default)
        if not _WHOLE.fullmatch(text) or not int(text):
            raise InputError(
                f"{source}: {name} must be a whole number above 0, got {text[:40]!r}; correct it."
            )
        return int(text)

    options = {option: str(whole(name)) for name, option in SAME.items()}
    pp, cp = whole("pipeline_model_parallel_size"), whole("context_parallel_size", "1")
    ranks = whole("tensor_model_parallel_size") * pp * cp
    dp = _divided(source, "world_size", whole("world_size"), "tp × pp × cp", ranks)
    step = dp * whole("micro_batch_size")
    micros = _divided(
        source, "global_batch_size", whole("global_batch_size"), "dp × micro_batch_size", step
    )
    options |= {
        "cp": str(cp),
        "dp": str(dp),
        "grad_accumulation": str(micros),
        "model": "llama2-7b" if _is(arguments, "swiglu") else "gpt3-2.7b",
        "overrides": " ".join(
            f"{name}={value}" for name, value in _model(arguments, source).items()
        ),
        **{option: str(_is(arguments, name)).lower() for name, option in SWITCHES.items()},
        **_precision(arguments),
        **_moments(arguments, source),
        **_quantization(arguments, source),
        **_recomputation(arguments, source),
        **_implementation(arguments, source),
        **expert_options(arguments, source),
        "data_parallel": _sharing(arguments, source),
        "strategy": "megatron",
    }
    options |= _graphs(arguments, source)
    if _is(arguments, "tp_comm_overlap") and options["tp"] != "1":
        options["strategy"] = "userbuffers"
    if _is(arguments, "overlap_moe_expert_parallel_comm"):
        options["strategy"] = EP_OVERLAP
        if _is(arguments, "delay_wgrad_compute"):
            options["wgrad"] = "deferred"
    if pp > 1:
        options["overlap_p2p"] = str(_is(arguments, "overlap_p2p_comm")).lower()
        options["vpp"] = str(_virtual_stages(arguments, source, whole, pp))
    if cp > 1:
        options["cp_comm"] = _cp_comm(arguments, source)
    return options


def _divided(source: str, name: str, value: int, by: str, divisor: int) -> int:
    """Return a quotient. Raise InputError if it is not whole."""
    if value % divisor:
        raise InputError(f"{source}: {name} = {value} does not divide by {by} = {divisor}.")
    return value // divisor


def _model(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the fields of the model, by name."""
    shape = {field: arguments[name] for name, field in SHAPE.items()}
    for name, field in MORE_SHAPE.items():
        if arguments.get(name, "None") != "None":
            shape[field] = arguments[name]
    for name, values in KINDS.items():
        if arguments.get(name, "None") != "None" or name == "position_embedding_type":
            shape |= _kind(arguments, name, values, source)
    if _is(arguments, "add_qkv_bias") and arguments.get("add_bias_linear") == "False":
        shape["proj_bias"] = "false"
    shape["num_key_value_heads"] = arguments[_key_value_heads(arguments)]
    return shape | expert_fields(arguments, source)


def _kind(
    arguments: Mapping[str, str], name: str, values: Mapping[str, Mapping[str, str]], source: str
) -> Mapping[str, str]:
    """Return the fields that a value implies. Raise InputError for a value that cannot be
    simulated."""
    value = arguments.get(name)
    if value is None:
        return {}
    known = values.get(_word(value))
    if known is None:
        raise not_simulated(source, name, value)
    return known


def _word(value: str) -> str:
    """Return a choice in small letters; some are printed as ``AttnBackend.flash``."""
    return value.rpartition(".")[2].lower()


def _key_value_heads(arguments: Mapping[str, str]) -> str:
    """Return the name of the argument with the number of key and value heads."""
    if _is(arguments, "group_query_attention") and "num_query_groups" in arguments:
        return "num_query_groups"
    forks = arguments.get("num_key_value_heads", "None") != "None"
    return "num_key_value_heads" if forks else "num_attention_heads"


def _implementation(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the implementation, and the keys that differ from it."""
    name = "megatron-2022" if _is_local(arguments) else "megatron-te"
    changes = {
        key: arguments[argument].lower()
        for argument, key in KERNELS.items()
        if arguments.get(argument) in ("True", "False")
    }
    if has_experts(arguments):
        changes[FUSED_ROWS] = str(_is(arguments, FUSED_ROWS)).lower()
    if IMPLEMENTATIONS[name].cross_entropy_loss_fusion:
        changes.setdefault(FUSED_LOSS, "false")
    flash = str(_has_flash(arguments, source)).lower()
    if flash != str(IMPLEMENTATIONS[name].flash_attention).lower():
        changes["flash_attention"] = flash
    if arguments.get("clip_grad", "1") in ("0", "0.0"):
        changes["clip_grad"] = "false"
    told = " ".join(f"{key}={value}" for key, value in changes.items())
    return {"implementation": name, "implementation_set": told}


def _is_local(arguments: Mapping[str, str]) -> bool:
    """Return whether the layers are Megatron-LM's own. Before it had others, it printed neither
    their implementation nor the norm."""
    usual = "transformer_engine" if "normalization" in arguments else "local"
    return arguments.get("transformer_impl", usual) == "local"


def _has_flash(arguments: Mapping[str, str], source: str) -> bool:
    if _is_local(arguments):
        return any(_is(arguments, name) for name in FLASH)
    backend = _word(arguments.get("attention_backend", "auto"))
    if backend not in ("auto", "flash", "fused", "unfused", "local"):
        raise not_simulated(source, "attention_backend", backend)
    return backend not in ("unfused", "local")


def _graphs(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the options of an iteration that is one CUDA graph, or of graphs of parts of layers.
    Raise InputError for other graphs."""
    usual = ("False", "None", "none")
    made = [name for name in GRAPHS[:3] if arguments.get(name, "None") not in usual]
    scopes = set(_SCOPE.findall(arguments.get("cuda_graph_scope", "")))
    if not made:
        return {}
    if scopes == {"full_iteration"}:
        return {"cuda_graph": "yes"}
    if scopes and scopes <= {*GRAPH_SCOPES}:
        return {"cuda_graph_scope": ",".join(one for one in GRAPH_SCOPES if one in scopes)}
    raise not_simulated(source, made[0], arguments[made[0]])


_SCOPE: Final = re.compile(r"(?<!\w)[a-z_]+(?!\w)")
"""A part of a layer as ``['attn']`` or ``[<CudaGraphScope.attn: 2>]`` has it."""


def _precision(arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the dtype and that of main gradients; those of fp16 in 16 bits are told as bf16, which
    has the same size."""
    dtype = next((one for one in ("bf16", "fp16") if _is(arguments, one)), "fp32")
    in_16_bits = arguments.get("accumulate_allreduce_grads_in_fp32") == "False" and dtype != "fp32"
    return {"dtype": dtype, "grad_dtype": "bf16" if in_16_bits else "fp32"}


def _moments(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the dtype of both moments. Raise InputError where they have different ones, or one
    that is not simulated."""
    if not _is(arguments, AWARE):
        return {}
    first, second = (_word(arguments.get(name, "fp32")) for name in MOMENTS)
    dtype = _MOMENTS.get(first, first)
    if dtype not in MOMENTS_DTYPES:
        raise not_simulated(source, MOMENTS[0], arguments[MOMENTS[0]])
    if first != second:
        raise not_simulated(source, MOMENTS[1], arguments.get(MOMENTS[1], "fp32"))
    return {"moments_dtype": dtype}


def _quantization(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the recipe of quantized layers. Raise InputError for one that is not simulated."""
    off = ("None", "False", "")
    for width, usual in (("fp8", "delayed"), ("fp4", "nvfp4")):
        if arguments.get(width, arguments.get(f"{width}_format", "None")) in off:
            continue
        recipe = arguments.get(f"{width}_recipe", usual)
        if recipe not in FP8_RECIPES:
            raise not_simulated(source, f"{width}_recipe", recipe)
        if arguments.get("fp8_wgrad") == "False":
            raise not_simulated(source, "fp8_wgrad", "False")
        found: dict[str, str] = {"fp8_recipe": recipe}
        if _is(arguments, "first_last_layers_bf16"):
            for end in ("start", "end"):
                name = f"num_layers_at_{end}_in_bf16"
                found[name] = arguments.get(name, "1")
        if _is(arguments, "fp8_param_gather") or _is(arguments, "fp8_param"):
            found["fp8_param_gather"] = "True"
        return found
    return {}


def _recomputation(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    kind, method, layers = _recomputed(arguments)
    if kind == "None":
        return {"recompute": "none"}
    modules = arguments.get("recompute_modules", "None")
    named = [name for name in _names(modules) if modules != "None" and name != "core_attn"]
    if kind == "selective" and named:
        if not set(named) <= set(RECOMPUTE_MODULES):
            raise not_simulated(source, "recompute_modules", modules)
        return {"recompute": kind, "recompute_modules": ",".join(_names(modules))}
    if kind not in ("full", "selective"):
        raise not_simulated(source, "recompute_granularity", kind)
    if kind == "full" and method == "block":
        if layers == "0":  # a block of no layers
            return {"recompute": "none"}
        return {"recompute": kind, "recompute_layers": layers}
    return {"recompute": kind}


def _recomputed(arguments: Mapping[str, str]) -> tuple[str, str, str]:
    """Return granularity, method and layers; older versions have full recomputation only."""
    for prefix in ("recompute", "activations_checkpoint"):
        method, layers = (
            arguments.get(f"{prefix}_{one}", "None") for one in ("method", "num_layers")
        )
        kind = arguments.get(f"{prefix}_granularity", "None")
        if kind == "None" and prefix != "recompute" and method != "None":
            kind = "full"
        if kind != "None":
            return kind, method, layers
    return ("full" if _is(arguments, "checkpoint_activations") else "None"), "uniform", ""


def _names(value: str) -> list[str]:
    """Return the words of a printed list."""
    return re.findall(r"\w+", value)


def _sharing(arguments: Mapping[str, str], source: str) -> str:
    """Return what replicas share. Raise InputError for kinds of sharing that are not simulated."""
    sharded = [name for name in FSDP if _is(arguments, name)]
    kind = "data_parallel_sharding_strategy"
    everything = "optim_grads_params"  # the only kind of use_torch_fsdp2
    if sharded not in ([], ["use_torch_fsdp2"]) and arguments.get(kind, everything) != everything:
        raise not_simulated(source, kind, arguments[kind])
    if sharded:
        return "fsdp"
    stage = arguments.get("zero_stage", "0") if _is(arguments, "deepspeed") else "0"
    if stage.removesuffix(".0") not in ("0", "1"):
        raise not_simulated(source, "zero_stage", stage)
    optimizer = _is(arguments, "use_distributed_optimizer") or stage.startswith("1")
    return "distributed-optimizer" if optimizer else "replicas"


def _virtual_stages(
    arguments: Mapping[str, str], source: str, whole: Callable[[str], int], pp: int
) -> int:
    """Return the virtual stages of a rank, from arguments that give their number or the layers of
    each."""
    for name in ("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"):
        if arguments.get(name, "None") != "None":
            return whole(name)
    each = "num_layers_per_virtual_pipeline_stage"
    if arguments.get(each, "None") == "None":
        return 1
    stages = f"pp × {each}"
    return _divided(source, "num_layers", whole("num_layers"), stages, pp * whole(each))


def _cp_comm(arguments: Mapping[str, str], source: str) -> str:
    """Return how ranks share keys and values; it is printed as ``p2p`` or as ``['p2p']``."""
    told = arguments.get("cp_comm_type", "p2p").strip("[]'\" ")
    if told not in CP_COMM:
        raise InputError(
            f"{source} is of a run with cp_comm_type = {told}, which is not simulated; it may be "
            f"{', '.join(CP_COMM)}."
        )
    return told


def _is(arguments: Mapping[str, str], name: str) -> bool:
    return arguments.get(name) == "True"
