"""The service's profiles and models by name; those that come with the program are read-only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Final, Literal

from sqlalchemy import Connection, Row, delete, select, update

from domino_tune.base.errors import ConflictError, NotFoundError, PreconditionError
from domino_tune.service.idempotency import Idempotency, answered, claim_key
from domino_tune.service.job import dump
from domino_tune.service.names import slug
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.statements import insert, now_s
from domino_tune.service.sql.tables import models, profile_bodies, profiles
from domino_tune.store.formats.model_file import dump_model, model_from_json
from domino_tune.store.models import LoadedModel, override, read_model
from domino_tune.store.profiles import (
    ProfileSummary,
    bundled_bytes,
    bundled_names,
    dump_profile,
    parse_profile,
    summary_of,
)
from domino_tune.store.shelf import Shelf
from simulator.errors import InputError, ProfileError, unknown_name
from simulator.presets import MODELS
from simulator.profile import Profile
from simulator.specs import ModelSpec

Origin = Literal["bundled", "library"]
ANY: Final = "*"
"""As If-Match: whatever is there; as If-None-Match: nothing may be there."""
_PARSED: Final = 8
"""Each may be of 16 MiB, as a file."""
_SUMMARIES: Final = 1024


@dataclass(frozen=True, kw_only=True)
class ListedProfile:
    """A profile's place in the list."""

    name: str
    origin: Origin
    content_id: str


@dataclass(frozen=True, kw_only=True)
class KeptProfile:
    """A profile's file; ``content_id`` is its ETag."""

    name: str
    origin: Origin
    content_id: str
    body: bytes


@dataclass(frozen=True, kw_only=True)
class KeptModel:
    """A model, and remarks on how its config was read."""

    name: str
    origin: Origin
    spec: ModelSpec
    notes: tuple[str, ...] = ()


