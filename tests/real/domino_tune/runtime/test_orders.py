"""The random orders that the ranks play are legal, and far from the ones we wrote."""

from __future__ import annotations

from simulator.build import build_schedule
from simulator.schedule import check_order
from simulator.schedules.intra import intra
from tests.real.domino_tune.runtime.cases import PLANS, all_jobs, few_jobs
from tests.real.domino_tune.runtime.jobs import Job


def test_random_orders_are_legal_and_all_different() -> None:
    jobs = all_jobs()["shuffled"]
    for job in jobs:
        assert job.order
        check_order(build_schedule(job.model, job.workload, job.cluster, job.plan, job.order))
    lines = [line for job in jobs if job.order for line in (job.order.forward, job.order.backward)]
    assert len(set(lines)) == len(lines)
    assert not {intra(jobs[0].plan).forward, intra(jobs[0].plan).backward} & set(lines)


def test_random_orders_move_fragments_across_layers() -> None:
    orders = [job.order for job in all_jobs()["shuffled"] if job.order]
    for lines in ([o.forward for o in orders], [o.backward for o in orders]):
        assert {token.offset for line in lines for token in line.tokens} == {-1, 0, 1}


def test_jobs_have_names_of_their_own() -> None:
    names = [job.name for jobs in all_jobs().values() for job in jobs]
    assert len(set(names)) == len(names)


def shown(jobs: dict[str, list[Job]]) -> set[tuple[object, ...]]:
    """Return the features that the jobs cover, except jobs with random models and batches."""
    found: set[tuple[object, ...]] = set()
    for job in (job for kind, of_kind in jobs.items() if kind != "random" for job in of_kind):
        plan = job.plan
        found |= {
            ("order", plan.strategy, plan.order, plan.wgrad),
            ("cut", plan.order, plan.slice_dim),
            ("balance", plan.slice_dim, plan.slice_balance),
            ("merging", plan.order, plan.merge_wgrad),
            ("team", job.tp, job.dp, plan.sequence_parallel),
            ("model", job.model.name, job.dtype),
            ("recomputation", job.recompute, job.recompute_layers),
            ("accumulation", job.grad_accumulation),
            ("bucket", job.bucket_parameters),
            ("training", job.training, job.train),
        }
    return found


def test_what_is_played_by_default_shows_everything() -> None:
    assert shown(few_jobs()) == shown(all_jobs())
    assert {job.plan for job in few_jobs()["orders"]} == set(PLANS)
