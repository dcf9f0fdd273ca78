"""Measure one GPU in stages of minutes; each leaves valid files and can continue.

``ops``: layers of all presets, in place, as one rank of N. ``training``: the same where weight
gradients add up and layers are recomputed. ``variants``: other frameworks' kernels for the same
mathematics. ``sustained``: ops of CUDA graphs at the clock of a long run. ``clocks``: power and
clock while whole steps run. ``contention``: ops beside emulated collectives. ``admission``: when
such a collective gets in. ``copies``: ops beside copy engines. ``proof``: plans predicted and run,
as rank 0 of eight. ``rehearsal``: what surrounds a plan in a user's loop. Raw results go to one
JSON-lines file per stage, next to the profile; ``scripts/bench h200`` prints their tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch

from lab.gpu.admission import admission_cases
from lab.gpu.beside import contention_cases, copy_cases
from lab.gpu.clocks import clock_cases
from lab.gpu.ops import op_cases, training_cases
from lab.gpu.proof import proof_cases
from lab.gpu.rehearsal import rehearsal_cases
from lab.gpu.stage import GpuCase, Stage
from lab.gpu.sustained import sustained_cases
from lab.gpu.variants import variant_cases

STAGES: Final[dict[str, Callable[[Stage], Iterator[GpuCase]]]] = {
    "ops": op_cases, "training": training_cases, "variants": variant_cases,
    "sustained": sustained_cases, "clocks": clock_cases, "contention": contention_cases,
    "admission": admission_cases, "copies": copy_cases, "proof": proof_cases,
    "rehearsal": rehearsal_cases,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run ``--stage ops --minutes 8 --out FOLDER``; return 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", choices=STAGES, required=True)
    parser.add_argument("--minutes", type=float, default=8.0, help="end after about this time")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results so far")
    parser.add_argument("--name", default="h200-sxm", help="name of the profile")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("No GPU: torch sees no CUDA device here.", file=sys.stderr)
        return 2
    torch.cuda.set_device(0)
    stage = Stage(
        options.out, options.stage, options.minutes, options.name, torch.device("cuda", 0)
    )
    stage.run(STAGES[options.stage](stage))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