class Library:
    """Profiles and models in the database, beside the bundled ones.

    Names are slugs and never paths. All raise StorageError and UnavailableError, and InputError
    for a name that is no slug.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        # Contents never change under their id; reading one strictly takes tens of milliseconds.
        self._parsed = lru_cache(maxsize=_PARSED)(self._parse)
        self.summary = lru_cache(maxsize=_SUMMARIES)(self._summary)

    def put(
        self,
        name: str,
        data: bytes,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        idempotency: Idempotency | None = None,
        said: Mapping[str, Any] | None = None,
    ) -> tuple[str, bool]:
        """Keep the profile in file ``data``: its content id, and whether the name is new.

        Conditions are content ids or ``*``; ``said`` is kept with the key, for ``answered`` to
        tell. Raises ProfileError for a bad file, InputError where it calls itself otherwise,
        ConflictError for a bundled name, PreconditionError.
        """
        profile = parse_profile(data, source=f"profile {slug('profile', name)!r}")
        _refuse_bundled("profile", name, bundled())
        if profile.name != name:
            raise InputError(
                f"The profile calls itself {profile.name!r}, not {name!r}; put it under its own "
                "name, or import it under another."
            )
        content_id = profile.content_id
        with self._database.write() as connection:
            current = _current(connection, name)
            answer = dump({"content_id": content_id, "created": current is None, "said": said})
            before = claim_key(connection, idempotency, answer)
            if before is not None:
                told = json.loads(before)
                return told["content_id"], told["created"]
            _check(name, current, if_match, if_none_match)
            _keep(connection, name, current, content_id, dump_profile(profile))
        return content_id, current is None

    def answered(self, given: Idempotency) -> tuple[str, bool, Any] | None:
        """What ``put`` answered to this key before, and what was ``said``. Raises KeyReuseError."""
        with self._database.read() as connection:
            before = answered(connection, given)
        if before is None:
            return None
        told = json.loads(before)
        return told["content_id"], told["created"], told.get("said")

    def get(self, name: str) -> KeptProfile:
        """A profile's file. Raises NotFoundError."""
        if slug("profile", name) in bundled():
            return KeptProfile(
                name=name,
                origin="bundled",
                content_id=bundled()[name].content_id,
                body=bundled_bytes(name),
            )
        asked = (
            select(profile_bodies)
            .join(profiles, profiles.c.content_id == profile_bodies.c.content_id)
            .where(profiles.c.name == name)
        )
        with self._database.read() as connection:
            row = connection.execute(asked).one_or_none()
        if row is None:
            raise NotFoundError(f"There is no profile {name!r}; the list of profiles has all.")
        return KeptProfile(name=name, origin="library", content_id=row.content_id, body=row.body)

    def delete(self, name: str, *, if_match: str | None = None) -> None:
        """Forget a name. Raises NotFoundError, PreconditionError, ConflictError if bundled."""
        _refuse_bundled("profile", slug("profile", name), bundled())
        with self._database.write() as connection:
            current = _current(connection, name)
            if current is None and if_match is None:
                raise NotFoundError(f"There is no profile {name!r}; the list of profiles has all.")
            _check(name, current, if_match, None)
            connection.execute(delete(profiles).where(profiles.c.name == name))

    def list(self) -> tuple[ListedProfile, ...]:
        """All profiles, by name, none of them read."""
        found = [
            ListedProfile(name=name, origin="bundled", content_id=profile.content_id)
            for name, profile in bundled().items()
        ]
        for name, content_id in self._names().items():
            found.append(ListedProfile(name=name, origin="library", content_id=content_id))
        return tuple(sorted(found, key=lambda one: one.name))

    def _summary(self, listed: ListedProfile) -> ProfileSummary:
        """What a list says of it; ``problem`` where this program cannot read what another kept."""
        if listed.origin == "bundled":
            return summary_of(bundled()[listed.name], listed.origin)
        try:
            return summary_of(self._parsed(listed.content_id), listed.origin)
        except ProfileError as error:
            return ProfileSummary(
                name=listed.name, origin=listed.origin, gpu="", created="",
                content_id=listed.content_id, sections={}, problem=str(error),
            )  # fmt: skip

    def put_model(
        self, name: str, parsed: Mapping[str, Any], *, idempotency: Idempotency | None = None
    ) -> tuple[KeptModel, bool]:
        """Keep a Hugging Face config or model file, parsed: the model, and whether it is new.

        Raises InputError for a bad config, ConflictError for a preset's name.
        """
        loaded = read_model(parsed, name=slug("model", name), source=f"model {name!r}")
        _refuse_bundled("model", name, MODELS)
        kept = KeptModel(
            name=name,
            origin="library",
            spec=replace(loaded.spec, name=name),
            notes=loaded.notes,
        )
        values = {
            "body": dump_model(kept.spec),
            "notes": json.dumps(kept.notes),
            "updated_s": now_s(),
        }
        with self._database.write() as connection:
            there = select(models.c.name).where(models.c.name == name)
            created = connection.scalar(there) is None
            before = claim_key(connection, idempotency, dump({"created": created}))
            if before is not None:
                return kept, json.loads(before)["created"]
            connection.execute(
                insert(connection, models)
                .values(name=name, **values)
                .on_conflict_do_update(index_elements=["name"], set_=values)
            )
        return kept, created

    def get_model(self, name: str) -> KeptModel:
        """A model. Raises NotFoundError."""
        found = self._find_model(name)
        if found is None:
            raise NotFoundError(f"There is no model {name!r}; the list of models has all.")
        return found

    def list_models(self) -> tuple[KeptModel, ...]:
        """Presets, small to large within a family, then the library's, by name."""
        presets = [_preset(name) for name in MODELS]
        with self._database.read() as connection:
            kept = [_kept_model(row) for row in connection.execute(select(models))]
        return (*presets, *sorted(kept, key=lambda one: one.name))

    def shelf(self) -> Shelf:
        """Where requests look up names: this library, and nothing else."""
        return LibraryShelf(self)

    def profile(self, name: str) -> Profile:
        """The profile, parsed. Raises InputError for an unknown name."""
        if slug("profile", name) in bundled():
            return bundled()[name]
        names = self._names()
        if name not in names:
            raise unknown_name("profile", name, {*bundled(), *names})
        return self._parsed(names[name])

    def model(self, name: str) -> KeptModel:
        """As ``get_model``, but raises InputError for an unknown name."""
        found = self._find_model(name)
        if found is None:
            raise unknown_name("model", name, (one.name for one in self.list_models()))
        return found

    def _find_model(self, name: str) -> KeptModel | None:
        if slug("model", name) in MODELS:
            return _preset(name)
        with self._database.read() as connection:
            row = connection.execute(select(models).where(models.c.name == name)).one_or_none()
        return None if row is None else _kept_model(row)

    def _names(self) -> dict[str, str]:
        with self._database.read() as connection:
            return {row.name: row.content_id for row in connection.execute(select(profiles))}

    def _parse(self, content_id: str) -> Profile:
        asked = select(profile_bodies.c.body).where(profile_bodies.c.content_id == content_id)
        with self._database.read() as connection:
            body = connection.execute(asked).scalar_one()
        return parse_profile(body, source=f"profile {content_id}")


