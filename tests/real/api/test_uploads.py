"""Profiles' files: read strictly, large ones in a process that is gone afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from multiprocessing import active_children

import pytest

from api.intake import SMALL_BYTES, Intake
from api.problems import ProblemError
from api.uploads import read_upload
from domino_tune.store.profiles import FiledProfile, dump_profile, filed, load_profile
from simulator.errors import ProfileError
from simulator.profile import Profile
from tests.support.processes import PATIENCE_S


def read(data: bytes, deadline_s: float = PATIENCE_S) -> FiledProfile:
    async def reading() -> FiledProfile:
        return await read_upload(data, Intake().uploads, deadline_s)

    return asyncio.run(reading())


@pytest.fixture(scope="module")
def large() -> Profile:
    return replace(load_profile("h200-sxm"), name="large")


def test_small_and_large_ones_are_read_alike(large: Profile) -> None:
    small = replace(load_profile("h100-dgx"), name="small")
    for profile in (small, large):
        data = dump_profile(profile)
        assert (len(data) > SMALL_BYTES) == (profile is large)
        assert read(data) == filed(profile)
    assert not active_children()


def test_what_a_large_one_lacks_is_told_as_of_a_small_one(large: Profile) -> None:
    whole = dump_profile(large)
    with pytest.raises(ProfileError, match="checksum"):
        read(whole.replace(b'"large"', b'"other"'))
    with pytest.raises(ProblemError, match="no JSON") as cut:
        read(whole[:-10])
    with pytest.raises(ProblemError, match="finite") as infinite:
        read(whole.rstrip()[:-1] + b', "more": [1, NaN]}')
    assert (cut.value.status, infinite.value.status) == (400, 422)
    assert [fault.pointer for fault in infinite.value.faults] == ["#/more/1"]
    with pytest.raises(ProblemError, match="JSON object"):
        read(b"[" + b" " * SMALL_BYTES + b"]")


def test_one_that_takes_too_long_is_given_up(large: Profile) -> None:
    with pytest.raises(ProblemError, match="longer than") as late:
        read(dump_profile(large), deadline_s=0)
    assert late.value.status == 503
    assert not active_children()
