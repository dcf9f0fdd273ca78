"""profiles import: several tables into one profile, wrong units, what is never lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domino_tune.measure.importers import IMPORTERS
from domino_tune.store.files import only_user, user_profiles_dir
from domino_tune.store.profiles import load_profile, save_profile
from simulator.lookup import Provenance
from simulator.profile import LaunchSection, Profile
from tests.support.runs import Done, Runner
from tests.unit.domino_tune.measure.importers.machines import H100

GEMMS = "m,n,k,us\n4096,12288,4096,560\n4096,4096,4096,180\n"
REDUCES = "num_workers,bytes,us\n8,1048576,40\n8,67108864,340\n"
ATTENTION = "src,batch_size,isl,num_heads,head_dim,us\nsglang-0.5.9,4,4096,32,128,1200\n"


@pytest.fixture
def base(run: Runner) -> Profile:
    """A profile of the user's: a data sheet and what launches cost."""
    provenance = Provenance(kind="assumed", source="me")
    launch = LaunchSection(mode="async", cost_us={"gemm": 5.0}, provenance=provenance)
    profile = Profile(name="base", created="2026-01-01", machine=H100, launch=launch)
    save_profile(profile, user_profiles_dir() / "base.json")
    return profile


def asked(run: Runner, table: str, kind: str, *more: str) -> Sequence[str]:
    path = run.folder / "table.csv"
    path.write_text(table)
    return ("profiles", "import", str(path), "--format", kind, "--into", "base", "--name", "mine",
            *more)  # fmt: skip


