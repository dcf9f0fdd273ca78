"""The bundled profiles are what the fitting program makes of the published tables."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

import profiles
from domino_tune.store.profiles import load_profile
from lab.fits.__main__ import main
from lab.fits.common import Sources
from lab.fits.unshipped import a100_overlap, collectives_of, fit_unshipped
from simulator.build import build_schedule
from simulator.cost import CostModel
from simulator.lookup.collective_law import CollectiveFit
from simulator.ops import Signature
from simulator.plan import SlicePlan
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload
from tests.conftest import DATA

BUNDLED = Path(profiles.__file__).parent
NAMES = ("a100-sxm", "b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72", "h100-dgx", "h200-sxm")
PLAN = SlicePlan(row_slices=2, order="inter", wgrad="eager", sequence_parallel=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of profiles that were fitted here and now."""
    folder = tmp_path_factory.mktemp("made")
    measurements = DATA.parent / "measurements"
    main(["--data", str(DATA), "--measurements", str(measurements), "--out", str(folder)])
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.json" for name in NAMES]
    return folder


def test_a_profile_that_is_made_again_has_the_same_bytes(made: Path, tmp_path: Path) -> None:
    """On one processor. Others add up in another order, and a law of twenty numbers ends in another
    minimum."""
    main(
        ["--data", str(DATA), "--measurements", str(DATA.parent / "measurements"),
         "--out", str(tmp_path), "--only", "h200-sxm"]
    )  # fmt: skip
    name = "h200-sxm.json"
    assert (tmp_path / name).read_bytes() == (made / name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_tables_give_the_same_times_on_any_processor(made: Path, name: str) -> None:
    ours, bundled = (CostModel(load_profile(folder / f"{name}.json")) for folder in (made, BUNDLED))
    off = [abs(ours.duration_ns(one) / bundled.duration_ns(one) - 1) for one in _signatures()]
    assert len(off) > 100
    assert statistics.fmean(off) < 0.01


def _signatures() -> set[Signature]:
    """Every op of three models at two group sizes."""
    workload = Workload(seq_length=2048, micro_batch_size=4)
    schedules = [
        build_schedule(MODELS[model], workload, ClusterSpec(tp=tp), PLAN)
        for model in ("gpt3-13b", "llama2-7b", "llama3-8b")
        for tp in (2, 8)
    ]
    return {op.signature for schedule in schedules for op in schedule.ops()}


@pytest.mark.facts
def test_numbers_of_tables_that_are_not_held_are_what_the_tables_give(
    facts_dir: Path, tmp_path: Path
) -> None:
    """On any processor laws give the same times at the tables' sizes: where these have a gap, from
    64 KiB to 8 MiB, several laws fit as well."""
    (tmp_path / "measured").symlink_to(DATA / "measured")
    (tmp_path / "fitted").mkdir()
    fit_unshipped(facts_dir, tmp_path)
    held, made = (Sources(folder, DATA.parent / "measurements") for folder in (DATA, tmp_path))
    assert a100_overlap(made) == a100_overlap(held)
    for name in ("a100_all_reduce_by_ctas", "h100_nodes_all_reduce"):
        for ours, known in zip(collectives_of(made, name), collectives_of(held, name), strict=True):
            assert (ours.group, ours.ctas) == (known.group, known.ctas)
            off = [
                abs(_alone_us(ours, 1 << power) / _alone_us(known, 1 << power) - 1)
                for power in (*range(10, 17), *range(23, 30))
            ]
            assert statistics.fmean(off) < 0.01, ours.group


def _alone_us(fit: CollectiveFit, size_bytes: int) -> float:
    return fit.latency_us + fit.transfer_us(size_bytes)
