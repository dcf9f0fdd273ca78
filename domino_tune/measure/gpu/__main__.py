"""Measure a profile of one GPU in stages of minutes; each leaves a valid file and can continue.

Stages: ``ops`` (layers of all presets, in place, as one rank of N), ``waves`` (the same at further
token counts, log-spaced and around steps of whole waves), ``launch`` (host costs, graphs, clocks)
and ``contention`` (while an emulated collective runs). Raw results go to one JSON-lines file per
stage, next to the profile.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from domino_tune.measure.collect import add_message
from domino_tune.measure.gpu.contention import contention_rows
from domino_tune.measure.gpu.ops import OpsCase, ops_cases, play_case, release_memory
from domino_tune.measure.gpu.single_gpu_rank import single_gpu_session
from domino_tune.measure.gpu.state import Burner, burst_and_sustained, copy_gb_s, gpu_state
from domino_tune.measure.gpu.waves import wave_cases
from domino_tune.measure.machine import machine_of
from domino_tune.measure.op_rows import measured_ops
from domino_tune.measure.probes.launch import launch_row
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.profiles import load_profile, save_profile
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.profile import LaunchSection, Profile
from simulator.provenance import Provenance
from simulator.specs import ClusterSpec, Workload

SOURCE: Final = "domino_tune gpu-profile: one GPU, the runtime's own ops on a single rank's shard"
MEASURED: Final = Provenance(kind="measured", source=SOURCE)
LAUNCH_CASES: Final = (
    ("gpt3-13b", 2048, 8, 8), ("llama2-13b", 4096, 4, 8), ("gpt3-1.3b", 2048, 4, 8),
)  # fmt: skip
"""Preset, sequence length, sequences, TP degree."""
LAUNCH_PLANS: Final = (
    MEGATRON,
    SlicePlan(row_slices=2, order="intra", wgrad="eager"),
    SlicePlan(row_slices=4, attn_col_slices=2, mlp_col_slices=2, order="intra", wgrad="eager"),
)


class Stage:
    """The files of a stage's results, and its time limit."""

    def __init__(
        self, folder: Path, name: str, minutes: float, profile_name: str,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.device = device
        self.rows_file = folder / f"{name}.jsonl"
        self.profile_file = folder / f"{profile_name}.json"
        self.profile_name = profile_name
        self.stop_at = time.monotonic() + 60 * minutes
        folder.mkdir(parents=True, exist_ok=True)

    def spent(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() > self.stop_at

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it is on disk when this returns."""
        with self.rows_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of this and earlier runs."""
        if not self.rows_file.exists():
            return []
        lines = self.rows_file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def profile(self) -> Profile:
        """Return the profile so far."""
        if self.profile_file.exists():
            return load_profile(self.profile_file)
        return Profile(
            name=self.profile_name,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            machine=replace(machine_of(LaunchSpec(tp=1, backend="nccl")), gpus_per_node=8),
        )


def ops_stage(stage: Stage) -> None:
    """Play the presets' own batches."""
    Burner().tflops(2.0)
    play_cases(stage, ops_cases())


def waves_stage(stage: Stage) -> None:
    """Play token counts between those of the presets."""
    Burner().tflops(2.0)
    play_cases(stage, wave_cases(torch.cuda.get_device_properties(0).multi_processor_count))


def play_cases(stage: Stage, cases: Iterable[OpsCase]) -> None:
    """Play the cases that no earlier run has finished, until the time is up."""
    done = {row["case"] for row in stage.rows() if row.get("complete")}
    profile = stage.profile()
    for case in cases:
        if case.name in done:
            continue
        if stage.spent():
            break
        begun = time.monotonic()
        message = _guarded(stage, case.name, lambda case=case, p=profile: _ops(case, p, stage))  # type: ignore[misc]
        if message is not None:
            profile = add_message(profile, message)
            save_profile(_with_source(profile), stage.profile_file)
            stage.write({**message, "seconds": time.monotonic() - begun, "state": gpu_state()})
            _print(
                f"{case.name}: {len(message['ops'])} signatures, {message['late_steps']} late, "
                f"{time.monotonic() - begun:.1f} s {message['failed'] or ''}"
            )
        release_memory(stage.device)


def _ops(case: OpsCase, profile: Profile, stage: Stage) -> dict[str, Any]:
    session = single_gpu_session(case.model, case.workload, case.cluster, stage.device)
    return play_case(session, case, measured_ops(profile), stage.stop_at)


def _with_source(profile: Profile) -> Profile:
    sections = {
        name: replace(section, provenance=MEASURED)
        for name in ("gemm", "attention", "pointwise")
        if (section := getattr(profile, name)) is not None
    }
    return replace(profile, **sections)


def launch_stage(stage: Stage) -> None:
    """Measure clocks, then launch costs case by case; the first case's go into the profile."""
    clocks = _guarded(stage, "clocks", lambda: {**burst_and_sustained(), "copy_gb_s": copy_gb_s()})
    if clocks is not None:
        stage.write({"case": "clocks", **clocks})
        _print(json.dumps(clocks))
    for name, seq, batch, tp in LAUNCH_CASES:
        model = replace(MODELS[name], num_hidden_layers=2)
        workload = Workload(seq_length=seq, micro_batch_size=batch, dtype="bf16")
        session = single_gpu_session(model, workload, ClusterSpec(tp=tp), torch.device("cuda"))
        for plan in LAUNCH_PLANS:
            if stage.spent():
                return
            row = _guarded(
                stage,
                f"{name} {plan.label}",
                lambda s=session, p=plan: launch_row(s, p),  # type: ignore[misc]
            )
            if row is not None:
                stage.write({"case": f"{name} {plan.label}", **row})
                _print(json.dumps({k: v for k, v in row.items() if k != "cost_us_by_role"}))
                _save_launch(stage, row)
        del session
        torch.cuda.empty_cache()


def contention_stage(stage: Stage) -> None:
    """Measure rows of the ops that no earlier run has finished, until the time is up."""
    done = {row["case"] for row in stage.rows() if row.get("complete")}
    Burner().tflops(2.0)

    def all_rows() -> dict[str, Any]:
        for row in contention_rows(stage.spent, done):
            stage.write({**row, "state": gpu_state()})
            _print(f"{row['case']}: alone {row['alone_ns'] / 1e3:.1f} us, {_slowdowns(row)}")
        return {}

    _guarded(stage, "contention", all_rows)


def _slowdowns(row: Mapping[str, Any]) -> str:
    """Return the slowdowns op/collective by CTA count, at the highest rate, as text."""
    cells = [c for c in row["cells"] if c["rate"] and c["collective_first"] and c["priority"] < 0]
    return " ".join(
        f"c{c['ctas']} {(c['op_ns'] or 0) / row['alone_ns']:.3f}/"
        f"{(c['collective_ns'] or 0) / c['collective_alone_ns']:.3f}"
        for c in cells
    )


def _save_launch(stage: Stage, row: Mapping[str, Any]) -> None:
    profile = stage.profile()
    if profile.launch is None:
        section = LaunchSection(mode="async", cost_us=row["cost_us"], provenance=MEASURED)
        save_profile(replace(profile, launch=section), stage.profile_file)


def _guarded(stage: Stage, case: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return the result of ``work``; after an error print and record it, and return None."""
    try:
        return work()
    except Exception as error:
        traceback.print_exc()
        stage.write({"case": case, "error": f"{type(error).__name__}: {error}"})
        return None


def _print(text: str) -> None:
    print(text, flush=True)


STAGES: Final[dict[str, Callable[[Stage], None]]] = {
    "ops": ops_stage, "waves": waves_stage, "launch": launch_stage,
    "contention": contention_stage,
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
    device = torch.device("cuda")
    STAGES[options.stage](Stage(options.out, options.stage, options.minutes, options.name, device))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
