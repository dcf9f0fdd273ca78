"""Cases of ``scripts/gpu-proof``: some layers of two models, on one rank of eight."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from domino_tune.requests import WorkloadFields
from domino_tune.runtime.launch_spec import Backend, LaunchSpec
from domino_tune.verbs.here_and_now import as_emulated
from domino_tune.verbs.resolve import resolve
from lab.fidelity.loop import model_file, plans_of, run_emulated, setting_of
from lab.fidelity.scores import Setting
from lab.fidelity.settings import KINDS
from simulator.presets import MODELS
from simulator.specs import ModelSpec, Workload

LAYERS: Final = 4
TP: Final = 8
SHAPES: Final = (
    ("gpt3-13b", 2048, 8), ("llama2-13b", 4096, 4), ("gpt3-13b", 2048, 4), ("llama2-13b", 2048, 4),
)  # fmt: skip
"""Preset, sequence length and micro-batch size. Each runs eager and as a CUDA graph."""


@dataclass(frozen=True, kw_only=True)
class ProofCase:
    """Some layers of a model on one rank of ``tp``."""

    model: ModelSpec
    workload: Workload
    tp: int
    cuda_graph: bool
    rounds: int
    backend: Backend = "nccl"

    @property
    def spec(self) -> LaunchSpec:
        """Return the launch of a single rank."""
        return LaunchSpec(tp=self.tp, backend=self.backend, single_rank=True)

    @property
    def launch(self) -> str:
        """Return how ops are launched: ``eager`` or ``graph``."""
        return "graph" if self.cuda_graph else "eager"

    @property
    def name(self) -> str:
        """Return the name of the case's file."""
        work = self.workload
        size = f"{work.micro_batch_size}x{work.seq_length}"
        return f"{self.model.name}-{size}-tp{self.tp}-{self.launch}"

    def profile_in(self, folder: Path) -> Path:
        """Return the file of the model's profile in ``folder``."""
        return folder / f"profile-{self.model.name}.json"

    def fields(self, profile: Path | str) -> WorkloadFields:
        """Return the case as the fields of a request."""
        work = self.workload
        return WorkloadFields(
            model=str(model_file(self.model)), profile=str(profile), tp=self.tp,
            seq_length=work.seq_length, micro_batch_size=work.micro_batch_size, dtype=work.dtype,
            cuda_graph=self.cuda_graph, implementation=work.implementation.name,
            sequence_parallel=False,
        )  # fmt: skip

    def inputs(self, profile_id: str) -> dict[str, Any]:
        """Return the inputs that a record of this case holds."""
        return {**asdict(self), "profile": profile_id}


def proof_cases(rounds: int) -> Iterator[ProofCase]:
    """Yield all cases, the larger batches first."""
    for preset, seq, batch in SHAPES:
        model = replace(
            MODELS[preset], name=f"{preset}-{LAYERS}-layers", num_hidden_layers=LAYERS,
            attention_dropout=0.0,
        )  # fmt: skip
        workload = Workload(seq_length=seq, micro_batch_size=batch, dtype="bf16")
        for cuda_graph in (False, True):
            yield ProofCase(
                model=model, workload=workload, tp=TP, cuda_graph=cuda_graph, rounds=rounds
            )


def run_case(proof: ProofCase, profile: Path | str) -> Setting:
    """Tune on ``profile``, run all plans in two launches, and compare them with predictions."""
    fields, began = proof.fields(profile), time.monotonic()
    profiled = resolve(fields)
    case = as_emulated(profiled, proof.spec)
    chosen = plans_of(case, fields, KINDS["plain"])
    launches = [run_emulated(case, chosen, proof.rounds, proof.spec) for _ in range(2)]
    return setting_of(
        case, case, chosen, launches, launches[0],
        link=proof.launch, profile_id=profiled.profile.content_id,
        profile_s=time.monotonic() - began,
    )  # fmt: skip
