"""Measure what is still unknown of one GPU, in the minutes that it is lent. Each stage leaves valid
files and continues where measurements/ or its last run ended. Stages run in this order, each in its
own process for its share of the minutes; the next run does what does not fit. At the end come each
stage's findings and one archive of all records."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch

from lab.gpu.admission import admission_cases, contention_cases, queue_cases
from lab.gpu.cuda_tests import test_cases
from lab.gpu.fp8 import attention_cases, fp8_cases
from lab.gpu.gaps import gap_cases, rehearsal_cases
from lab.gpu.grouped import grouped_cases
from lab.gpu.ops import op_cases, training_cases
from lab.gpu.proof import proof_cases
from lab.gpu.stage import GpuCase, Stage, smi
from lab.gpu.sustained import clock_cases, sustained_cases

KEPT: Final = Path(__file__).resolve().parents[2] / "measurements"
PROFILES: Final = {"H100": "h100-dgx", "H200": "h200-sxm", "B200": "b200-sxm", "A100": "a100-sxm"}
"""What NVML calls a GPU -> the profile, and the folder in measurements/, of its records."""
GRACE_S: Final = 30.0


class Planned(NamedTuple):
    """A stage's cases, and the minutes that it gets of a run."""

    cases: Callable[[Stage], Iterator[GpuCase]]
    minutes: float


STAGES: Final[dict[str, Planned]] = {
    "tests": Planned(test_cases, 2.0), "clocks": Planned(clock_cases, 2.6),
    "admission": Planned(admission_cases, 1.2), "queues": Planned(queue_cases, 0.5),
    "sustained": Planned(sustained_cases, 1.1), "gaps": Planned(gap_cases, 0.7),
    "proof": Planned(proof_cases, 3.5), "fp8": Planned(fp8_cases, 1.6),
    "grouped": Planned(grouped_cases, 0.9), "attention": Planned(attention_cases, 0.5),
    "ops": Planned(op_cases, 1.0), "rehearsal": Planned(rehearsal_cases, 0.5),
    "training": Planned(training_cases, 1.0), "contention": Planned(contention_cases, 2.0),
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run what fits in ``--minutes``; return 2 where there is no GPU, 1 where a stage broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="end after about this time")
    parser.add_argument("--out", type=Path, default=Path("gpu-records"), help="folder of records")
    parser.add_argument("--stage", choices=STAGES, action="append", help="only these, in order")
    options = parser.parse_args(arguments)
    name = "".join(smi("name"))
    if not name:
        print("No GPU: nvidia-smi lists none here.", file=sys.stderr)
        return 2
    profile = next((of for part, of in PROFILES.items() if part in name), "this-gpu")
    print(f"{name}: records of {profile}", flush=True)
    broken = run_all(options.stage or list(STAGES), options.minutes, options.out, profile)
    print(f"archive: {archived(options.out)}", flush=True)
    return 1 if broken else 0


def run_all(names: Sequence[str], minutes: float, out: Path, profile: str) -> list[str]:
    """Run stages while there are minutes, each in a process of its own; return those that broke."""
    stop_at, broken = time.monotonic() + 60 * minutes, []
    for name in names:
        left = (stop_at - time.monotonic()) / 60
        if left < 0.3:
            print(f"{name}: no time is left for it", flush=True)
            continue
        share = min(left, STAGES[name].minutes)
        # Nothing here has touched CUDA, so that a fork, which need not import torch again, may.
        told = (name, share, out, profile)
        process = multiprocessing.get_context("fork").Process(target=_run_one, args=told)
        process.start()
        process.join(60 * share + GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
        if process.exitcode:
            broken.append(name)
            print(f"{name}: ended with {process.exitcode}; its records so far are kept", flush=True)
    return broken


def _run_one(name: str, minutes: float, out: Path, profile: str) -> None:
    stage = Stage(out, name, minutes, profile, device(), KEPT / profile)
    stage.run(STAGES[name].cases(stage))


def device() -> torch.device:
    """Return the first GPU, now current."""
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def archived(folder: Path) -> Path:
    """Pack the records into one file beside them and return its path."""
    path = folder / "records.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(folder.glob("*.json*")):
            archive.add(file, file.name)
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
