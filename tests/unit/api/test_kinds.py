"""Each kind of job is an entry of every registry of kinds."""

from __future__ import annotations

from typing import get_args

from api.app import route_table
from api.kinds import KINDS
from domino_tune.requests.service import JOB_KINDS, JOB_STATES
from domino_tune.service.jobs.job import JobKind, JobState
from domino_tune.service.tasks.work import JOBS


def test_the_registries_hold_the_same_kinds() -> None:
    assert set(KINDS) == set(JOBS) == set(JOB_KINDS) == set(get_args(JobKind))
    assert get_args(JobState) == JOB_STATES


def test_every_link_is_a_route() -> None:
    served = {route.path for route in route_table() if route.method == "GET"}
    for kind, known in KINDS.items():
        for link in ("", *(f"/{name}" for name in known.links)):
            assert f"/v1/{kind}s/{{job_id}}{link}" in served
