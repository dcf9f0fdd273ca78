"""Proof: plans that run on one GPU as rank 0 of eight, compared with their predictions. First the
plans' ops and their launches are measured here. Then the plans run with emulated collectives, which
take the durations of a profile: this tests how ops add up to an iteration, and how ops and
communication slow each other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from domino_tune.base.errors import RunError
from domino_tune.measure.probes.hosts import issue_us, mean_costs_us
from domino_tune.requests.fields import WorkloadFields
from domino_tune.runtime.lanes import Pace
from domino_tune.runtime.lanes.streams import EmulatedStreamLane
from domino_tune.runtime.launch_spec import Backend, LaunchSpec
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.validate import as_emulated
from lab.fidelity.loop import model_file, plans_of, run_emulated, setting_of
from lab.fidelity.scores import KINDS
from lab.gpu.cases import TWO_SLICES, RankCase, laid_over, slice_plans, with_launch
from lab.gpu.ops import joined, joining, session_of
from lab.gpu.stage import GpuCase, Row, Stage
from simulator.case import Case
from simulator.implementation import LaunchOrder
from simulator.profile import Profile
from simulator.specs import ClusterSpec

BASE: Final = "h200-sxm"  # Profile whose collectives and contention are taken for this GPU's
LAYERS: Final = 4
SHAPES: Final = (("gpt3-13b", 2048, 8), ("llama2-13b", 2048, 4))
"""Preset, sequence length, micro-batch size."""
WAYS: Final[tuple[tuple[bool, LaunchOrder], ...]] = (
    (True, "comm_first"), (False, "ordered"), (False, "comm_first"),
)  # fmt: skip
"""Whether plans run as CUDA graphs, else eager, and who gets the SMs first: ``ordered`` has one
hardware queue, the other as many as CUDA has, and priorities."""
ROUNDS: Final = 10
PACE: Final = Pace(duration_ns=20_000, ctas=16)  # Pace of the collectives whose launches are timed
SECONDS: Final = 25.0


class ProofCase(NamedTuple):
    """Some layers of a model on one rank, in every slicing of the workload."""

    ops: RankCase
    cuda_graph: bool
    launch_order: LaunchOrder = "ordered"
    rounds: int = ROUNDS
    backend: Backend = "nccl"

    @property
    def launch(self) -> str:
        """Return how ops are launched: ``eager`` or ``graph``, and in which order."""
        way = "graph" if self.cuda_graph else "eager"
        return way if self.launch_order == "ordered" else f"{way} {self.launch_order}"

    def predicted_by(self, profile: Profile) -> Case:
        """Return the case as the simulator takes it."""
        work = self.ops.workload
        how = replace(work.implementation, launch_order=self.launch_order)
        return Case(
            model=self.ops.model, workload=replace(work, implementation=how), profile=profile,
            cluster=ClusterSpec(tp=self.ops.tp, cuda_graph=self.cuda_graph),
        )  # fmt: skip

    def fields(self, profile: Path) -> WorkloadFields:
        """Return the case as the fields of a request."""
        work = self.ops.workload
        return WorkloadFields(
            model=str(model_file(self.ops.model)), profile=str(profile), tp=self.ops.tp,
            seq_length=work.seq_length, micro_batch_size=work.micro_batch_size, dtype=work.dtype,
            cuda_graph=self.cuda_graph, implementation=work.implementation.name,
            sequence_parallel=False, implementation_set=(f"launch_order={self.launch_order}",),
        )  # fmt: skip


def proof_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield the ops of all plans, then the plans of each way to launch."""
    return cases_of(stage, [proof_case(*shape, *way) for way in WAYS for shape in SHAPES])


def proof_case(preset: str, seq: int, batch: int, graph: bool, order: LaunchOrder) -> ProofCase:
    """Return some layers of a preset, launched in one of ``WAYS``."""
    case = RankCase.of(preset, seq, batch, layers=LAYERS, plans=slice_plans(batch))
    named = replace(case.model, name=f"{preset}-{LAYERS}-layers")
    return ProofCase(replace(case, model=named), graph, order)


def cases_of(stage: Stage, proofs: Sequence[ProofCase]) -> Iterator[GpuCase]:
    """Yield the cases of ``proofs``, in that order."""
    shapes = {proof.ops.name: proof for proof in proofs}
    for name, proof in shapes.items():
        yield GpuCase(f"ops {name}", SECONDS, partial(_ops, stage, proof))
    for proof in proofs:
        name, measure = f"plans {proof.ops.name} {proof.launch}", partial(_plans, stage, proof)
        yield GpuCase(name, SECONDS, partial(measure, list(shapes)))


def _ops(stage: Stage, proof: ProofCase) -> Row:
    """Return ops the profile lacked, on a GPU launch costs. Raise RunError if a plan cannot run."""
    session = session_of(proof.ops, stage.device)
    row = joining(stage, proof.ops, session)
    if row["failed"]:
        raise RunError(f"Ops could not be measured: {row['failed']}. Is the GPU free?")
    if stage.device.type != "cuda" or not row["complete"]:
        return row
    lane = EmulatedStreamLane(lambda _: PACE)
    costs_us = {**mean_costs_us(session, TWO_SLICES), "collective": issue_us(lane, stage.device)}
    lane.close()
    return {**row, "cost_us": costs_us}


def profile_of(stage: Stage, proof: ProofCase, shapes: Sequence[str]) -> Path:
    """Return the model's profile, written once. Raise RunError before its ops are measured."""
    path = stage.rows_file.with_name(f"proof-{proof.ops.model.name}.json")
    if not path.exists():
        needed = {f"ops {name}" for name in shapes if name.startswith(f"{proof.ops.model.name}/")}
        rows = {row["case"]: row for row in stage.rows() if row.get("complete")}
        if not needed <= rows.keys():
            raise RunError(f"Ops of {proof.ops.model.name} are not measured yet.")
        save_profile(measured_profile([rows[name] for name in sorted(needed)]), path)
    return path


def measured_profile(rows: Sequence[Row]) -> Profile:
    """Return ``BASE`` with the ops and launches of these rows."""
    base = load_profile(BASE)
    mine = Profile(name="mine", created=base.created, machine=base.machine)
    for row in rows:
        mine = joined(mine, row)
    return laid_over(base, with_launch(mine, [row["cost_us"] for row in rows if "cost_us" in row]))


def _plans(stage: Stage, proof: ProofCase, shapes: Sequence[str]) -> Row:
    fields, began = proof.fields(profile_of(stage, proof, shapes)), time.monotonic()
    spec = LaunchSpec(tp=proof.ops.tp, backend=proof.backend, single_rank=True)
    profiled = resolve(fields)
    case = as_emulated(profiled, spec)
    chosen = plans_of(case, fields, KINDS["plain"])
    launches = [run_emulated(case, chosen, proof.rounds, spec) for _ in range(2)]
    setting = setting_of(
        case, case, chosen, launches, launches[0], link=proof.launch,
        profile_id=profiled.profile.content_id, profile_s=time.monotonic() - began,
    )  # fmt: skip
    return {"setting": asdict(setting)}