class LibraryShelf:
    """A Shelf over a library: names only."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def profile(self, name: str) -> Profile:
        """See ``Library.profile``."""
        return self._library.profile(name)

    def model(self, name: str, overrides: Iterable[str] = ()) -> LoadedModel:
        """See ``Library.model``."""
        kept = self._library.model(name)
        return LoadedModel(spec=override(kept.spec, overrides), notes=kept.notes)


@cache
def bundled() -> Mapping[str, Profile]:
    """The profiles that come with the program, by name."""
    return {
        name: parse_profile(bundled_bytes(name), source=f"bundled profile {name!r}")
        for name in bundled_names()
    }


def _refuse_bundled(kind: str, name: str, theirs: Mapping[str, object]) -> None:
    if name in theirs:
        raise ConflictError(
            f"The {kind} {name!r} comes with the program and is read-only; choose another name."
        )


def _current(connection: Connection, name: str) -> str | None:
    """The content id under the name, which stays so until the transaction ends."""
    asked = select(profiles.c.content_id).where(profiles.c.name == name).with_for_update()
    return connection.scalar(asked)


def _check(name: str, current: str | None, if_match: str | None, if_none_match: str | None) -> None:
    """The conditions of RFC 9110, sections 13.1.1 and 13.1.2."""
    is_that = if_match is None or (current is not None and if_match in (ANY, current))
    is_new = if_none_match is None or current is None or if_none_match not in (ANY, current)
    if not (is_that and is_new):
        there = f"is {current}" if current else "is not there"
        raise PreconditionError(f"The profile {name!r} {there}; get it anew, then decide again.")


def _keep(
    connection: Connection, name: str, current: str | None, content_id: str, body: bytes
) -> None:
    connection.execute(
        insert(connection, profile_bodies)
        .values(content_id=content_id, body=body)
        .on_conflict_do_nothing()
    )
    values = {"content_id": content_id, "updated_s": now_s()}
    if current is not None:
        connection.execute(update(profiles).where(profiles.c.name == name).values(**values))
        return
    made = connection.execute(
        insert(connection, profiles)
        .values(name=name, **values)
        .on_conflict_do_nothing()
        .returning(profiles.c.name)
    )
    if made.first() is None:
        raise PreconditionError(f"The profile {name!r} was just made by another; get it first.")


def _preset(name: str) -> KeptModel:
    return KeptModel(name=name, origin="bundled", spec=MODELS[name])


def _kept_model(row: Row[Any]) -> KeptModel:
    return KeptModel(
        name=row.name,
        origin="library",
        spec=model_from_json(json.loads(row.body), source=f"model {row.name!r}"),
        notes=tuple(json.loads(row.notes)),
    )
