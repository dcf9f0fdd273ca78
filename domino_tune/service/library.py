"""Library: the service's profiles and models by name; the bundled ones are read-only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Final, Literal

from sqlalchemy import Connection, Row, delete, select, update

from domino_tune.base.errors import ConflictError, NotFoundError, PreconditionError
from domino_tune.service.encoding import json_text, slug
from domino_tune.service.idempotency import Idempotency, claim_key, earlier_answer
from domino_tune.service.jobs.retention import Keep, check_quota
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.tables import hold, insert, models, now_s, profile_bodies, profiles
from domino_tune.store.files import bundled_bytes, bundled_names
from domino_tune.store.profiles import (
    FiledProfile,
    ProfileSummary,
    check_schema,
    filed,
    parse_profile,
    summary_of,
)
from domino_tune.store.shelf import (
    LoadedModel,
    dump_model,
    model_from_json,
    read_model,
)
from simulator.errors import InputError, ProfileError, unknown_name
from simulator.presets import MODELS
from simulator.profile import SCHEMA, Profile
from simulator.specs import ModelSpec

# Profiles and models of a library, by name --------------------------------------------------------

Origin = Literal["bundled", "library"]


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """A model, and notes on how its config was read."""

    name: str
    origin: Origin
    spec: ModelSpec
    notes: tuple[str, ...] = ()


def dump_summary(summary: ProfileSummary) -> str:
    """Return the text of a profile that this program has written."""
    return json_text({"schema": SCHEMA, **asdict(summary)})


def load_summary(text: str) -> ProfileSummary:
    """Return the summary; ``problem`` of a profile that another version of the program has written,
    and this one cannot read."""
    plain = json.loads(text)
    schema = plain.pop("schema")
    summary = ProfileSummary(**plain)
    try:
        check_schema(schema, f"profile {summary.content_id}")
    except ProfileError as error:
        return replace(summary, gpu="", created="", sections={}, problem=str(error))
    return summary


# Library ------------------------------------------------------------------------------------------

ANY: Final = "*"
"""In If-Match: any stored content; in If-None-Match: the name must be new."""


class Library:
    """Profiles and models in the database, beside the bundled ones; it looks up nothing else.

    Names are slugs and never paths. All methods raise StorageError and UnavailableError, and
    InputError for a name that is not a slug. ``keep``: what an owner may have.
    """

    def __init__(self, database: Database, keep: Keep | None = None) -> None:
        self._database = database
        self._keep = keep or Keep()

    def put(
        self,
        name: str,
        profile: FiledProfile,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        idempotency: Idempotency | None = None,
        response: Mapping[str, Any] | None = None,
        owner: str | None = None,
    ) -> tuple[str, bool]:
        """Store the profile. Return its content id, and whether the name is new.

        Conditions are content ids or ``*``. ``response`` is stored with the key, and returned by
        ``earlier_answer``. Raise InputError where the profile's own name is another, ConflictError
        for a bundled name, PreconditionError, QuotaError of ``owner``.
        """
        _refuse_bundled("profile", slug("profile", name), bundled())
        own, content_id = profile.summary.name, profile.summary.content_id
        if own != name:
            raise InputError(
                f"The profile calls itself {own!r}, not {name!r}; put it under its own name, or "
                "import it under another."
            )
        with self._database.write() as connection:
            current = _current(connection, name)
            answer = json_text(
                {"content_id": content_id, "created": current is None, "response": response}
            )
            earlier = claim_key(connection, idempotency, answer)
            if earlier is not None:
                parsed = json.loads(earlier)
                return parsed["content_id"], parsed["created"]
            _check(name, current, if_match, if_none_match)
            if owner is not None:
                check_quota(connection, owner, len(profile.body), self._keep)
            _store(connection, current, profile, owner)
        return content_id, current is None

    def earlier_answer(self, given: Idempotency) -> tuple[str, bool, Any] | None:
        """Return what ``put`` returned for this key, and its ``response``. Raise KeyReuseError."""
        with self._database.read() as connection:
            earlier = earlier_answer(connection, given)
        if earlier is None:
            return None
        parsed = json.loads(earlier)
        return parsed["content_id"], parsed["created"], parsed.get("response")

    def get(self, name: str) -> tuple[str, bytes]:
        """Return the id of a profile's content, and its file. Raise NotFoundError."""
        if slug("profile", name) in bundled():
            return bundled_summaries()[name].content_id, bundled_bytes(name)
        asked = select(profile_bodies).join(profiles).where(profiles.c.name == name)
        with self._database.read() as connection:
            row = connection.execute(asked).one_or_none()
        if row is None:
            raise NotFoundError(f"There is no profile {name!r}; the list of profiles has all.")
        return row.content_id, row.body

    def check_calibrated(self, name: str, base: str) -> None:
        """Raise ConflictError where a profile that is calibrated from ``base`` may not have this
        name: another profile would be lost."""
        if name == base:
            raise ConflictError(f"{name!r} is the profile to start from; choose another name.")
        with self._database.read() as connection:
            _refuse_loss(connection, name)

    def shelve(self, connection: Connection, file: bytes, owner: str) -> None:
        """Keep a calibrated profile in a transaction. Raise ConflictError as ``check_calibrated``
        does, and QuotaError."""
        made = filed(parse_profile(file, source="the calibrated profile"))
        name = made.summary.name
        _refuse_loss(connection, name)
        check_quota(connection, owner, len(made.body), self._keep)
        _store(connection, _current(connection, name), made, owner)

    def delete(self, name: str, *, if_match: str | None = None) -> None:
        """Delete a name. Raise NotFoundError, PreconditionError, ConflictError if bundled."""
        _refuse_bundled("profile", slug("profile", name), bundled())
        with self._database.write() as connection:
            current = _current(connection, name)
            if current is None and if_match is None:
                raise NotFoundError(f"There is no profile {name!r}; the list of profiles has all.")
            _check(name, current, if_match, None)
            connection.execute(delete(profiles).where(profiles.c.name == name))

    def list(self) -> tuple[ProfileSummary, ...]:
        """Return all profiles by name, without reading them; ``problem`` of one that this program
        cannot read."""
        asked = select(profile_bodies.c.summary).join(profiles)
        with self._database.read() as connection:
            found = [load_summary(text) for text in connection.scalars(asked)]
        return tuple(sorted([*found, *bundled_summaries().values()], key=lambda one: one.name))

    def put_model(
        self,
        name: str,
        parsed: Mapping[str, Any],
        *,
        idempotency: Idempotency | None = None,
        owner: str | None = None,
    ) -> tuple[StoredModel, bool]:
        """Store a parsed Hugging Face config or model file. Return it, and whether it is new.

        Raise InputError for a bad config, ConflictError for a preset's name, QuotaError of
        ``owner``.
        """
        loaded = read_model(parsed, name=slug("model", name), source=f"model {name!r}")
        _refuse_bundled("model", name, MODELS)
        model = StoredModel(
            name=name, origin="library", spec=replace(loaded.spec, name=name), notes=loaded.notes
        )
        body = dump_model(model.spec)
        values = {
            "body": body,
            "owner": owner,
            "notes": json.dumps(model.notes),
            "updated_s": now_s(),
        }
        with self._database.write() as connection:
            asked = select(models.c.name).where(models.c.name == name)
            created = connection.scalar(asked) is None
            earlier = claim_key(connection, idempotency, json_text({"created": created}))
            if earlier is not None:
                return model, json.loads(earlier)["created"]
            if owner is not None:
                check_quota(connection, owner, len(body), self._keep)
            connection.execute(
                insert(connection, models)
                .values(name=name, **values)
                .on_conflict_do_update(index_elements=["name"], set_=values)
            )
        return model, created

    def delete_model(self, name: str) -> None:
        """Delete a model. Raise NotFoundError, ConflictError for a preset."""
        _refuse_bundled("model", slug("model", name), MODELS)
        with self._database.write() as connection:
            if not connection.execute(delete(models).where(models.c.name == name)).rowcount:
                raise NotFoundError(f"There is no model {name!r}; the list of models has all.")

    def list_models(self) -> tuple[StoredModel, ...]:
        """Return the presets, small to large within a family, then the library's models by name."""
        presets = [
            StoredModel(name=one.name, origin="bundled", spec=one) for one in MODELS.values()
        ]
        with self._database.read() as connection:
            stored = [_stored_model(row) for row in connection.execute(select(models))]
        return (*presets, *sorted(stored, key=lambda one: one.name))

    def profile(self, name: str) -> Profile:
        """Return the parsed profile. Raise InputError for an unknown name."""
        if slug("profile", name) in bundled():
            return bundled()[name]
        return parse_profile(self.file(name), source=f"profile {name!r}")

    def file(self, name: str) -> bytes:
        """Return a profile's file without reading it. Raise InputError for an unknown name."""
        if slug("profile", name) in bundled():
            return bundled_bytes(name)
        asked = select(profile_bodies.c.body).join(profiles).where(profiles.c.name == name)
        with self._database.read() as connection:
            body: bytes | None = connection.scalar(asked)
            if body is None:
                names = connection.scalars(select(profiles.c.name))
                raise unknown_name("profile", name, {*bundled(), *names})
        return body

    def model(self, name: str) -> LoadedModel:
        """Return a model. Raise InputError for an unknown name."""
        if slug("model", name) in MODELS:
            return LoadedModel(spec=MODELS[name])
        with self._database.read() as connection:
            row = connection.execute(select(models).where(models.c.name == name)).one_or_none()
        if row is None:
            raise unknown_name("model", name, (one.name for one in self.list_models()))
        found = _stored_model(row)
        return LoadedModel(spec=found.spec, notes=found.notes)


