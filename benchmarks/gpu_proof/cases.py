"""The settings of ``scripts/gpu-proof``: layers of two models on one rank of eight."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.fidelity.loop import model_file, plans_of, run_alone, setting_of
from benchmarks.fidelity.scores import Setting
from domino_tune.requests import WorkloadFields
from domino_tune.runtime.launch_spec import Backend, LaunchSpec
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.validate import as_emulated
from simulator.presets import MODELS
from simulator.specs import ModelSpec, Workload

LAYERS: Final = 4
TP: Final = 8
SHAPES: Final = (
    ("gpt3-13b", 2048, 8), ("llama2-13b", 4096, 4), ("gpt3-13b", 2048, 4), ("llama2-13b", 2048, 4),
)  # fmt: skip
"""Preset, sequence length, micro-batch; each eager and as a CUDA graph."""


@dataclass(frozen=True, kw_only=True)
class ProofCase:
    """One setting: a few layers of a model, on one rank of ``tp``."""

    model: ModelSpec
    workload: Workload
    tp: int
    cuda_graph: bool
    rounds: int
    backend: Backend = "nccl"

    @property
    def spec(self) -> LaunchSpec:
        """One rank, alone."""
        return LaunchSpec(tp=self.tp, backend=self.backend, lone=True)

    @property
    def launch(self) -> str:
        """How ops are launched."""
        return "graph" if self.cuda_graph else "eager"

    @property
    def name(self) -> str:
        """Of its file."""
        work = self.workload
        size = f"{work.micro_batch_size}x{work.seq_length}"
        return f"{self.model.name}-{size}-tp{self.tp}-{self.launch}"

    def profile_in(self, folder: Path) -> Path:
        """The file of its model's profile."""
        return folder / f"profile-{self.model.name}.json"

    def fields(self, profile: Path | str) -> WorkloadFields:
        """The same as the program is asked for it."""
        work = self.workload
        return WorkloadFields(
            model=str(model_file(self.model)), profile=str(profile), tp=self.tp,
            seq_length=work.seq_length, micro_batch_size=work.micro_batch_size, dtype=work.dtype,
            cuda_graph=self.cuda_graph,
        )  # fmt: skip

    def asked(self, profile_id: str) -> dict[str, Any]:
        """What a kept result must have been asked for."""
        return {**asdict(self), "profile": profile_id}


def proof_cases(rounds: int) -> Iterator[ProofCase]:
    """All of them, the larger batches first."""
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


def play_case(proof: ProofCase, profile: Path | str) -> Setting:
    """Tune on ``profile``, run all plans in two launches, compare."""
    asked, began = proof.fields(profile), time.monotonic()
    profiled = resolve(asked)
    case = as_emulated(profiled, proof.spec)
    chosen = plans_of(case, asked)
    launches = [run_alone(case, chosen, proof.rounds, proof.spec) for _ in range(2)]
    return setting_of(
        case, case, chosen, launches, launches[0],
        link=proof.launch, profile_id=profiled.profile.content_id,
        profile_s=time.monotonic() - began,
    )  # fmt: skip
