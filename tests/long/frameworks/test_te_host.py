"""What TransformerEngine's Python costs, beside the table of hosts' costs."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final, Literal

import pytest

from simulator.host_costs import Hosts, hosts_of
from simulator.ops import Gemm
from tests.conftest import REPOSITORY
from tests.long.frameworks.environment import SLOWEST_S, environment

MEASURED: Final = ("transformer-engine==2.11.0", "einops==0.8.2")
SLOWER: Final = 3.0
"""A machine that is shared with other tests may be this much off the one that was timed."""


@pytest.mark.parametrize("recipe", ["none", "tensorwise"])
def test_costs_are_those_of_the_table(pytestconfig: pytest.Config, recipe: str) -> None:
    found = measured(environment(pytestconfig.cache, *MEASURED), recipe)
    hosts = hosts_of("megatron-te")
    assert hosts is not None
    for groups, module in ((1, "Linear"), (2, "GroupedLinear 2"), (16, "GroupedLinear 16")):
        told = found[f"{recipe}: {module}"]
        forward = python_us(hosts, groups, recipe, "forward")
        backward = sum(python_us(hosts, groups, recipe, way) for way in ("dgrad", "wgrad"))
        assert forward / SLOWER < told["forward_us"] < forward * SLOWER
        assert backward / SLOWER < told["backward_us"] < backward * SLOWER
        assert told["dgrad_us"] < told["backward_us"]


def measured(python: object, recipe: str) -> dict[str, Any]:
    done = subprocess.run(
        [str(python), "-m", "lab.bench.te_job", recipe], capture_output=True, text=True,
        check=False, timeout=SLOWEST_S, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def python_us(
    hosts: Hosts, groups: int, recipe: str, layout: Literal["forward", "dgrad", "wgrad"]
) -> float:
    dtype = "bf16" if recipe == "none" else "fp8_tensor"
    return hosts.of(Gemm(512, 512, 512, layout, dtype, groups=groups)).python_us
