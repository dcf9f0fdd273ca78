"""HTTP client: the verbs at a server. May import results, store, requests, base.

    from domino_tune.client import Client
    from domino_tune.requests import TuneRequest

    with Client("http://127.0.0.1:8000") as client:
        job = client.result("tune", TuneRequest(model="llama2-7b", profile="h100-dgx", tp=8,
                                                seq_length=4096, micro_batch_size=8))
        print(job.answer().best.plan.label)

``submit`` and ``wait`` do the same in two steps. Methods raise the errors that the same verbs raise
locally; ServiceError where the server cannot be reached or fails; AccessError where the token is
missing, wrong or allows too little.
"""

from domino_tune.base.errors import needed_for

with needed_for("domino_tune.client"):
    from domino_tune.client.client import Client
    from domino_tune.client.jobs import Job, JobPage, ListPage

__all__ = ["Client", "Job", "JobPage", "ListPage"]
