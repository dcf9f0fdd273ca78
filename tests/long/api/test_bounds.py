"""The bound on layouts, held against every plan of a search."""

from __future__ import annotations

from api import bounds
from domino_tune.requests import TuneRequest
from domino_tune.store.shelf import DISK
from domino_tune.verbs.layouts import Layout, base_of, candidates_of
from domino_tune.verbs.simulate import shortened
from simulator.predict import scheduled


def test_no_layout_has_more_ops_than_are_counted() -> None:
    request = TuneRequest(
        model="gpt3-1.3b", profile="h100-dgx", seq_length=1024, gpus=4, global_batch_size=8,
        overrides=("num_hidden_layers=6",),
    )  # fmt: skip
    base = base_of(request, DISK)
    for one in candidates_of(base, request)[0]:
        case = shortened(one.case)
        for plan in one.plans:
            cluster, work = case.cluster, case.workload
            layout = Layout(
                cluster.tp, cluster.cp, cluster.pp, cluster.vpp, cluster.dp, work.micro_batch_size,
                work.recompute,
            )  # fmt: skip
            counted = bounds.layout_ops(base, request, layout, work.grad_accumulation)
            assert len(scheduled(case, plan)) <= counted
