"""Uploads: read profile files strictly, and those of many values in a process of their own.

Reading a file of 16 MiB takes seconds and hundreds of MiB: a thread would hold up all others, and
Python would keep much of the memory. A process releases its memory when it ends.
"""

from __future__ import annotations

import asyncio
from typing import Final

import anyio

from api.intake import SMALL_BYTES
from api.problems import ProblemError, bad_body
from api.strict_json import check_texts, count_values, read_json
from domino_tune.service.executors.errors import ExecutorLostError, WorkerDiedError
from domino_tune.service.executors.slots import SlotExecutor
from domino_tune.store.profiles import FiledProfile, filed, parse_profile
from simulator.limits import LONGEST_NOTE

FEW_VALUES: Final = 10_000
FEW_BYTES: Final = 2 << 20
"""Files up to this size are parsed in a thread within some ms; starting a process takes hundreds.
Bundled profiles have 800 to 54,000 values.
"""
RETRY_S: Final = 1


async def read_upload(data: bytes, turn: anyio.CapacityLimiter, deadline_s: float) -> FiledProfile:
    """Wait for a ``turn``, then return the profile in ``data``.

    Raise ProblemError: 400 if it is not JSON, 422 if it is not acceptable, 503 if reading takes
    more than ``deadline_s`` or its process died; ProfileError if it is not a valid profile.
    """
    async with turn:
        if _is_light(data):
            return await anyio.to_thread.run_sync(read_profile, data)
        return await _apart(data, deadline_s)


def _is_light(data: bytes) -> bool:
    few = len(data) <= FEW_BYTES and count_values(data) <= FEW_VALUES
    return few or len(data) <= SMALL_BYTES


async def _apart(data: bytes, deadline_s: float) -> FiledProfile:
    executor = SlotExecutor(1)
    try:
        reading = asyncio.wrap_future(executor.submit(read_profile, data))
        return await asyncio.wait_for(reading, deadline_s)
    except TimeoutError:
        raise _busy(f"Reading the profile took longer than {deadline_s:g} s") from None
    except (WorkerDiedError, ExecutorLostError):
        raise _busy("The process that read the profile ended") from None
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(lambda: executor.shutdown(wait=False))


def read_profile(data: bytes) -> FiledProfile:
    """Do the work of ``read_upload`` in this thread or process."""
    _check(data)
    return filed(parse_profile(data, source="profile"))


def _check(data: bytes) -> None:
    """Raise ProblemError if ``data`` is not strict JSON or has a text too long for a profile."""
    plain = read_json(data, len(data))
    if not isinstance(plain, dict):
        raise bad_body("The body must be a JSON object.")
    check_texts(plain, LONGEST_NOTE)


def _busy(what: str) -> ProblemError:
    return ProblemError(503, f"{what}; try again.", headers={"Retry-After": str(RETRY_S)})
