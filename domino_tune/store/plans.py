"""Plan files: a plan with all that it was made for, so that it can be replayed years later.

One JSON object: schema, checksum, resolved model, workload, cluster, the profile's name and content
id, the plan, its explicit order as tokens, and what was predicted. No clock, no path, no host name:
the same question gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

from domino_tune.base.errors import PlanFileError
from domino_tune.store.files import read_json, write_whole
from domino_tune.store.parsing import held_as, parse
from simulator.build import check_layer_order
from simulator.errors import DominoTuneError
from simulator.issue_order import LayerOrder, parse_issue_order
from simulator.plan import SlicePlan, check_plan_fits
from simulator.profile import Profile
from simulator.sharding import check_shardable
from simulator.specs import ClusterSpec, ModelSpec, Workload

SCHEMA: Final = 4
OLDER: Final[dict[object, str]] = {
    1: "ops had Megatron's names", 2: "plans said whose kernels and which limits they are for",
    3: "models said which linears have biases and how rotary angles are scaled",
}  # fmt: skip
"""Older schema -> what came after it."""


@dataclass(frozen=True, kw_only=True)
class ProfileRef:
    """Which profile: its name, and the id of its content."""

    name: str
    content_id: str

    @classmethod
    def of(cls, profile: Profile) -> ProfileRef:
        """Return the reference to ``profile``."""
        return cls(name=profile.name, content_id=profile.content_id)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What the plan was predicted to give on that profile."""

    iteration_ms: float
    baseline_ms: float
    no_comm_ms: float
    peak_memory_gib: float


@dataclass(frozen=True, kw_only=True)
class _IssueOrderJson:
    stride: int
    tokens: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _LayerOrderJson:
    forward: _IssueOrderJson
    backward: _IssueOrderJson


def _layer_order(held: _LayerOrderJson) -> LayerOrder:
    return LayerOrder(
        forward=parse_issue_order(held.forward.tokens, held.forward.stride),
        backward=parse_issue_order(held.backward.tokens, held.backward.stride),
    )


_Order = Annotated[LayerOrder, held_as(_LayerOrderJson, _layer_order)]


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan, what it was made for, and its explicit order.

    Raise PlanFileError where they do not fit each other.
    """

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    profile: ProfileRef
    plan: SlicePlan
    order: _Order
    predicted: Predicted

    def __post_init__(self) -> None:
        try:
            check_shardable(self.model, self.workload, self.cluster)
            check_plan_fits(self.plan, self.model, self.workload, self.cluster)
            check_layer_order(self.model, self.workload, self.cluster, self.plan, self.order)
        except DominoTuneError as error:
            raise PlanFileError(str(error)) from None

    def to_json(self) -> dict[str, Any]:
        """Return the file's object; equal files give equal objects."""
        content = {"schema": SCHEMA, **asdict(self), "order": order_to_json(self.order)}
        return {"schema": SCHEMA, "checksum": _checksum(content), **content}


def save_plan(plan_file: PlanFile, path: str | Path) -> None:
    """Write the file whole or not at all. Raise InputError where ``path`` cannot be written."""
    write_whole(path, dump_plan(plan_file))


def dump_plan(plan_file: PlanFile) -> str:
    """Return the file's text."""
    return json.dumps(plan_file.to_json(), indent=1, allow_nan=False) + "\n"


def load_plan(path: str | Path) -> PlanFile:
    """Return the plan file at ``path``. Raise PlanFileError unless it is whole and untampered."""
    value = read_json(path, what="Plan file", error=PlanFileError)
    return plan_from_json(value, source=f"Plan file {str(path)!r}")


def plan_from_json(value: Mapping[str, Any], *, source: str) -> PlanFile:
    """Return the plan file of its JSON object.

    Raise PlanFileError, which begins with ``source`` and names the key and the reason.
    """
    content = dict(value)
    checksum = content.pop("checksum", None)
    fits = checksum == _checksum(content)
    _check_schema(content.pop("schema", None), source)
    try:
        plan_file = parse(PlanFile, content, source=source, error=PlanFileError, whole=True)
    except PlanFileError:
        if fits or content.keys() != {item.name for item in fields(PlanFile)}:
            raise
        raise _tampered(source, checksum) from None
    # What was read may fit where the text does not: JSON may write 10000.0 as 10000.
    if not fits and checksum != plan_file.to_json()["checksum"]:
        raise _tampered(source, checksum)
    return plan_file


def _tampered(source: str, checksum: object) -> PlanFileError:
    return PlanFileError(
        f"{source}: its checksum {reprlib.repr(checksum)} does not fit its content; it was changed "
        "by hand or damaged. Make plans with `tune --out`."
    )


def _check_schema(schema: object, source: str) -> None:
    if schema == SCHEMA:
        return
    if schema in OLDER:
        reason = (
            f"is from before {OLDER[schema]}; make the plan again with `domino-tune tune --out "
            "FILE`"
        )
    elif isinstance(schema, int) and schema > SCHEMA:
        reason = f"is newer than {SCHEMA}, the newest this program reads; upgrade domino_tune"
    else:
        reason = f"is not {SCHEMA}; make the plan again"
    raise PlanFileError(f"{source}: schema {reprlib.repr(schema)} {reason}.")


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def order_to_json(order: LayerOrder) -> dict[str, Any]:
    """Return an order's JSON object; ``order_from_json`` is the inverse."""
    return {
        name: {"stride": line.stride, "tokens": line.to_strings()}
        for name, line in (("forward", order.forward), ("backward", order.backward))
    }


def order_from_json(value: Any) -> LayerOrder:
    """Return the order of its JSON object. Raise PlanFileError or ScheduleError for any other."""
    return _layer_order(parse(_LayerOrderJson, value, source="order", error=PlanFileError))