def imported(run: Runner, table: str, kind: str, *more: str) -> dict[str, Any]:
    done: Done = run(*asked(run, table, kind, *more), "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.mark.usefixtures("base")
def test_three_tables_into_one_profile(run: Runner) -> None:
    tables = ((GEMMS, "gemm-csv"), (REDUCES, "eager-all-reduce-csv"), (ATTENTION, "attention-csv"))
    for table, kind in tables:
        assert imported(run, table, kind)["replaced"] == 0
    mine = load_profile("mine")
    sections = [getattr(mine, name) for name in ("gemm", "collectives", "attention")]
    assert [len(section.rows) for section in sections] == [2, 2, 1]
    assert load_profile("base").gemm is None


@pytest.mark.usefixtures("base")
def test_rows_of_a_section_join_and_the_same_signature_is_replaced(run: Runner) -> None:
    imported(run, GEMMS, "gemm-csv")
    found = imported(run, "m,n,k,us\n4096,4096,4096,200\n2048,4096,4096,95\n", "gemm-csv")
    assert (found["rows"], found["replaced"]) == (2, 1)
    mine = load_profile("mine")
    assert mine.gemm
    assert [(row.m, row.n, row.median_us) for row in mine.gemm.rows] == [
        (2048, 4096, 95.0), (4096, 4096, 200.0), (4096, 12288, 560.0),
    ]  # fmt: skip
    done = run(*asked(run, "m,n,k,us\n2048,4096,4096,96\n", "gemm-csv"))
    assert "1 in place of earlier ones" in done.out


@pytest.mark.usefixtures("base")
def test_the_same_table_again_changes_nothing(run: Runner) -> None:
    first = imported(run, GEMMS, "gemm-csv")
    again = imported(run, GEMMS, "gemm-csv")
    assert again["profile"] == first["profile"]
    assert again["replaced"] == 2


@pytest.mark.parametrize("changed", ["machine", "launch", "gemm", "created"])
def test_a_profile_from_elsewhere_is_not_replaced(run: Runner, base: Profile, changed: str) -> None:
    imported(run, GEMMS, "gemm-csv")
    mine = load_profile("mine")
    values: dict[str, Any] = {
        "machine": replace(H100, gpu="H200"), "launch": None, "created": "2025-01-01",
        "gemm": mine.gemm and replace_kind(mine.gemm),
    }  # fmt: skip
    path = user_profiles_dir() / "mine.json"
    save_profile(replace(mine, **{changed: values[changed]}), path)
    before = path.read_bytes()
    message = run.refused(*asked(run, REDUCES, "eager-all-reduce-csv"))
    assert f"(another {changed})" in message
    assert "--into mine" in message
    assert path.read_bytes() == before
    there = [*asked(run, REDUCES, "eager-all-reduce-csv")]
    there[there.index("base")] = "mine"
    assert run(*there).code == 0
    assert load_profile("mine").collectives


def replace_kind(section: Any) -> Any:
    return replace(section, provenance=Provenance(kind="measured", source="here"))


@pytest.mark.usefixtures("base")
def test_rows_that_the_base_has_gained_since_are_not_left_out(run: Runner) -> None:
    imported(run, GEMMS, "gemm-csv")
    grown = load_profile("mine")
    section = grown.gemm
    assert section
    fewer = replace(section, rows=section.rows[:1])
    for profile in (replace(grown, name="base"), replace(grown, gemm=fewer)):
        save_profile(profile, user_profiles_dir() / f"{profile.name}.json")
    assert "(another gemm)" in run.refused(*asked(run, GEMMS, "gemm-csv"))


@pytest.mark.usefixtures("base")
def test_a_damaged_profile_is_not_replaced(run: Runner) -> None:
    path = user_profiles_dir() / "mine.json"
    path.write_text("{")
    assert "Remove the file" in run.refused(*asked(run, GEMMS, "gemm-csv"))
    assert path.read_text() == "{"


@pytest.mark.usefixtures("base")
def test_a_profile_that_is_being_measured_is_left_alone(run: Runner) -> None:
    imported(run, GEMMS, "gemm-csv")
    with only_user(user_profiles_dir() / "mine.json", "wait"):
        assert "in use by another run" in run.refused(*asked(run, REDUCES, "eager-all-reduce-csv"))


@pytest.mark.usefixtures("base")
def test_a_wrong_unit_writes_nothing(run: Runner) -> None:
    slow = "m,n,k,us\n4096,4096,4096,0.18\n"
    assert "give --unit ms" in run.refused(*asked(run, slow, "gemm-csv"))
    assert not (user_profiles_dir() / "mine.json").exists()
    imported(run, slow, "gemm-csv", "--unit", "ms")
    mine = load_profile("mine")
    assert mine.gemm
    assert mine.gemm.rows[0].median_us == pytest.approx(180.0)
    assert "--unit" in run.refused(*asked(run, slow, "gemm-csv", "--unit", "min"))


@pytest.mark.usefixtures("base")
def test_warnings_are_printed_and_in_the_json(run: Runner) -> None:
    odd = "m,n,k,us\n64,100,100,5\n"
    done = run(*asked(run, odd, "gemm-csv"))
    assert done.err.startswith("warning: None of the 1 imported GEMM shapes")
    assert imported(run, odd, "gemm-csv")["warnings"] == [done.err[len("warning: ") :].strip()]
    assert imported(run, GEMMS, "gemm-csv")["warnings"] == []


@pytest.mark.usefixtures("base")
def test_names_and_files_that_cannot_be(run: Runner, tmp_path: Path) -> None:
    command = [*asked(run, GEMMS, "gemm-csv")]
    for name in ("../mine", "a/b", "", "x" * 65):
        assert "name" in run.refused(*command[:-1], name)
    assert "does not exist" in run.refused("profiles", "import", "none.csv", *command[3:])
    assert "cannot be read" in run.refused("profiles", "import", str(tmp_path), *command[3:])
    assert "64 MiB" in run.refused("profiles", "import", "/dev/zero", *command[3:])


def test_the_help_lists_formats_and_columns(run: Runner) -> None:
    text = " ".join(run("profiles", "import", "--help").out.split())
    for name, importer in IMPORTERS.items():
        assert f" {name} {importer.about}"[:40] in text
    assert "Columns: m, n, k, us." in text


@pytest.mark.usefixtures("base")
def test_rows_that_follow_no_law_are_imported_with_the_largest_error(run: Runner) -> None:
    odd = "m,n,k,us\n64,100,100,500\n4096,12288,4096,560\n4096,4096,4096,180\n"
    imported(run, odd, "gemm-csv")
    section = load_profile("mine").gemm
    assert section
    assert section.provenance.error == 10.0
