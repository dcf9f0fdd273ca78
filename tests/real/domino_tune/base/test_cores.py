"""Results computed ahead on other cores: the same ones, in the same order, and no process left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from domino_tune.base.cores import in_turn
from tests.support.processes import PATIENCE_S

BEGIN = """
import os, sys, time
from contextlib import closing
from domino_tune.base import cores
from simulator.errors import InfeasiblePlanError
cores._cores = lambda: 3

def square(item):
    if item == 7:
        raise InfeasiblePlanError("seven does not fit", reason="memory")
    return item * item, os.getpid()
"""


def _script(text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + text], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_in_turn_computes_nothing_before_it_is_asked_for() -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for item in range(9):
            asked.append(item)
            yield item

    for item, result in in_turn(lambda item: item * item, items()):
        if item == 3:
            break
        assert result() == item * item
    assert asked == [0, 1, 2, 3]


def test_results_keep_their_order_and_come_from_other_processes() -> None:
    printed = _script(
        "found = [(item, result()) for item, result in cores.on_all_cores(square, range(6))]\n"
        "print([(item, value) for item, (value, _) in found])\n"
        "pids = {pid for _, (_, pid) in found}\n"
        "print(len(pids), os.getpid() in pids)\n"
    )
    expected = [(n, n * n) for n in range(6)]
    assert printed.splitlines() == [str(expected), "3 False"]


def test_an_error_is_raised_where_its_result_is_asked_for_and_not_before() -> None:
    printed = _script(
        "kept = []\n"
        "with closing(cores.on_all_cores(square, range(20))) as looks:\n"
        "    for item, result in looks:\n"
        "        try:\n"
        "            if item not in (3, 9):\n"
        "                kept.append(result()[0])\n"
        "        except InfeasiblePlanError as error:\n"
        "            print(item, error.reason)\n"
        "print(kept)\n"
    )
    kept = [n * n for n in range(20) if n not in (3, 7, 9)]
    assert printed.splitlines() == ["7 memory", str(kept)]


def test_stopping_early_leaves_no_process() -> None:
    printed = _script(
        "import psutil\n"
        "with closing(cores.on_all_cores(square, iter(int, 1))) as looks:\n"
        "    next(looks)\n"
        "    print(len(psutil.Process().children()))\n"
        "print(len(psutil.Process().children()))\n"
    )
    assert printed.split() == ["3", "0"]


def test_a_process_with_threads_is_not_copied() -> None:
    printed = _script(
        "import threading\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "pids = {result()[1] for _, result in cores.on_all_cores(square, range(4))}\n"
        "print(pids == {os.getpid()})\n"
    )
    assert printed.split() == ["True"]


def test_a_result_is_computed_in_a_copy_while_this_process_goes_on() -> None:
    printed = _script(
        "import psutil\n"
        "with cores.copies() as beside:\n"
        "    result, failed = beside(lambda: square(5)), beside(lambda: square(7))\n"
        "    value, pid = result()\n"
        "    print(value, pid == os.getpid())\n"
        "    try:\n"
        "        failed()\n"
        "    except InfeasiblePlanError as error:\n"
        "        print(error.reason)\n"
        "    print(len(psutil.Process().children()))\n"
        "    cores._cores = lambda: 1\n"
        "    print(beside(lambda: square(6))()[1] == os.getpid())\n"
    )
    assert printed.splitlines() == ["25 False", "memory", "0", "True"]


def test_copies_that_nobody_asked_end_with_the_block() -> None:
    printed = _script(
        "import psutil\n"
        "try:\n"
        "    with cores.copies() as beside:\n"
        "        beside(lambda: time.sleep(3600))\n"
        "        print(len(psutil.Process().children()))\n"
        "        square(7)\n"
        "except InfeasiblePlanError as error:\n"
        "    print(len(psutil.Process().children()))\n"
    )
    assert printed.split() == ["1", "0"]


def test_a_copy_copies_nothing_and_one_that_is_killed_is_made_up_for() -> None:
    printed = _script(
        "import signal\n"
        "def inner():\n"
        "    found = [result() for _, result in cores.on_all_cores(square, range(4))]\n"
        "    return len({pid for _, pid in found}), found[0][1] == os.getpid()\n"
        "here = os.getpid()\n"
        "def killed():\n"
        "    if os.getpid() != here:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return 'made here'\n"
        "with cores.copies() as beside:\n"
        "    print(beside(inner)())\n"
        "    print(beside(killed)())\n"
    )
    assert printed.splitlines() == ["(1, True)", "made here"]


def test_few_results_are_computed_where_the_caches_are() -> None:
    printed = _script(
        "for count in (6, cores.FEW, cores.FEW + 1):\n"
        "    items = [8] * count\n"
        "    pids = {result()[1] for _, result in cores.where_many(square, items)}\n"
        "    print(len(pids), os.getpid() in pids)\n"
    )
    assert printed.splitlines() == ["1 True", "1 True", "3 False"]


def test_what_takes_a_while_goes_on_on_all_cores() -> None:
    printed = _script(
        "for cores.WHILE_S in (1e9, -1.0):\n"
        "    looks = cores.where_long(square, range(6))\n"
        "    found = [(item, *result()) for item, result in looks]\n"
        "    pids = {pid for _, _, pid in found}\n"
        "    print([value for _, value, _ in found], len(pids), os.getpid() in pids)\n"
    )
    squares = [n * n for n in range(6)]
    assert printed.splitlines() == [f"{squares} 1 True", f"{squares} 3 False"]


@pytest.mark.parametrize("number", [9, 15])
def test_copies_end_with_a_process_that_is_killed(number: int) -> None:
    text = (
        "looks = cores.on_all_cores(square, iter(int, 1))\n"
        "next(looks)\n"
        "print('ready', flush=True)\n"
        "time.sleep(3600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + text], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        copies = psutil.Process(process.pid).children()
        assert len(copies) == 3
        os.kill(process.pid, number)
    deadline = time.monotonic() + PATIENCE_S
    while any(copy.is_running() for copy in copies) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(copy.is_running() for copy in copies)
