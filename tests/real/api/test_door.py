"""The table of the door, over sockets to a process on PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.door.documented import wrong
from tests.support.door.exchange import Answer, exchange
from tests.support.door.table import table
from tests.support.postgres import Postgres
from tests.support.service import serving


def test_all_are_answered_as_the_table_says(tmp_path: Path, postgres: Postgres) -> None:
    url, rows = postgres.new_database(), table()
    with serving(tmp_path, database_url=url, receive_s=1.0, burst=100_000) as service:

        def ask(name: str) -> tuple[str, Answer]:
            return name, exchange(service.port, rows[name].parts)

        late = [name for name, case in rows.items() if case.late]
        answers = dict(map(ask, (name for name in rows if name not in late)))
        with ThreadPoolExecutor(len(late)) as threads:
            answers |= threads.map(ask, late)
        faults = {name: wrong(rows[name], answer) for name, answer in answers.items()}
        assert not {name: fault for name, fault in faults.items() if fault}
        with service.client() as client:  # and nothing was kept
            assert client.get("/v1/jobs").json()["items"] == []
            assert {
                client.get(f"/v1/{kind}/mine").status_code for kind in ("models", "profiles")
            } == {404}
        assert service.process.poll() is None
        log = service.log.read_text()
    assert "Traceback" not in log
    assert " ERROR " not in log
