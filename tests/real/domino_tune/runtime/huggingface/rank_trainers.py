"""What each rank does in the tests of transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import accelerate
import torch
import transformers
from transformers import Trainer, TrainingArguments

from domino_tune.runtime.huggingface.trainer import PlanTrainer
from simulator.errors import InputError
from tests.real.domino_tune.runtime.huggingface.actions import as_by_torchrun
from tests.real.domino_tune.runtime.huggingface.models import LENGTH, VOCAB, model_of
from tests.real.domino_tune.runtime.huggingface.ranks import applied

STEPS: Final = 4


def data() -> list[dict[str, torch.Tensor]]:
    """Return sequences; how many of their tokens count differs from batch to batch."""
    torch.manual_seed(3)
    ids = torch.randint(VOCAB, (64, LENGTH))
    labels = ids.clone()
    for number, row in enumerate(labels):
        row[: number % 5] = -100
    return [{"input_ids": one, "labels": label} for one, label in zip(ids, labels, strict=True)]


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    return TrainingArguments(
        str(folder), use_cpu=True, report_to=[], per_device_train_batch_size=4, max_steps=STEPS,
        gradient_accumulation_steps=2, learning_rate=1e-2, logging_steps=1, save_steps=2,
        max_grad_norm=0.5, disable_tqdm=True, **more,
    )  # fmt: skip


def losses_of(trainer: Trainer, **how: Any) -> list[float]:
    trainer.train(**how)
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


Losses = dict[str, list[float]]


def trained(rank: int, ranks: int, tp: int, name: str, folder: Path) -> Losses:
    """Return the losses of a run, of one that resumes from its checkpoint in the middle, and, where
    ranks are replicas, those of transformers' own model."""
    if ranks > 1:
        as_by_torchrun(rank, ranks)
    else:
        accelerate.state.AcceleratorState._reset_state(True)
    plan_trainer = PlanTrainer if tp > 1 else Trainer
    made: dict[str, Any] = {"train_dataset": data()}
    first = plan_trainer(applied(name, "rows", tp, dp=ranks // tp), arguments(folder), **made)
    found = {"losses": losses_of(first)}
    first.save_model(str(folder / "whole"))
    again = plan_trainer(applied(name, "rows", tp, dp=ranks // tp), arguments(folder), **made)
    checkpoint = str(folder / f"checkpoint-{STEPS // 2}")
    found["resumed"] = losses_of(again, resume_from_checkpoint=checkpoint)
    if tp == 1:  # at TP 2 transformers' own is compared in one process
        theirs = Trainer(model_of(name), arguments(folder / "theirs"), **made)
        found["theirs"] = losses_of(theirs)
    if rank == 0:
        transformers.AutoModelForCausalLM.from_pretrained(folder / "whole")
    return found


def on_two_ranks(rank: int, folder: Path) -> tuple[Losses, Losses, str]:
    """Return the losses of two shards, of two replicas, and what transformers' own Trainer says of
    shards."""
    found = (
        trained(rank, 2, 2, "gpt2", folder / "shards"),
        trained(rank, 2, 1, "llama", folder / "replicas"),
    )
    as_by_torchrun(rank, 2)
    try:
        losses_of(Trainer(applied("gpt2", "rows", 2), arguments(folder), train_dataset=data()))
    except InputError as error:
        return *found, str(error)
    return *found, "nothing"
