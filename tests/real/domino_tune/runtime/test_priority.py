"""Threads of communication are urgent where the system allows it, the calling one never is."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from domino_tune.runtime import launch_spec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has real-time priority")


def policy() -> int:
    return os.sched_getscheduler(0)


def policy_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(policy()))
    thread.start()
    thread.join()
    return found[0]


def test_trying_changes_nothing() -> None:
    before = policy()
    assert launch_spec.may_be_urgent() == launch_spec.may_be_urgent()
    assert policy() == before


def test_only_threads_started_inside_are_urgent() -> None:
    before = policy()
    with launch_spec.for_new_threads() as allowed:
        inside = policy_of_a_new_thread()
    assert inside == (os.SCHED_RR if allowed else before)
    assert policy() == before
    assert policy_of_a_new_thread() == before


def test_an_error_inside_gives_the_priority_back() -> None:
    before = policy()
    with pytest.raises(KeyError), launch_spec.for_new_threads():
        raise KeyError
    assert policy() == before


def test_where_it_is_not_allowed_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert not launch_spec.may_be_urgent()
    with launch_spec.for_new_threads() as allowed:
        assert not allowed


def test_systems_without_scheduling_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setscheduler")
    assert not launch_spec.may_be_urgent()
