"""Profiles on disk: strict reading, whole writing, listing, comparing, checking."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import profiles
from domino_tune.store.files import user_profiles_dir
from domino_tune.store.profiles import (
    check_profile,
    diff_profiles,
    dump_profile,
    list_profiles,
    load_profile,
    parse_profile,
    save_profile,
)
from simulator.errors import DominoTuneError, InputError, ProfileError
from simulator.lookup import Provenance
from simulator.lookup.gemm import GemmRow
from simulator.profile import GemmSection, Profile
from tests.support.profile_schema import json_schema

FOLDER = Path(profiles.__file__).parent
BUNDLED = ("a100-sxm", "b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72", "h100-dgx", "h200-sxm")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def h100() -> Profile:
    return load_profile("h100-dgx")


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_profiles_load_and_write_back_the_same_bytes(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert dump_profile(profile) == (FOLDER / f"{name}.json").read_bytes()


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_profiles_meet_the_schema(name: str) -> None:
    document = json.loads((FOLDER / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(json_schema()).validate(document)


def test_the_committed_schema_is_in_step() -> None:
    assert json.loads((FOLDER / "schema.json").read_text()) == json_schema()


def test_unknown_names_list_the_known_ones_and_the_near_miss() -> None:
    with pytest.raises(
        InputError,
        match=r"Did you mean 'h100-dgx'\? Known: a100-sxm, b200-sxm, b300-sxm, gb200-nvl72",
    ):
        load_profile("h100_dgx")


def test_a_missing_file_is_an_error_of_the_user() -> None:
    with pytest.raises(ProfileError, match="does not exist"):
        load_profile("nowhere/mine.json")


def test_a_profile_survives_the_disk(tmp_path: Path, h100: Profile) -> None:
    rows = (GemmRow(8, 64, 64, "forward", "bf16", False, (0, 0, 64), 4.5, 0.25, 20),)
    section = GemmSection(rows=rows, provenance=Provenance(kind="measured", source="here"))
    profile = replace(h100, name="mine", gemm=section)
    save_profile(profile, tmp_path / "mine.json")
    assert load_profile(tmp_path / "mine.json") == profile
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.json"]


def test_a_users_profile_is_found_by_name_and_hides_a_bundled_one(h100: Profile) -> None:
    mine = replace(h100, created="2026-01-01")
    save_profile(mine, user_profiles_dir() / "h100-dgx.json")
    assert load_profile("h100-dgx") == mine
    origins = {summary.name: summary.origin for summary in list_profiles()}
    assert origins == {**dict.fromkeys(BUNDLED, "bundled"), "h100-dgx": "user"}


def test_a_damaged_profile_is_listed_with_its_problem() -> None:
    user_profiles_dir().mkdir(parents=True)
    (user_profiles_dir() / "torn.json").write_text('{"schema": 1')
    problems = {summary.name: summary.problem for summary in list_profiles()}
    assert problems["h100-dgx"] == ""
    assert "truncated" in problems["torn"]


def test_nothing_is_left_half_written(tmp_path: Path, h100: Profile) -> None:
    with pytest.raises(InputError, match="Cannot write"):
        save_profile(h100, tmp_path / "no" / "such" / "folder.json")
    assert list(tmp_path.iterdir()) == []


def _edit(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(document: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        place: Any = document
        for part in parents:
            place = place[int(part)] if part.isdigit() else place[part]
        place[last] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_edit("schema", 4), "schema 4 is newer"),
        (_edit("schema", 1), "schema 1 is older"),
        (_edit("surprise", 1), r"^test: Unknown key 'surprise'\. Known: attention, "),
        (_edit("machine/surprise", 1), "^test: machine: Unknown key 'surprise'"),
        (_edit("collectives/fits/3/surprise", 1), r"collectives.fits\[3\]: Unknown key 'surprise'"),
        (_edit("collectives/fits/3/latency_us", -1), r"collectives.fits\[3\].*latency_us must be"),
        (_edit("collectives/fits/3/latency_us", "9"), r"fits\[3\].latency_us: .*got '9'"),
        (_edit("collectives/fits/3/bytes", True), r"fits\[3\]: Unknown key 'bytes'"),
        (_edit("pointwise/provenance/kind", "guessed"), "pointwise.provenance.kind"),
        (_edit("pointwise/fits/0/names", ["gelu"]), "'gelu' is listed twice"),
        (_edit("attention/fit/tflops", 9e9), "checksum"),
        (_edit("checksum", "sha256:0"), "checksum is 'sha256:0'"),
        (_edit("checksum", None), "checksum is None"),
        (_edit("name", 7), "name: .*got 7"),
    ],
)
def test_doubtful_profiles_are_refused_with_place_and_reason(
    edit: Callable[[dict[str, Any]], None], reason: str
) -> None:
    document = json.loads((FOLDER / "h100-dgx.json").read_text())
    edit(document)
    with pytest.raises(ProfileError, match=reason):
        parse_profile(json.dumps(document).encode(), source="test")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"latency_us": ', b'"latency_us": NaN, "x": ', "NaN"),
        (b'"nic_gb_s": 42.5', b'"nic_gb_s": 1e999', "finite"),
        (b'"nic_gb_s": 42.5', b'"nic_gb_s": 42.5, "nic_gb_s": 42.5', "twice"),
        (b'"schema": 3', b'"schema": 3,', "JSON"),
    ],
)
def test_doubtful_json_is_refused(old: bytes, new: bytes, reason: str) -> None:
    data = (FOLDER / "h100-dgx.json").read_bytes()
    assert old in data
    with pytest.raises(ProfileError, match=reason):
        parse_profile(data.replace(old, new, 1), source="test")


def test_a_truncated_profile_is_refused_wherever_it_ends() -> None:
    data = (FOLDER / "h100-dgx.json").read_bytes()
    for end in range(0, len(data) - 2, 997):
        with pytest.raises(DominoTuneError):
            parse_profile(data[:end], source="test")


def test_diff_names_the_places(h100: Profile) -> None:
    assert diff_profiles(h100, h100) == []
    assert h100.launch is not None
    launch = replace(h100.launch, queue_depth=7)
    other = replace(h100, launch=launch, attention=None)
    places = {place: (left, right) for place, left, right in diff_profiles(h100, other)}
    assert places["launch.queue_depth"] == ("1024", "7")
    assert places["attention"][1] == "null"


def test_check_says_each_sections_error(h100: Profile) -> None:
    checks = {check.section: check for check in check_profile(h100)}
    assert list(checks) == [
        "gemm", "attention", "pointwise", "collectives", "contention", "launch", "power",
    ]  # fmt: skip
    assert checks["collectives"].error is not None
    assert checks["collectives"].error <= 0.03
    assert checks["contention"].kind == "assumed"
    assert checks["launch"].error == 0.5