@cache
def bundled() -> Mapping[str, Profile]:
    """Return the profiles that come with the program, by name."""
    return {
        name: parse_profile(bundled_bytes(name), source=f"bundled profile {name!r}")
        for name in bundled_names()
    }


@cache
def bundled_summaries() -> Mapping[str, ProfileSummary]:
    """Return what lists show of the profiles that come with the program; their ids take a while."""
    return {name: summary_of(profile, "bundled") for name, profile in bundled().items()}


def _refuse_bundled(kind: str, name: str, theirs: Mapping[str, object]) -> None:
    if name in theirs:
        raise ConflictError(
            f"The {kind} {name!r} comes with the program and is read-only; choose another name."
        )


def _refuse_loss(connection: Connection, name: str) -> None:
    """Raise ConflictError where a calibrated profile of this name would hide or replace one that
    was measured or imported."""
    _refuse_bundled("profile", slug("profile", name), bundled())
    asked = select(profile_bodies.c.body).join(profiles).where(profiles.c.name == name)
    there = connection.scalar(asked)
    if there is not None and json.loads(there).get("calibration") is None:
        raise ConflictError(
            f"There is a profile {name!r} that is not calibrated; choose another name, so that it "
            "is not lost."
        )


def _current(connection: Connection, name: str) -> str | None:
    """Return the name's content id, and lock it until the transaction ends."""
    asked = select(profiles.c.content_id).where(profiles.c.name == name).with_for_update()
    return connection.scalar(asked)


def _check(name: str, current: str | None, if_match: str | None, if_none_match: str | None) -> None:
    """Check the conditions of RFC 9110, sections 13.1.1 and 13.1.2."""
    matches = if_match is None or (current is not None and if_match in (ANY, current))
    is_new = if_none_match is None or current is None or if_none_match not in (ANY, current)
    if not (matches and is_new):
        state = f"is {current}" if current else "is not there"
        raise PreconditionError(f"The profile {name!r} {state}; get it anew, then decide again.")


def _store(
    connection: Connection, current: str | None, profile: FiledProfile, owner: str | None
) -> None:
    """Keep the profile in place of the content ``current`` of its name; None: a new name."""
    name, content_id = profile.summary.name, profile.summary.content_id
    summary = dump_summary(profile.summary)
    kept = {"content_id": content_id, "body": profile.body, "summary": summary}
    hold(connection, profile_bodies.c.content_id, kept)
    values = {"content_id": content_id, "updated_s": now_s(), "owner": owner}
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


def _stored_model(row: Row[Any]) -> StoredModel:
    return StoredModel(
        name=row.name,
        origin="library",
        spec=model_from_json(json.loads(row.body), source=f"model {row.name!r}"),
        notes=tuple(json.loads(row.notes)),
    )
