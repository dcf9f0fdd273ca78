"""Every plan on every team gives the numbers of the unsliced single-process model."""

from __future__ import annotations

import math

import pytest
import torch

from domino_tune.runtime.parameters import ParameterSpec, parameter_specs
from tests.real.domino_tune.runtime.conftest import Jobs, Results
from tests.real.domino_tune.runtime.jobs import Job, RankResult
from tests.real.domino_tune.runtime.ranks import plain_pass
from tests.real.domino_tune.runtime.reference import full_weights, trained
from tests.support.plain_torch import PlainModel

TOLERANCE = {"fp64": 1e-10, "fp32": 1e-5, "bf16": 0.03, "fp16": 0.003}
EXACT_KINDS = (
    "orders", "fp32", "replicas", "options", "sharded", "sequences", "recomputed", "normed",
    "shuffled", "random",
)  # fmt: skip


@pytest.mark.parametrize("kind", EXACT_KINDS)
def test_loss_gradients_and_parameters_equal_the_unsliced_model(
    kind: str, jobs: Jobs, played: Results
) -> None:
    misses = [miss for job in jobs[kind] for miss in _misses(job, played[job.name])]
    assert not misses, "\n".join(misses)


def test_half_precision_stays_near_the_unsliced_model(jobs: Jobs, played: Results) -> None:
    for job in jobs["half"]:
        for seen in played[job.name]:
            assert seen.losses == pytest.approx(
                trained(job.unsliced).losses, rel=TOLERANCE[job.dtype]
            )
            assert seen.norms == pytest.approx(
                trained(job.unsliced).norms, rel=10 * TOLERANCE[job.dtype]
            )


def test_without_communication_it_runs_and_is_wrong(jobs: Jobs, played: Results) -> None:
    for job in jobs["no_comm"]:
        losses = [seen.losses for seen in played[job.name]]
        assert all(map(math.isfinite, losses[0]))
        assert losses[0] != pytest.approx(trained(job.unsliced).losses, rel=1e-3)


@pytest.mark.parametrize("kind", [*EXACT_KINDS, "half", "no_comm"])
def test_order_lanes_and_memory(kind: str, jobs: Jobs, played: Results) -> None:
    """Launch order, lane rules and freed values are checked on the ranks, at every step."""
    problems = [
        f"{job.name}: {problem}"
        for job in jobs[kind]
        for seen in played[job.name]
        for problem in seen.problems
    ]
    assert not problems, "\n".join(problems[:20])


def test_plain_tensor_parallel_layers_equal_the_whole_ones(jobs: Jobs, played: Results) -> None:
    for job in jobs["plain"]:
        weights = {name: weight.requires_grad_() for name, weight in full_weights(job).items()}
        expected, gradients = plain_pass(PlainModel(model=job.model, weights=weights), job)
        specs = {spec.name: spec for spec in parameter_specs(job.model, job.cluster)}
        for seen in played[job.name]:
            assert _error(seen.parameters["y"], expected["y"]) < TOLERANCE["fp64"]
            assert set(seen.gradients[0]) == set(gradients)
        for name, whole in gradients.items():
            shards = [seen.gradients[0][name] for seen in played[job.name]]
            spec = specs.get(name, ParameterSpec(name=name, owner=0, shape=tuple(whole.shape)))
            assert all(_error(got, whole) < TOLERANCE["fp64"] for got in _wholes(spec, shards))


def _misses(job: Job, seen: list[RankResult]) -> list[str]:
    """What differs from the reference by more than the dtype allows."""
    reference, tolerance = trained(job.unsliced), TOLERANCE[job.dtype]
    assert len(seen) == job.tp * job.dp
    errors: dict[str, float] = {}
    for step, (loss, norm) in enumerate(zip(reference.losses, reference.norms, strict=True)):
        for tp_rank in range(job.tp):
            shares = [r.losses[step] for r in seen if r.tp_rank == tp_rank]
            errors[f"loss {step} rank {tp_rank}"] = abs(math.fsum(shares) / loss - 1)
        for rank in seen:
            errors[f"norm {step} {rank.tp_rank}/{rank.dp_rank}"] = abs(rank.norms[step] / norm - 1)
    for dp_rank in range(job.dp):
        replica = [rank for rank in seen if rank.dp_rank == dp_rank]
        assert [rank.tp_rank for rank in replica] == list(range(job.tp))
        for step, whole in enumerate(reference.gradients):
            parts = [rank.gradients[step] for rank in replica]
            errors |= _errors(f"replica {dp_rank} gradient {step}", job, parts, whole)
        parts = [rank.parameters for rank in replica]
        errors |= _errors(f"replica {dp_rank} parameter", job, parts, reference.parameters)
    wrong = {what: error for what, error in errors.items() if not error <= tolerance}
    lines = [f"{job.name}: {what} is off by {error:.1e}" for what, error in wrong.items()]
    return lines[:2] + [f"  and {len(wrong) - 2} more"] * (len(wrong) > 2)


def _errors(
    what: str,
    job: Job,
    parts: list[dict[str, torch.Tensor]],
    expected: dict[str, torch.Tensor],
) -> dict[str, float]:
    found = {}
    for spec in parameter_specs(job.model, job.cluster):
        wanted = expected[spec.name]
        for index, got in enumerate(_wholes(spec, [part[spec.name] for part in parts])):
            # Rows that pad the vocabulary are zero and stay zero.
            padding = got[wanted.shape[0] :]
            error = math.inf if padding.any() else _error(got[: wanted.shape[0]], wanted)
            found[f"{what} {spec.name} {index}"] = error
    return found


def _wholes(spec: ParameterSpec, shards: list[torch.Tensor]) -> list[torch.Tensor]:
    """The full tensor from its shards; a replicated one as often as there are replicas."""
    if spec.cut == "none":
        return shards
    if spec.cut == "columns":
        return [torch.cat(shards, dim=1)]
    heights = [height // len(shards) for height in spec.groups or (spec.shape[0],)]
    groups = zip(*(torch.split(shard, heights) for shard in shards), strict=True)
    return [torch.cat([part for group in groups for part in group])]


def _error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative error in the norm. The floor is for gradients that are zero in exact arithmetic (of
    norms of queries and keys where a sequence is one token): terms of 0.1 cancel to 1e-18."""
    difference = float((got.double() - expected).norm())
    return difference / max(float(expected.norm()), 1e-7)
