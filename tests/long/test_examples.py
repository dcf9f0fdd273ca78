"""examples/train_hf.py under torchrun: it learns, and continues from a checkpoint bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S

pytest.importorskip("torch")
pytest.importorskip("transformers")

EXAMPLE = REPOSITORY / "examples" / "train_hf.py"


def train(folder: Path, steps: int) -> list[float]:
    """Train up to ``steps`` on two ranks; return all losses that the folder holds."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(EXAMPLE), "--steps", str(steps), "--checkpoint-every", "6", "--folder", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line)["loss"] for line in (folder / "losses.jsonl").read_text().splitlines()]


def test_the_example_learns_and_resumes_to_the_bit(tmp_path: Path) -> None:
    through = train(tmp_path / "through", 12)
    assert len(through) == 12
    assert through[-1] < through[0] - 0.5
    train(tmp_path / "parts", 6)
    assert train(tmp_path / "parts", 12) == through
    saved = {path.name for path in (tmp_path / "parts" / "model").iterdir()}
    assert saved >= {"config.json", "model.safetensors"}
