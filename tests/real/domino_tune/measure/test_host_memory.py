"""A container's limit counts where it is less than what the machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from domino_tune.measure import machine
from domino_tune.measure.machine import cgroup_limits, machine_of, memory_bytes
from domino_tune.runtime.launch_spec import LaunchSpec

GIB = 1 << 30


def limits(folder: Path, own: str, files: dict[str, str]) -> list[int]:
    root, mine = folder / "cgroup", folder / "own"
    mine.write_text(own)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return sorted(cgroup_limits(root, mine))


def test_limits_of_version_2_are_those_of_all_groups_above(tmp_path: Path) -> None:
    files = {"memory.max": "max\n", "jobs/memory.max": "900\n", "jobs/mine/memory.max": "1000\n"}
    assert limits(tmp_path, "0::/jobs/mine\n", files) == [900, 1000]


def test_in_a_container_the_own_group_is_the_root(tmp_path: Path) -> None:
    assert limits(tmp_path, "0::/\n", {"memory.max": "800"}) == [800]
    assert limits(tmp_path, "0::/elsewhere\n", {"memory.max": "800"}) == [800]


def test_limits_of_version_1(tmp_path: Path) -> None:
    own = "5:cpu:/\n4:memory:/jobs\n0::/\n"
    files = {"memory/jobs/memory.limit_in_bytes": "700", "cpu/memory.limit_in_bytes": "1"}
    assert limits(tmp_path, own, files) == [700]


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert limits(tmp_path, "0::/\n", {}) == []
    assert list(cgroup_limits(tmp_path, tmp_path / "missing")) == []


def test_the_least_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cgroup_limits", lambda: iter([]))
    physical = memory_bytes()
    monkeypatch.setattr(machine, "cgroup_limits", lambda: iter([1 << 62, GIB]))
    assert memory_bytes() == min(physical, GIB)


@pytest.mark.parametrize(
    ("spec", "env", "ranks"),
    [
        (LaunchSpec(tp=2), {}, 2),
        (LaunchSpec(tp=2, emulate_link_bits_per_s=10**9), {}, 2),  # two hosts of one machine
        (LaunchSpec(tp=4, dp=2, emulate_link_bits_per_s=10**9), {}, 8),
        (
            LaunchSpec(tp=2, dp=2),
            {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "LOCAL_WORLD_SIZE": "2"},
            2,
        ),
    ],
)
def test_all_ranks_of_a_machine_share_its_memory(
    monkeypatch: pytest.MonkeyPatch, spec: LaunchSpec, env: dict[str, str], ranks: int
) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: 16 * GIB)
    assert machine_of(spec, env).gpu_memory_gib == 16 / ranks
