"""Profiles and models by name, with conditions; names are never paths."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from domino_tune.base.errors import KeyReuseError, NotFoundError, PreconditionError
from domino_tune.service.library import Library, bundled
from domino_tune.service.sql import tables
from domino_tune.service.sql.database import Database
from domino_tune.store.profiles import (
    FiledProfile,
    dump_profile,
    filed,
    parse_profile,
    save_profile,
)
from simulator.errors import InputError
from simulator.presets import MODELS
from tests.real.domino_tune.service.made import key

LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
    "intermediate_size": 1024, "vocab_size": 32000, "my_own_key": 1,
}  # fmt: skip
NO_SLUGS = ["", "A", "..", "a..b", "a/b", "../a100-sxm", "/etc/passwd", "a\0", "-a", "é", "a" * 65]


@pytest.fixture
def library(database: Database) -> Library:
    return Library(database)


def profile_file(name: str = "mine", created: str = "2026-01-01") -> bytes:
    return dump_profile(replace(bundled()["a100-sxm"], name=name, created=created))


def profile(name: str = "mine", created: str = "2026-01-01") -> FiledProfile:
    return filed(parse_profile(profile_file(name, created), source="file"))


def test_what_another_program_kept_is_listed(library: Library, database: Database) -> None:
    content_id, _ = library.put("mine", profile())
    library.put("yours", profile("yours"))
    newer = json.dumps({"schema": 10**6, **asdict(profile().summary)})
    with database.write() as connection:
        bodies = tables.profile_bodies
        mine = update(bodies).where(bodies.c.content_id == content_id)
        connection.execute(mine.values(summary=newer))
    summaries = {one.name: one for one in Library(database).list()}
    assert (summaries["mine"].content_id, summaries["mine"].sections) == (content_id, {})
    assert "schema 1000000 is newer" in (summaries["mine"].problem or "")
    assert summaries["yours"] == profile("yours").summary
    assert summaries["yours"].sections == summaries["a100-sxm"].sections
    assert [one for one in summaries.values() if one.problem] == [summaries["mine"]]


def test_put_get_delete(library: Library) -> None:
    content_id, created = library.put("mine", profile())
    assert created
    assert library.put("mine", profile()) == (content_id, False)
    assert library.get("mine") == (content_id, profile_file())
    listed = {one.name: one.origin for one in library.list()}
    assert listed == {**dict.fromkeys(bundled(), "bundled"), "mine": "library"}
    assert list(listed) == sorted(listed)
    library.delete("mine")
    for gone in (library.get, library.delete):
        with pytest.raises(NotFoundError, match="mine"):
            gone("mine")


def test_a_newer_profile_is_used_at_once(library: Library) -> None:
    library.put("mine", profile())
    assert library.profile("mine").created == "2026-01-01"
    library.put("mine", profile(created="2026-02-02"))
    assert library.profile("mine").created == "2026-02-02"


def test_conditions(library: Library) -> None:
    with pytest.raises(PreconditionError, match="not there"):
        library.put("mine", profile(), if_match="*")
    first, _ = library.put("mine", profile(), if_none_match="*")
    with pytest.raises(PreconditionError, match=first):
        library.put("mine", profile(created="2026-02-02"), if_none_match="*")
    second, created = library.put("mine", profile(created="2026-02-02"), if_match=first)
    assert not created
    with pytest.raises(PreconditionError, match=second):
        library.put("mine", profile(), if_match=first)
    with pytest.raises(PreconditionError, match=second):
        library.delete("mine", if_match=first)
    assert library.get("mine")[0] == second
    library.delete("mine", if_match=second)
    with pytest.raises(PreconditionError, match="not there"):
        library.delete("mine", if_match=second)


def test_a_profile_calls_itself_as_it_is_named(library: Library) -> None:
    with pytest.raises(InputError, match="calls itself 'other'"):
        library.put("mine", profile("other"))
    assert len(library.list()) == len(bundled())


def test_names_are_slugs(library: Library) -> None:
    uses: list[Callable[[str], object]] = [
        library.get,
        library.delete,
        library.profile,
        library.model,
        lambda name: library.put(name, profile()),
        lambda name: library.put_model(name, LLAMA),
    ]
    for name in NO_SLUGS:
        for use in uses:
            with pytest.raises(InputError, match="small letters"):
                use(name)


def test_the_shelf_knows_no_files_and_no_user(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    save_profile(replace(bundled()["a100-sxm"], name="users"), tmp_path / "profiles/users.json")
    (tmp_path / "file.json").write_bytes(profile_file())
    for name in ("users", "file.json", "file"):
        with pytest.raises(InputError, match="Unknown profile"):
            library.profile(name)
        with pytest.raises(InputError, match="Unknown model"):
            library.model(name)
    assert library.profile("h100-dgx") == bundled()["h100-dgx"]


def test_models(library: Library) -> None:
    stored, created = library.put_model("tiny", LLAMA)
    assert created
    assert (stored.spec.name, stored.spec.hidden_size) == ("tiny", 512)
    assert any("my_own_key" in note for note in stored.notes)
    assert library.list_models()[-1] == stored
    assert [one.name for one in library.list_models()] == [*MODELS, "tiny"]
    loaded = library.model("tiny")
    assert (loaded.spec, loaded.notes) == (stored.spec, stored.notes)
    again, created = library.put_model("tiny", {**LLAMA, "num_hidden_layers": 8})
    assert not created
    assert library.list_models()[-1] == again


def test_a_key_is_answered_the_same(library: Library) -> None:
    import_key = key(route="import", body=b"table")
    first = library.put("mine", profile(), idempotency=import_key)
    library.put("mine", profile(created="2026-02-02"))
    again = library.put("mine", profile(created="2026-03-03"), idempotency=import_key)
    assert again == first
    assert library.profile("mine").created == "2026-02-02"
    with pytest.raises(KeyReuseError):
        library.put("mine", profile(), idempotency=key(route="import", body=b"other"))
    model_key = key(route="models")
    assert library.put_model("tiny", LLAMA, idempotency=model_key)[1]
    assert library.put_model("tiny", LLAMA, idempotency=model_key)[1]
