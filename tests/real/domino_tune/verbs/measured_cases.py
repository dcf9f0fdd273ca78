"""Measured tuning of a question small enough for two real ranks, over three plans in all."""

from __future__ import annotations

from pathlib import Path

from domino_tune.requests import MeasureRequest
from domino_tune.store.evidence import Evidence, LaunchRecord
from domino_tune.store.shelf import dump_model
from tests.support.validation_cases import CLUSTER, MODEL, WORKLOAD, write_files


def measured_request(folder: Path, **changes: object) -> MeasureRequest:
    """The request, with its model and a profile that claims to be of here written to ``folder``.

    DeepSpeed's orders are two plans: with the baseline, three evaluations at most.
    """
    profile = write_files(folder).profile
    model = folder / "model.json"
    model.write_text(dump_model(MODEL))
    fields: dict[str, object] = {
        "model": str(model), "profile": profile, "tp": CLUSTER.tp,
        "seq_length": WORKLOAD.seq_length, "micro_batch_size": WORKLOAD.micro_batch_size,
        "dtype": WORKLOAD.dtype, "backend": "gloo", "target": "deepspeed",
        "evidence": str(folder / "evidence.jsonl"), **changes,
    }  # fmt: skip
    return MeasureRequest(**fields)


def launches(request: MeasureRequest) -> list[LaunchRecord]:
    """What the request's evidence file holds."""
    from domino_tune.verbs.ranks import launch_spec
    from domino_tune.verbs.tune_measured import played_case, question_of

    case = played_case(request)
    question = question_of(case, launch_spec(request, tp=case.cluster.tp))
    with Evidence(Path(str(request.evidence)), question) as evidence:
        return evidence.records
