"""How a model and a batch fit on ranks: what must divide what, and what is padded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from simulator.errors import InputError, require_divisible
from simulator.modules import OF_EXPERTS
from simulator.specs import ClusterSpec, ModelSpec, Workload

WORTH: Final = 0.01
"""Share of the largest stage's work that makes uneven stages worth a look."""


class Held(NamedTuple):
    """Parameters on a rank: those of routed experts, whose replicas are other ranks, and the
    rest."""

    rest: int
    experts: int = 0

    @property
    def whole(self) -> int:
        """All of them."""
        return self.rest + self.experts

    def __add__(self, other: Held) -> Held:  # type: ignore[override]
        return Held(self.rest + other.rest, self.experts + other.experts)

    def __mul__(self, times: int) -> Held:  # type: ignore[override]
        return Held(self.rest * times, self.experts * times)


def _nearest_tp(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> list[int]:
    """Return the nearest smaller and larger tp that work: they fit the job's other sizes and divide
    its sequences. A tp beyond one NVLink domain is returned only if the cluster's is."""
    domain, kv_heads = cluster.domain, model.num_key_value_heads
    common = math.gcd(
        model.num_attention_heads, model.intermediate_size if model.dense_layers else 0,
        model.shared_expert_intermediate_size,
    )  # fmt: skip
    common = math.gcd(common, workload.seq_length // math.gcd(workload.seq_length, cluster.cp))
    most = common if cluster.tp > domain else min(common, domain)
    works = [
        n for n in range(1, most + 1)
        if common % n == 0 and _shares_kv_heads(kv_heads, n) and _fits_nodes(cluster, n)
    ]  # fmt: skip
    return [*[n for n in works if n < cluster.tp][-1:], *[n for n in works if n > cluster.tp][:1]]


def _fits_nodes(cluster: ClusterSpec, tp: int) -> bool:
    """Return whether the cluster can have ``tp`` and its other sizes on nodes as they are."""
    try:
        replace(cluster, tp=tp)
    except InputError:
        return False
    return True


def _shares_kv_heads(kv_heads: int, tp: int) -> bool:
    """Return whether each of ``tp`` ranks gets whole kv heads, or several ranks the same one."""
    return kv_heads % tp == 0 or tp % kv_heads == 0


def _heads_hint(model: ModelSpec, tp: int) -> str:
    """Return a hint with head counts that shard, or "" where the heads are not all of the problem.

    Where kv heads are equal to heads and tp divides the ffn, it is the heads that do not shard.
    """
    hidden = model.hidden_size
    if model.num_key_value_heads != model.num_attention_heads or model.intermediate_size % tp:
        return ""
    works = [n for n in range(tp, hidden + 1, tp) if hidden % n == 0]
    below = [n for n in works if n < model.num_attention_heads][-1:]
    above = [n for n in works if n > model.num_attention_heads][:1]
    options = " or ".join(f"--set num_attention_heads={n}" for n in below + above)
    return f" Or try {options}." if options else ""


def check_shardable(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> None:
    """Raise InputError unless the model shards over tp ranks, and its sequences are not too long.

    tp divides heads and ffn. It divides the kv heads, too, or is a multiple of them: then several
    ranks hold the same kv head. The vocabulary needs no check: it is padded to a multiple of
    128 × tp, as in Megatron-LM.
    """
    tp, kv_heads = cluster.tp, model.num_key_value_heads
    for name in ("num_attention_heads", *(["intermediate_size"] if model.dense_layers else [])):
        size = getattr(model, name)
        if size % tp:
            fix = _tp_hint(model, workload, cluster)
            if name == "intermediate_size":  # it may be any multiple of tp
                fix += f"; nearest multiples: {size // tp * tp or tp} or {(size // tp + 1) * tp}"
            hint = _heads_hint(model, tp)
            raise InputError(f"{name} = {size} is not divisible by tp = {tp}; {fix}.{hint}")
    if not _shares_kv_heads(kv_heads, tp):
        raise InputError(
            f"num_key_value_heads = {kv_heads} is neither a multiple nor a divisor of tp = {tp}; "
            f"{_tp_hint(model, workload, cluster)}."
        )
    check_experts(model, workload, cluster)
    if "mla_up_proj" in workload.modules and not model.kv_lora_rank:
        raise InputError(
            f"recompute_modules=mla_up_proj is of latent attention, which {model.name} has not; "
            "leave it out, or use a model that has it, such as deepseek-v3."
        )
    _check_length(model, workload)
    if workload.recompute_layers > model.num_hidden_layers:
        raise InputError(
            f"--recompute-layers = {workload.recompute_layers}, but {model.name} has "
            f"{model.num_hidden_layers} layers; give at most that many."
        )


def _tp_hint(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> str:
    near = " or ".join(map(str, _nearest_tp(model, workload, cluster))) or "none"
    kv_heads = ", and is a divisor or a multiple of its kv heads"
    grouped = kv_heads if model.num_key_value_heads != model.num_attention_heads else ""
    return f"nearest tp that divides the sequences, the model's heads and ffn{grouped}: {near}"


def _check_length(model: ModelSpec, workload: Workload) -> None:
    """Raise InputError for sequences beyond the learned positions or the sliding window."""
    if 0 < model.sliding_window < workload.seq_length:
        raise InputError(
            f"{model.name} has a sliding window of {model.sliding_window} tokens, shorter than "
            f"--seq-length {workload.seq_length}; attention in a window is not simulated. Give "
            f"--seq-length {model.sliding_window} or less, or --set sliding_window=0 to price "
            "attention over the whole sequence."
        )
    learns = model.position_embedding == "learned"
    if learns and workload.seq_length > model.max_position_embeddings:
        raise InputError(
            f"seq_length = {workload.seq_length} is above max_position_embeddings = "
            f"{model.max_position_embeddings}; lower it, or raise the model's with "
            f"--set max_position_embeddings={workload.seq_length}."
        )


def padded_vocab_size(model: ModelSpec, cluster: ClusterSpec) -> int:
    """Return the vocabulary size, rounded up to a multiple of 128 × tp (Megatron-LM's rule)."""
    unit = 128 * cluster.tp
    return math.ceil(model.vocab_size / unit) * unit


def least_micros(workload: Workload, cluster: ClusterSpec) -> int:
    """Return how many micro-batches the schedule of a pipeline needs: DualPipeV one a stage."""
    return 2 * cluster.pp if workload.pp_schedule == "dualpipev" else 1


def _check_v(workload: Workload, cluster: ClusterSpec) -> None:
    least, micros = least_micros(workload, cluster), workload.grad_accumulation
    if cluster.vpp != 2:
        raise InputError(
            f"--pp-schedule dualpipev has two stages a rank, got vpp = {cluster.vpp}; use --vpp 2."
        )
    if micros < least:
        raise InputError(
            f"--pp-schedule dualpipev needs a micro-batch or more for each of the {least} stages, "
            f"got grad_accumulation = {micros}; use {least} or more, or --pp-schedule 1f1b."
        )


def check_pipeline(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> None:
    """Raise InputError unless the model and the micro-batches fit the pipeline."""
    pp, vpp, given = cluster.pp, cluster.vpp, workload.pp_layers
    if pp == 1:
        if given:
            raise InputError("--pp-layers divides the layers of a pipeline: give --pp 2 or more.")
        return
    stages, layers = pp * vpp, model.num_hidden_layers
    if not given and layers % stages:
        spread = ",".join(map(str, spread_layers(layers, stages))) if layers >= stages else ""
        uneven = f", or stages of their own: --set pp_layers={spread}" if spread else ""
        raise InputError(
            f"num_hidden_layers = {layers} is not divisible by {'pp × vpp' if vpp > 1 else 'pp'} = "
            f"{stages}; use a number of stages that divides it{uneven}."
        )
    if given and (len(given) != stages or sum(given) != layers or min(given) < 1):
        raise InputError(
            f"--pp-layers must give {pp * vpp} counts, each 1 or more, whose sum is the model's "
            f"{model.num_hidden_layers} layers; got {','.join(map(str, given))}."
        )
    if workload.pp_schedule == "dualpipev":
        _check_v(workload, cluster)
    elif vpp > 1 and workload.pp_schedule != "1f1b":
        raise InputError(
            f"--pp-schedule {workload.pp_schedule} has one stage a rank, got vpp = {vpp}; use "
            "--vpp 1, or --pp-schedule 1f1b."
        )
    elif vpp > 1:
        require_divisible("With --vpp, grad_accumulation", workload.grad_accumulation, "pp", pp)
    if workload.data_parallel == "fsdp":
        raise InputError(
            "--data-parallel fsdp with a pipeline is not simulated; use distributed-optimizer."
        )


def spread_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each virtual stage, where they do not divide: one less on the last and
    on the first stage, which also have the head and the embedding, and on more from the ends."""
    each, left_over = divmod(layers, stages)
    lacking = (stages - left_over) % stages
    less = set(sorted(range(stages), key=lambda k: (min(k, stages - 1 - k), -k))[:lacking])
    return tuple(each + (left_over > 0) - (k in less) for k in range(stages))


def balanced_layers(model: ModelSpec, stages: int) -> tuple[int, ...]:
    """Return the layers of each virtual stage that make the largest number of multiplications
    smallest, the head's included; () where that is an equal number, or hardly less."""
    head = head_in_layers(model)
    load, counts = [*[1.0] * (stages - 1), 1.0 + head], [1] * stages
    for _ in range(model.num_hidden_layers - stages):
        lightest = min(range(stages), key=load.__getitem__)
        load[lightest] += 1
        counts[lightest] += 1
    usual = spread_layers(model.num_hidden_layers, stages)
    most = max(*usual, usual[-1] + head)
    return tuple(counts) if max(load) < most * (1 - WORTH) else ()


def head_in_layers(model: ModelSpec) -> float:
    """Return how many layers have as many multiplications as the heads, with the layers of
    multi-token prediction."""
    further = model.num_nextn_predict_layers
    return (1 + further) * model.vocab_size * model.hidden_size / _multiplied(model) + further


def _multiplied(model: ModelSpec) -> int:
    """Return the weights of a layer that a token is multiplied by."""
    return model.active_linear_parameters if model.num_experts else model.linear_parameters


def check_context(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> None:
    """Raise InputError unless the sequences and the attention core fit context parallelism."""
    cp, tp = cluster.cp, cluster.tp
    if cp == 1:
        return
    require_divisible("seq_length", workload.seq_length, "2 × cp", 2 * cp)
    heads = math.gcd(max(1, model.num_key_value_heads // tp), model.num_attention_heads // tp)
    if workload.cp_comm == "a2a" and heads % cp:
        fix = f"a --cp that divides {heads}, or " if heads > 1 else ""
        raise InputError(
            f"--cp-comm a2a gives each of cp = {cp} ranks a part of the heads, but at tp = {tp} a "
            f"rank's query and key-value heads divide by {heads} at most; use {fix}--cp-comm p2p."
        )
    again = workload.recompute == "per-op" or "core_attn" in workload.modules
    if again or not workload.implementation.flash_attention:
        raise InputError(
            "Context parallelism is simulated with one attention kernel, whose core nobody "
            "recomputes; use --recompute none or full, and an implementation with "
            "flash_attention=true."
        )
    if not workload.flash_attention:
        raise InputError(
            "Context parallelism is simulated with one attention kernel, which "
            f"{workload.implementation.name} has for 16 bits alone, got --dtype {workload.dtype}; "
            "use --dtype bf16, or --cp 1."
        )


# How experts fit on ranks -------------------------------------------------------------------------
# What must divide what, and what needs experts.

FUSED: tuple[str, ...] = ("deepep", "hybridep")
"""Dispatchers of Megatron-LM's ``flex`` type, which need ranks to send to."""


def check_experts(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> None:
    """Raise InputError unless the experts divide among the ranks.

    A stage's tp × cp × dp ranks are grouped once more for experts: etp ranks share each expert, and
    ep such groups have whole experts each. So ep divides the experts, etp the width of one, and tp
    the shared expert's. Context-parallel ranks count like any others.
    """
    if not model.num_experts:
        _refuse_without_experts(model, workload, cluster)
        return
    if workload.data_parallel == "fsdp":
        raise InputError(
            "--data-parallel fsdp with experts is not simulated; use distributed-optimizer."
        )
    if workload.recompute == "per-op":
        raise InputError(
            "--recompute per-op chooses among ops of dense layers; with experts use --recompute "
            "none, selective or full."
        )
    if workload.moe_shared_expert_overlap and "shared_experts" in workload.modules:
        raise InputError(
            "A shared expert that runs while tokens are on their way is not computed again, as in "
            "Megatron-LM; leave shared_experts out of recompute_modules, or give --set "
            "moe_shared_expert_overlap=false."
        )
    if workload.moe_shared_expert_overlap and not model.shared_expert_intermediate_size:
        raise InputError(
            f"moe_shared_expert_overlap runs a shared expert while tokens are on their way, and "
            f"{model.name} has none; leave it out."
        )
    check_expert_ranks(model, cluster.ep, cluster.etp)
    require_divisible(
        "moe_intermediate_size", model.moe_intermediate_size,
        "etp" if cluster.etp else "etp, which is tp unless it is given,", cluster.expert_tp,
    )  # fmt: skip
    require_divisible(
        "shared_expert_intermediate_size", model.shared_expert_intermediate_size, "tp", cluster.tp
    )
    if workload.moe_imbalance > cluster.ep:
        raise InputError(
            f"--moe-imbalance is the tokens of the rank with the most over the mean, which is at "
            f"most ep = {cluster.ep}; got {workload.moe_imbalance:g}, lower it, or raise --ep."
        )
    if workload.moe_dispatcher_sms and workload.moe_dispatcher not in FUSED:
        raise InputError(
            f"moe_dispatcher_sms is of {' and '.join(FUSED)}, whose kernels hold SMs as told; got "
            f"{workload.moe_dispatcher_sms} with {workload.moe_dispatcher}. Leave it out, or use "
            f"--moe-dispatcher {FUSED[0]}."
        )
    if workload.moe_dispatcher in FUSED and cluster.ep * cluster.expert_tp == 1:
        raise InputError(
            f"--moe-dispatcher {workload.moe_dispatcher} sends tokens between ranks, but ep × etp "
            "is 1; use --ep 2 or more, or --moe-dispatcher alltoall."
        )


def check_expert_ranks(model: ModelSpec, ep: int, etp: int) -> None:
    """Raise InputError unless ``ep`` divides the model's experts; without any, for ranks of
    experts."""
    if model.num_experts % ep:
        shares = [n for n in range(1, model.num_experts + 1) if model.num_experts % n == 0]
        raise InputError(
            f"num_experts = {model.num_experts} is not divisible by ep = {ep}; use --ep "
            f"{', '.join(map(str, shares))}."
        )
    if not model.num_experts:
        _refuse_given(model, {f"--ep {ep}": ep > 1, f"--etp {etp}": etp > 0})


def _refuse_without_experts(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> None:
    given = {
        f"--ep {cluster.ep}": cluster.ep > 1,
        f"--etp {cluster.etp}": cluster.etp > 0,
        f"--moe-imbalance {workload.moe_imbalance:g}": workload.moe_imbalance != 1,
        f"moe_dispatcher_sms={workload.moe_dispatcher_sms}": workload.moe_dispatcher_sms > 0,
    }
    given |= {
        f"recompute_modules={name}": name in workload.recompute_modules for name in OF_EXPERTS
    }
    _refuse_given(model, given)


def _refuse_given(model: ModelSpec, given: Mapping[str, bool]) -> None:
    found = [text for text, is_given in given.items() if is_given]
    if found:
        raise InputError(
            f"{', '.join(found)} is of experts, and {model.name} has none; leave it out, or use a "
            "model with experts, such as mixtral-8x7b."
        )
