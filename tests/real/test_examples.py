"""The examples of a user's loop and of transformers' Trainer, under torchrun on two gloo ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def run(name: str, folder: Path, steps: int) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
        str(REPOSITORY / "examples" / name), "--steps", str(steps), "--checkpoint-every", "2",
        "--folder", str(folder),
    ]  # fmt: skip
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=env)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_loop_trains_and_saves(tmp_path: Path) -> None:
    run("train_hf.py", tmp_path, 3)
    lines = (tmp_path / "losses.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert losses[-1] < losses[0]
    assert (tmp_path / "step-2").is_dir()
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_the_trainer_trains_resumes_and_saves(tmp_path: Path) -> None:
    for steps in (2, 4):
        run("train_trainer.py", tmp_path, steps)
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert (tmp_path / "model" / "model.safetensors").exists()
