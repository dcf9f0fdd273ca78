"""Train a small Llama whose layers play a plan with transformers' Trainer: ``train_hf.py`` in less.

    torchrun --nproc-per-node 2 examples/train_trainer.py --steps 60 --folder out/train_trainer

Started again with the same folder, it continues from its last checkpoint. ``pip install accelerate
transformers`` first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from domino_tune.runtime import apply
from domino_tune.runtime.huggingface.trainer import PlanTrainer

HERE = Path(__file__).parent
LENGTH = 128


def main() -> None:
    """Train, or go on training, as the options say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plan", type=Path, default=HERE / "train_hf-plan.json", metavar="FILE")
    parser.add_argument("--folder", type=Path, default=Path("out/train_trainer"), metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=60, help="steps to take (default: 60)")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="N")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)  # every rank makes the same whole model
    model = LlamaForCausalLM(LlamaConfig.from_json_file(str(HERE / "train_hf.json"))).to(device)
    trainer = PlanTrainer(
        apply(model, options.plan),
        TrainingArguments(
            str(options.folder), max_steps=options.steps, save_steps=options.checkpoint_every,
            per_device_train_batch_size=8, learning_rate=1e-3, optim="adamw_torch_fused",
            logging_steps=1, report_to=[], use_cpu=not on_gpu,
            lr_scheduler_type="constant",
        ),
        train_dataset=_sequences(),
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=_last(options.folder))
    trainer.save_model(str(options.folder / "model"))
    if dist.get_rank() == 0:
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        (options.folder / "losses.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


def _sequences() -> list[dict[str, torch.Tensor]]:
    """Return the bytes of the repository's documentation, a token each, in sequences."""
    pages = sorted((HERE.parent / "docs").glob("*.md"))
    text = torch.tensor(list(b"".join(page.read_bytes() for page in pages)))
    whole = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
    return [{"input_ids": tokens, "labels": tokens} for tokens in whole]


def _last(folder: Path) -> str | None:
    last: str | None = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    return last


if __name__ == "__main__":
    main()
