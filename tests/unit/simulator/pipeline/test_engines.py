"""Both engines of a pipeline: equal to the nanosecond, and each rule by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.errors import ScheduleError
from simulator.pipeline import program as recurrence
from simulator.pipeline.orders import Action
from simulator.pipeline.program import Message, PipelineProgram, PipelineTask
from tests.support import pipeline_engine as engine
from tests.unit.simulator.pipeline.programs import program, program_of, random_program


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_both_engines_agree_to_the_nanosecond(first: int) -> None:
    for seed in range(first, first + 50):
        program = random_program(seed)
        assert engine.play(program) == recurrence.play(program), seed


@pytest.mark.parametrize("seed", range(20))
def test_a_longer_task_never_makes_it_shorter(seed: int) -> None:
    program = random_program(seed)
    slower = replace(program, passes=program.passes + np.array((3, 0, 0, 0)))
    assert recurrence.play(slower).makespan_ns > recurrence.play(program).makespan_ns


def two_ranks(*, blocking: bool = False, rendezvous: bool = False) -> PipelineProgram:
    """Rank 0 sends to rank 1, which is busy for 50 ns before it reads."""
    first = PipelineTask(Action("F", 0, 0), 10, sends=0)
    ranks = (
        (first, PipelineTask(Action("F", 1, 0), 10)),
        (PipelineTask(Action("F", 1, 0), 50), PipelineTask(Action("F", 0, 0), 10, reads=0)),
    )
    return program(ranks, (Message(5, 0, 0, 1),), rendezvous=rendezvous, blocking=blocking)


@pytest.mark.parametrize(
    ("rules", "message", "second"),
    [
        ({}, (10, 15), (10, 20)),
        ({"blocking": True}, (10, 15), (15, 25)),
        ({"blocking": True, "rendezvous": True}, (50, 55), (55, 65)),
    ],
)
def test_messages_wait_for_receivers_and_senders_for_messages(
    rules: dict[str, bool], message: tuple[int, int], second: tuple[int, int]
) -> None:
    run = recurrence.play(two_ranks(**rules))
    assert run.messages == (message,)
    assert run.tasks[0][1] == second


def test_a_host_ahead_hides_what_it_takes_and_one_that_is_stopped_does_not() -> None:
    """Of three tasks, each issued in 8 ns and ending 12 ns after that begins, on a device that
    needs 10: the second is behind a host that is 2 ns ahead."""
    led = PipelineTask(Action("F", 0, 0), 10, late_ns=12, issued_ns=8)

    def spans(*tasks: PipelineTask) -> tuple[tuple[int, int], ...]:
        made = program((tasks,), ())
        run = recurrence.play(made)
        assert engine.play(made) == run
        assert run.waited_ns == (run.makespan_ns - 10 * len(tasks),)
        return run.tasks[0]

    assert spans(led, led, led) == ((0, 12), (12, 22), (22, 32))
    held = led._replace(held_ns=9)
    assert spans(led, held, led) == ((0, 12), (12, 22), (22, 33))
    full = led._replace(behind=1)
    assert spans(led, led, full) == ((0, 12), (12, 22), (22, 34))
    slow = led._replace(issued_ns=11, late_ns=13)
    assert spans(slow, slow, slow) == ((0, 13), (13, 24), (24, 35))


def test_messages_of_a_link_go_one_after_the_other() -> None:
    program = program_of("gpipe", 2, 1, 3, {"F": 10, "B": 10}, message_ns=25)
    run = recurrence.play(program)
    forward = [span for span, one in zip(run.messages, program.messages, strict=True)
               if one.sender == 0]  # fmt: skip
    assert sorted(forward) == [(10, 35), (35, 60), (60, 85)]


def test_gathers_come_first_and_buckets_follow_their_gradients() -> None:
    tasks = (
        PipelineTask(Action("F", 0, 0), 10, gathers_ns=(4, 20)),
        PipelineTask(Action("B", 0, 0), 20, buckets_ns=(30, 5)),
    )
    alone = program((tasks,), (), summed_ns=(3,), updated_ns=(2,))
    run = recurrence.play(alone)
    assert run.tasks == (((4, 24), (24, 44)),), "the last gather ends at 24"
    assert run.gradients_at == (69,), "buckets are ready at 34 and 44; 34 + 30 + 5"
    assert run.makespan_ns == 74


def test_ranks_that_wait_for_each_other_are_named() -> None:
    """Each reads first what the other sends last."""
    ranks = tuple(
        (
            PipelineTask(Action("F", 0, 0), 1, reads=1 - rank),
            PipelineTask(Action("B", 0, 0), 1, sends=rank),
        )
        for rank in range(2)
    )
    stuck = program(ranks, (Message(1, 0, 0, 1), Message(1, 1, 1, 0)))
    with pytest.raises(ScheduleError, match="Rank 0 of the pipeline waits for ever"):
        recurrence.play(stuck)
