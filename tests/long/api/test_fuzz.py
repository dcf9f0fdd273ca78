"""schemathesis, all phases and few examples; scripts/fuzz runs more."""

from __future__ import annotations

from pathlib import Path

from tests.long.api.fuzz import fuzz


def test_the_service_keeps_to_its_document(tmp_path: Path) -> None:
    code, text = fuzz(tmp_path, examples=4)
    assert code == 0, text[-20_000:]
