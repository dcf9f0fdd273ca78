"""Plan files: a plan with all that it was made for, so that it can be replayed years later.

One JSON object: schema, checksum, resolved model, workload, cluster, the profile's name and content
id, the plan, its explicit order as tokens, and what was predicted. No clock, no path, no host name:
the same question gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from domino_tune.base.errors import PlanFileError
from domino_tune.store.files import read_json, write_whole
from domino_tune.store.strict import strict
from simulator.build import check_layer_order
from simulator.errors import DominoTuneError
from simulator.issue_order import LayerOrder, Line, parse_line
from simulator.plan import SlicePlan, check_plan_fits
from simulator.profile import Profile
from simulator.specs import ClusterSpec, ModelSpec, Workload, check_shardable

SCHEMA: Final = 1
KEYS: Final = (
    "schema", "checksum", "model", "workload", "cluster", "profile", "plan", "order", "predicted",
)  # fmt: skip


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
class PlanFile:
    """A plan, what it was made for, and its explicit order.

    Raises PlanFileError where they do not fit each other.
    """

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    profile: ProfileRef
    plan: SlicePlan
    order: LayerOrder
    predicted: Predicted

    def __post_init__(self) -> None:
        try:
            check_shardable(self.model, self.workload, self.cluster)
            check_plan_fits(self.plan, self.model, self.workload)
            check_layer_order(self.model, self.workload, self.cluster, self.plan, self.order)
        except DominoTuneError as error:
            raise PlanFileError(str(error)) from None

    def to_json(self) -> dict[str, Any]:
        """The file's object; equal files, equal objects."""
        content = {
            "schema": SCHEMA,
            "model": asdict(self.model),
            "workload": asdict(self.workload),
            "cluster": asdict(self.cluster),
            "profile": asdict(self.profile),
            "plan": asdict(self.plan),
            "order": order_to_json(self.order),
            "predicted": asdict(self.predicted),
        }
        return {"schema": SCHEMA, "checksum": _checksum(content), **content}


def save_plan(plan_file: PlanFile, path: str | Path) -> None:
    """Write it whole or not at all. Raises InputError where ``path`` cannot be written."""
    write_whole(path, dump_plan(plan_file))


def dump_plan(plan_file: PlanFile) -> str:
    """The file's text."""
    return json.dumps(plan_file.to_json(), indent=1, allow_nan=False) + "\n"


def load_plan(path: str | Path) -> PlanFile:
    """Read it strictly. Raises PlanFileError for a file that is not a whole, untampered plan."""
    parsed = read_json(path, what="Plan file", error=PlanFileError)
    return plan_from_json(parsed, source=f"Plan file {str(path)!r}")


def plan_from_json(parsed: Mapping[str, Any], *, source: str) -> PlanFile:
    """A plan file from its object; raises PlanFileError naming the key and the reason."""
    _check_frame(parsed, source)
    content = {key: value for key, value in parsed.items() if key != "checksum"}
    whole = parsed["checksum"] == _checksum(content)

    def part(kind: type[Any], key: str) -> Any:
        where = f"{source}: {key}"
        return strict(kind, parsed[key], source=where, error=PlanFileError, whole=True)

    try:
        found = PlanFile(
            model=part(ModelSpec, "model"),
            workload=part(Workload, "workload"),
            cluster=part(ClusterSpec, "cluster"),
            profile=part(ProfileRef, "profile"),
            plan=part(SlicePlan, "plan"),
            order=order_from_json(parsed["order"]),
            predicted=part(Predicted, "predicted"),
        )
    except DominoTuneError as error:
        if not whole:
            raise _tampered(source) from None
        text = str(error)
        raise PlanFileError(text if text.startswith(source) else f"{source}: {text}") from None
    # What was read may fit where the text does not: JSON may write 10000.0 as 10000.
    if not whole and parsed["checksum"] != found.to_json()["checksum"]:
        raise _tampered(source)
    return found


def _tampered(source: str) -> PlanFileError:
    return PlanFileError(
        f"{source}: its checksum does not fit its content; it was changed by hand or damaged. "
        "Make plans with `tune --out`."
    )


def _check_frame(parsed: Mapping[str, Any], source: str) -> None:
    """Keys and schema."""
    schema = parsed.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise PlanFileError(
            f"{source}: schema {schema} is newer than {SCHEMA}, the newest this program reads; "
            "upgrade domino_tune."
        )
    for key in (*KEYS, *parsed):
        if key not in parsed:
            raise PlanFileError(f"{source}: the key {key!r} is missing; make the plan again.")
        if key not in KEYS:
            raise PlanFileError(f"{source}: unknown key {key!r}; known: {', '.join(KEYS)}.")
    if schema != SCHEMA:
        raise PlanFileError(f"{source}: schema {schema!r} is not {SCHEMA}; make the plan again.")


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def order_to_json(order: LayerOrder) -> dict[str, Any]:
    """An order's object; ``order_from_json`` is its inverse."""
    return {"forward": _line_to_json(order.forward), "backward": _line_to_json(order.backward)}


def _line_to_json(line: Line) -> dict[str, Any]:
    return {"stride": line.stride, "tokens": line.to_strings()}


def order_from_json(parsed: Any) -> LayerOrder:
    """An order from its object; raises PlanFileError for anything else."""
    if not isinstance(parsed, dict) or set(parsed) != {"forward", "backward"}:
        raise PlanFileError("order must hold forward and backward, and nothing else.")
    return LayerOrder(
        forward=_line_from_json("forward", parsed["forward"]),
        backward=_line_from_json("backward", parsed["backward"]),
    )


def _line_from_json(name: str, parsed: Any) -> Line:
    if not isinstance(parsed, dict) or set(parsed) != {"stride", "tokens"}:
        raise PlanFileError(f"order.{name} must hold stride and tokens, and nothing else.")
    stride, tokens = parsed["stride"], parsed["tokens"]
    if not isinstance(stride, int) or isinstance(stride, bool) or stride < 1:
        raise PlanFileError(f"order.{name}.stride must be a whole number ≥ 1, got {stride!r}.")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise PlanFileError(f"order.{name}.tokens must be a list of strings.")
    return parse_line(tokens, stride)
