"""Train a small Hugging Face Llama whose layers play a plan, on the text of this repository.

    torchrun --nproc-per-node 2 examples/train_hf.py --steps 60 --folder out/train_hf

Started again with the same folder, it continues from its last checkpoint. All of it is an ordinary
loop; only the line with ``apply`` is domino_tune's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from domino_tune.runtime import apply

HERE = Path(__file__).parent
SEQUENCES, LENGTH = 8, 128


def main() -> None:
    """Train, or go on training, as the options say."""
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if device.type == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    torch.manual_seed(0)  # every rank makes the same whole model
    model = LlamaForCausalLM(LlamaConfig.from_json_file(str(HERE / "train_hf.json"))).to(device)
    model = apply(model, options.plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.total_steps)
    first = _resume(options.folder, model, optimizer, schedule)
    main_rank = dist.get_rank() == 0
    text = _text().to(device)
    bar = tqdm(range(first, options.steps), initial=first, total=options.steps,
               disable=not main_rank)  # fmt: skip
    for step in bar:
        tokens = _batch(text, step)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        bar.set_postfix(loss=f"{loss.item():.3f}", norm=f"{norm.item():.2f}")
        if main_rank:
            _log(options.folder, step, loss.item())
        if (step + 1) % options.checkpoint_every == 0:
            _checkpoint(options.folder, step + 1, model, optimizer, schedule)
    model.save_pretrained(options.folder / "model")
    dist.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--plan",
        type=Path,
        default=HERE / "train_hf-plan.json",
        metavar="FILE",
        help="plan file of `domino-tune tune --out` (default: the one here)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("out/train_hf"),
        metavar="FOLDER",
        help="checkpoints, losses and the model (default: out/train_hf)",
    )
    parser.add_argument("--steps", type=int, default=60, help="steps to take (default: 60)")
    parser.add_argument(
        "--total-steps",
        type=int,
        default=600,
        help="steps of the learning rate's schedule (default: 600)",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        default=20,
        metavar="N",
        help="steps between checkpoints (default: 20)",
    )
    return parser.parse_args()  # fmt: skip


def _text() -> torch.Tensor:
    """Return the bytes of the repository's documentation: a token each."""
    pages = sorted((HERE.parent / "docs").glob("*.md"))
    return torch.tensor(list(b"".join(page.read_bytes() for page in pages)))


def _batch(text: torch.Tensor, step: int) -> torch.Tensor:
    """Return the sequences of a step, [SEQUENCES, LENGTH], the same on all ranks."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - LENGTH, (SEQUENCES,), generator=generator)
    return torch.stack([text[start : start + LENGTH] for start in starts.tolist()])


def _checkpoint(folder: Path, step: int, model, optimizer, schedule) -> None:  # type: ignore[no-untyped-def]
    """Write the sharded state; ``latest`` names it once it is whole."""
    state, moments = get_state_dict(model, optimizer)
    held = {"model": state, "optimizer": moments, "schedule": schedule.state_dict(), "step": step}
    save(held, checkpoint_id=folder / f"step-{step}")
    if dist.get_rank() == 0:
        (folder / "latest.new").write_text(f"step-{step}")
        (folder / "latest.new").rename(folder / "latest")
    dist.barrier()


def _resume(folder: Path, model, optimizer, schedule) -> int:  # type: ignore[no-untyped-def]
    """Load the last checkpoint, if there is one; return how many steps it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    latest = folder / "latest"
    if not latest.exists():
        return 0
    state, moments = get_state_dict(model, optimizer)
    held = {"model": state, "optimizer": moments, "schedule": schedule.state_dict(), "step": 0}
    load(held, checkpoint_id=folder / latest.read_text())
    set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=moments)
    schedule.load_state_dict(held["schedule"])
    step: int = held["step"]
    return step


def _log(folder: Path, step: int, loss: float) -> None:
    with (folder / "losses.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "loss": loss}) + "\n")


if __name__ == "__main__":
    main()
