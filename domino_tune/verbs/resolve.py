"""From a request to the simulator's arguments: the Case (everything except the plan), the plan, and
the baseline to compare it with."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from domino_tune.base.units import (
    QuantityError,
    moe_imbalance,
    names_in,
    parse_quantity,
    positive,
    power_cap_w,
)
from domino_tune.requests.fields import NEEDED, JobFields, PlanFields, WorkloadFields
from domino_tune.store.plans import PlanFile, ProfileRef, load_plan
from domino_tune.store.shelf import DISK, Shelf, override
from domino_tune.verbs.job_notes import job_notes
from simulator.case import Case, Price
from simulator.dtypes import MATH_OF
from simulator.errors import InputError
from simulator.greedy import order_of
from simulator.implementation import DOMINO_TUNE, IMPLEMENTATIONS, Implementation, changed
from simulator.issue_order import LayerOrder
from simulator.overlap import EP_OVERLAP, RIVALS
from simulator.plan import MEGATRON, SlicePlan, check_pairs, row_problem
from simulator.predict import predict
from simulator.profile import Profile
from simulator.sharding import check_expert_ranks
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.usable import NO_MARGIN, Margin


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A plan and its issue order; from a plan file, the order stored there."""

    plan: SlicePlan
    order: LayerOrder

    @classmethod
    def of(cls, case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Chosen:
        """Return the plan with ``order``, by default the order that its rule gives for the case."""
        return cls(plan=plan, order=order or order_of(case, plan))


def read_plan_file(request: PlanFields) -> PlanFile | None:
    """Return the plan file of the request, or None."""
    return load_plan(request.plan) if request.plan else None


def resolve(
    request: WorkloadFields, plan_file: PlanFile | None = None, shelf: Shelf = DISK
) -> Case:
    """Return the request's case; values that the request leaves out come from the plan file.

    Names are looked up on ``shelf``. Raise InputError that names the missing or wrong options.
    """
    if plan_file is None:
        _require_all(request)
    profile = shelf.profile(request.profile or (plan_file.profile.name if plan_file else ""))
    notes: list[str] = []
    model = _model(request, plan_file, shelf, notes)
    cluster = _cluster(request, plan_file, profile, model)
    workload = _workload(request, plan_file.workload if plan_file else None, cluster, profile)
    if profile.calibration is not None:
        told = profile.calibration
        notes.append(
            f"Profile {profile.name} is {told.base}, calibrated to {told.runs} measured iterations."
        )
    check_quantization(model, workload, profile)
    notes += job_notes(workload, cluster, profile, request.sequence_parallel)
    if plan_file and plan_file.profile != ProfileRef.of(profile):
        notes.append(
            f"The plan was made on another profile ({plan_file.profile.name}, "
            f"{plan_file.profile.content_id[:19]}…) than the one used here."
        )
    case = Case(
        model=model, workload=workload, cluster=cluster, profile=profile, notes=tuple(notes),
        sequence_parallel=request.sequence_parallel,
        memory_margin=memory_margin("--memory-margin", request.memory_margin),
        price=price_of(request),
        loss_assumed=plan_file is None and not _tells(request, "cross_entropy_loss_fusion"),
    )  # fmt: skip
    return replace(case, notes=(*notes, *_changed_values(plan_file, case))) if plan_file else case


def check_quantization(model: ModelSpec, workload: Workload, profile: Profile) -> None:
    """Raise InputError for a recipe that the profile's GPU does not have, and for more layers in
    BF16 than there are."""
    peaks = profile.machine.peaks
    ends = workload.num_layers_at_start_in_bf16 + workload.num_layers_at_end_in_bf16
    if ends > model.num_hidden_layers:
        raise InputError(
            f"num_layers_at_start_in_bf16 + num_layers_at_end_in_bf16 = {ends}, but {model.name} "
            f"has {model.num_hidden_layers} layers; give at most that many."
        )
    if workload.linear_math in peaks or workload.fp8_recipe == "none":
        return
    known = [recipe for recipe, math in MATH_OF.items() if math in peaks]
    instead = f"use --fp8-recipe {', '.join(known)}, or none" if known else "leave it out"
    raise InputError(
        f"Profile {profile.name!r} ({profile.machine.gpu}) has no rates for --fp8-recipe "
        f"{workload.fp8_recipe}; {instead}."
    )


def _changed_values(made: PlanFile, case: Case) -> list[str]:
    """Return a note on the values that differ from those the plan was made for, if any differ."""
    differing = []
    model = made.model.name
    if model != case.model.name:
        made_model = replace(made.model, name=case.model.name)
        if made_model != case.model:
            differing.append(f"model {model}, here {case.model.name}")
    else:
        differing += _changes(made.model, case.model)
    differing += [
        *_changes(made.workload, case.workload), *_changes(made.cluster, case.cluster)
    ]  # fmt: skip
    if not differing:
        return []
    return [f"The plan was made for other values: {'; '.join(differing)}."]


def _changes(old: Any, new: Any) -> list[str]:
    """Return ``tp 8, here 4`` for every field in which two specs differ."""
    now = asdict(new)
    return [
        f"{name} {value}, here {now[name]}"
        for name, value in asdict(old).items()
        if value != now[name]
    ]


def place(cluster: ClusterSpec, profile: Profile, nodes: int | None) -> ClusterSpec:
    """Return ``cluster`` with its ranks on ``nodes`` nodes of the profile; None: the fewest.

    Raise InputError if the nodes are too few, or would have unequal numbers of ranks.
    """
    per_node, world = profile.machine.gpus_per_node, cluster.world_size
    if nodes is None:
        return in_domains(cluster, profile, per_node)
    least = math.ceil(world / per_node)
    if nodes < least:
        raise InputError(
            f"{world} ranks ({cluster.levels}) do not fit on --nodes {nodes} of "
            f"{per_node} GPUs; {_nodes_hint(cluster, least)}."
        )
    if world % nodes:
        raise InputError(
            f"{world} ranks do not spread evenly over --nodes {nodes}; "
            f"{_nodes_hint(cluster, least)}."
        )
    return in_domains(cluster, profile, world // nodes)


def in_domains(cluster: ClusterSpec, profile: Profile, per_node: int) -> ClusterSpec:
    """Return ``cluster`` with ``per_node`` ranks on a node, and as many nodes in an NVLink domain
    as its groups can fill.

    Raise InputError if there is no such number.
    """
    most = profile.machine.gpus_per_domain
    nodes = min(most // profile.machine.gpus_per_node, math.ceil(cluster.world_size / per_node))
    for count in range(nodes, 1, -1):
        with suppress(InputError):
            return replace(cluster, ranks_per_node=per_node, ranks_per_domain=count * per_node)
    return replace(cluster, ranks_per_node=per_node, ranks_per_domain=0)


def _nodes_hint(cluster: ClusterSpec, least: int) -> str:
    """Return which numbers of nodes, from ``least`` upwards, hold the ranks in whole groups."""
    works = []
    for nodes in range(least, cluster.world_size + 1):
        if cluster.world_size % nodes == 0:
            with suppress(InputError):
                replace(cluster, ranks_per_node=cluster.world_size // nodes)
                works.append(str(nodes))
    return f"use one of {', '.join(works)}" if works else "use another tp, dp or pp"


def plan_of(request: PlanFields, plan_file: PlanFile | None, case: Case) -> SlicePlan:
    """Return the plan file's plan, if given, else the plan of the request's options.

    Options that are left out get the usual values for ``case``. Raise InputError if both are given,
    and for a plan that the profile's machines cannot run.
    """
    plan = _asked_plan(request, plan_file, case)
    if plan.strategy == EP_OVERLAP:
        check_pairs(case.model, case.workload, case.cluster)
    if plan.strategy in (*RIVALS, EP_OVERLAP) and case.profile.machine.backend != "nccl":
        raise InputError(
            f"{plan.strategy} is of GPUs, and profile {case.profile.name!r} is of CPUs "
            f"({case.profile.machine.backend}); use --strategy megatron or domino, or a profile of "
            "GPUs."
        )
    return plan


def _asked_plan(request: PlanFields, plan_file: PlanFile | None, case: Case) -> SlicePlan:
    given = _given_plan_options(request)
    if plan_file is not None:
        if given:
            raise InputError(
                f"--plan already gives the plan; leave out {', '.join(sorted(given))}."
            )
        return plan_file.plan
    strategy = request.strategy or "domino"
    if strategy != "domino":
        own = {"--wgrad"} if strategy == EP_OVERLAP else {"--tp-comm-overlap"}
        unsuited = given - {"--strategy"} - own
        if unsuited:
            sliced = ", ".join(sorted(unsuited))
            raise InputError(
                f"--strategy {strategy} is unsliced; leave out {sliced}, or use --strategy domino."
            )
        sharded = case.modes[0] or (strategy in RIVALS and case.sequence_parallel is not False)
        plan = unsliced(strategy, request.tp_comm_overlap, sharded)
        return replace(plan, wgrad=request.wgrad) if request.wgrad else plan
    if request.col_slices and (request.attn_col_slices or request.mlp_col_slices):
        raise InputError(
            "--col-slices sets both blocks; give it, or --attn-col-slices and --mlp-col-slices."
        )
    order = request.order or "greedy"
    fields: dict[str, Any] = {
        "row_slices": request.row_slices or _usual_rows(request, case),
        "attn_col_slices": request.attn_col_slices or request.col_slices or 1,
        "mlp_col_slices": request.mlp_col_slices or request.col_slices or 1,
        "attn_dgrad_slices": request.attn_dgrad_slices or 0,
        "mlp_dgrad_slices": request.mlp_dgrad_slices or 0,
        "order": order,
        "wgrad": request.wgrad or ("fill" if order == "greedy" else "eager"),
        "merge_wgrad": request.merge_wgrad,
        "comm_ctas": request.comm_ctas or 0,
        "sequence_parallel": case.modes[0],
        "slice_dim": request.slice_dim or "batch",
        "slice_balance": request.slice_balance or "balanced",
        "tp_comm_overlap": request.tp_comm_overlap,
    }
    return SlicePlan(**fields)


def _usual_rows(request: PlanFields, case: Case) -> int:
    """Return the row slices of a plan that does not say how many: two, if the batch can be cut in
    two."""
    usual = SlicePlan(
        row_slices=2, slice_dim=request.slice_dim or "batch", sequence_parallel=case.modes[0]
    )
    return 1 if row_problem(usual, case.workload, case.cluster) else 2


def unsliced(strategy: str, told: tuple[str, ...], sequence_parallel: bool) -> SlicePlan:
    """Return the plan of a strategy that slices nothing."""
    return replace(
        MEGATRON,
        strategy=strategy,  # type: ignore[arg-type]  # the plan checks it
        tp_comm_overlap=told,
        sequence_parallel=sequence_parallel,
    )


def baseline_plan(case: Case) -> SlicePlan:
    """Return the unsliced plan that speedups are relative to, whatever mode the plans of ``case``
    have.

    It has sequence parallelism if the machine and the batch allow it, or if only that runs.
    """
    return _fastest(case, case.shards_tokens or False not in case.modes)


def baseline_no_sp(case: Case) -> SlicePlan:
    """Return the unsliced plan without sequence parallelism."""
    return _fastest(case, False)


def _fastest(case: Case, sequence_parallel: bool) -> SlicePlan:
    """Return the unsliced plan with the best number of CTAs; of equal ones, NCCL's choice."""
    choices = case.comm_ctas_choices
    plans = [
        replace(MEGATRON, sequence_parallel=sequence_parallel, comm_ctas=ctas) for ctas in choices
    ]
    if len(plans) == 1:
        return plans[0]
    return min(plans, key=lambda plan: (predict(case, plan).makespan_ns, plan.comm_ctas))


def _given_plan_options(request: PlanFields) -> set[str]:
    names = (
        "strategy", "row_slices", "slice_dim", "slice_balance", "col_slices", "attn_col_slices",
        "mlp_col_slices", "attn_dgrad_slices", "mlp_dgrad_slices", "order", "wgrad", "merge_wgrad",
        "comm_ctas", "tp_comm_overlap",
    )  # fmt: skip
    given = {name for name in names if getattr(request, name) not in (None, False, ())}
    if request.plan and request.sequence_parallel is not None:
        given.add("sequence_parallel")
    return {"--" + name.replace("_", "-") for name in given}


def _require_all(request: WorkloadFields) -> None:
    missing = ["--" + name.replace("_", "-") for name in NEEDED if getattr(request, name) is None]
    if missing:
        them = "it" if len(missing) == 1 else "them"
        or_plan = ", or a plan file with --plan" if isinstance(request, PlanFields) else ""
        raise InputError(f"Missing {', '.join(missing)}: give {them}{or_plan}.")


def _model(
    request: WorkloadFields, plan_file: PlanFile | None, shelf: Shelf, notes: list[str]
) -> ModelSpec:
    if request.model is None and plan_file is not None:
        return override(plan_file.model, request.overrides)
    loaded = shelf.model(request.model or "")
    notes.extend(loaded.notes)
    return override(loaded.spec, request.overrides)


def _workload(
    request: WorkloadFields, old: Workload | None, cluster: ClusterSpec, profile: Profile
) -> Workload:
    """Return the request's workload; values that it leaves out are those of ``old``, else the usual
    ones."""
    names = [item.name for item in fields(Workload)]
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    given["implementation"] = _implementation(request, old, profile)
    if request.pp_layers is not None:
        given["pp_layers"] = _layer_counts(request.pp_layers)
    if request.cuda_graph_scope is not None:
        given["cuda_graph_scope"] = names_in(request.cuda_graph_scope)
    if request.recompute_modules is not None:
        given["recompute_modules"] = names_in(request.recompute_modules)
    given |= how_tokens_move(request)
    check_collectives(profile, request.tp_collectives or (old.tp_collectives if old else "nccl"))
    if old is not None:
        return replace(old, **given)
    return Workload(**{**usual_sharing(cluster), **given})


def usual_sharing(cluster: ClusterSpec) -> dict[str, Any]:
    """Return what replicas share by default, and whether messages between stages overlap, as
    Megatron-LM's users choose them."""
    usual = "distributed-optimizer" if cluster.replicas > 1 else "replicas"
    return {"data_parallel": usual, "overlap_p2p": cluster.vpp > 1}


def _layer_counts(text: str) -> tuple[int, ...]:
    """Return the numbers in ``10,10,9,9``."""
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise InputError(f"--pp-layers must be whole numbers like 10,10,9,9, got {text!r}.")
    return tuple(int(count) for count in text.split(","))


def check_collectives(profile: Profile, kind: str) -> None:
    """Raise InputError for multimem collectives if the profile times none."""
    if kind == "multimem" and not profile.times_multimem:
        raise InputError(
            f"Profile {profile.name!r} times no multimem collectives; leave out what asks for them "
            "(--tp-collectives, --tune-also), or use h100-dgx, which has those of one node."
        )


def usual_implementation(profile: Profile) -> Implementation:
    """Return Megatron-LM's implementation, or our runtime's if the profile times only its
    kernels."""
    return IMPLEMENTATIONS["megatron-te"] if profile.times_other_kernels else DOMINO_TUNE


def _implementation(
    request: WorkloadFields, old: Workload | None, profile: Profile
) -> Implementation:
    """Return the request's implementation. Raise InputError if the profile cannot price it."""
    if request.implementation is not None:
        found = IMPLEMENTATIONS[request.implementation]
    else:
        found = old.implementation if old else usual_implementation(profile)
    found = changed(found, request.implementation_set)
    if request.tp_backward_overlap is not None:
        found = replace(found, tp_backward_overlap=request.tp_backward_overlap)
    if found.tf32 and profile.machine.backend != "nccl":
        if _tells(request, "tf32"):
            raise InputError("tf32 is of GPUs, and the profile is of CPUs; leave it out.")
        found = replace(found, tf32=False)
    if found.name != DOMINO_TUNE.name and not profile.times_other_kernels:
        raise InputError(
            f"Profile {profile.name!r} times the kernels of this project's runtime alone, so it "
            f"cannot price those of {found.name}. Use --implementation {DOMINO_TUNE.name}, or give "
            "its pointwise section a law named 'default'."
        )
    return found


def _tells(request: WorkloadFields, key: str) -> bool:
    """Return whether the request sets a key of the implementation."""
    return any(change.startswith(f"{key}=") for change in request.implementation_set)


def _cluster(
    request: WorkloadFields, plan_file: PlanFile | None, profile: Profile, model: ModelSpec
) -> ClusterSpec:
    old = plan_file.cluster if plan_file else None
    names = ("tp", "dp", "pp", "vpp", "cp", "ep", "etp", "nodes", "profile")
    moved = [name for name in names if getattr(request, name)]
    if old and not moved:
        return _limited(replace(old, cuda_graph=old.cuda_graph or request.cuda_graph), request)
    ep = request.ep or (old.ep if old else 1)
    etp = request.etp or (old.etp if old else 0)
    check_expert_ranks(model, ep, etp)
    cluster = ClusterSpec(
        tp=request.tp or (old.tp if old else 0),
        dp=request.dp or (old.dp if old else 1),
        cp=request.cp or (old.cp if old else 1),
        pp=request.pp or (old.pp if old else 1),
        vpp=request.vpp or (old.vpp if old else 1),
        ep=ep,
        etp=etp,
        ranks_per_node=2**30,  # one large node, until ``place`` sets the nodes
        cuda_graph=request.cuda_graph or bool(old and old.cuda_graph),
        power_cap_w=old.power_cap_w if old and not request.profile else 0.0,
        clock_mhz=old.clock_mhz if old and not request.profile else 0,
    )
    return place(_limited(cluster, request), profile, request.nodes)


def _limited(cluster: ClusterSpec, request: WorkloadFields) -> ClusterSpec:
    """Return ``cluster`` with the request's limits on its GPUs."""
    limits: dict[str, Any] = {}
    if request.power_cap is not None:
        limits["power_cap_w"] = power_cap_w("--power-cap", request.power_cap)
    if request.clock_mhz is not None:
        limits["clock_mhz"] = request.clock_mhz
    return replace(cluster, **limits)


def memory_margin(name: str, text: str | None) -> Margin:
    """Return the margin of ``4GiB``, ``5%`` or ``0``; raise QuantityError for any other text."""
    if text is None or text.strip() == "0":
        return NO_MARGIN
    with suppress(QuantityError):
        found = parse_quantity(name, text, ("bytes", "factor"))
        if found.dimension == "bytes":
            return Margin(size=round(found.value))
        if text.strip().endswith("%") and found.value < 1:
            return Margin(share=found.value)
    raise QuantityError(
        f"{name} must be a size or less than 100 %, got {text!r}; write it like 4GiB or 5%."
    )


def price_of(request: JobFields) -> Price | None:
    """Return the price that the request gives; raise InputError for one that is no number above 0,
    and for a run without a price."""
    if request.gpu_hour is None:
        if request.run_tokens is not None:
            raise InputError("run_tokens are priced with --gpu-hour; give it, or leave them out.")
        return None
    run = positive("run_tokens", request.run_tokens) if request.run_tokens is not None else 0.0
    return Price(positive("--gpu-hour", request.gpu_hour), run)


def how_tokens_move(request: JobFields) -> dict[str, Any]:
    """Return the fields of a workload that the request gives of tokens on their way to experts."""
    given: dict[str, Any] = {}
    if request.moe_dispatcher is not None:
        given["moe_dispatcher"] = request.moe_dispatcher
    if request.moe_imbalance is not None:
        given["moe_imbalance"] = moe_imbalance("--moe-imbalance", request.moe_imbalance)
    return given
