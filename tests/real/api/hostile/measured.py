"""Hostile requests that bring measurements: profiles, and times of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from domino_tune.store.profiles import bundled_bytes
from tests.real.api.hostile.exchange import Part
from tests.real.api.hostile.made import TUNE, post, send


def bad_measurements() -> Mapping[str, Sequence[Part]]:
    """Those that are refused, by name."""
    return {
        "a profile that is none": _profile(b'{"schema": 1}'),
        "a profile with NaN": _profile(b'{"schema": NaN}'),
        "a profile of a million numbers": _profile(b'{"a":[' + b"1.2345678901," * 10**6 + b"1]}"),
        "a profile of 5 million objects": _profile(b'{"a":[' + b"{}," * (5 * 10**6) + b"1]}"),
        "a GPU that sets the terminal's title": _gpu("H100\x1b]0;mine\x07"),
        "a GPU that is read backwards": _gpu("H100 \u202e08 BG"),
        "a GPU of 1,000,000 characters": _gpu("H" * 1_000_000),
        **{f"a run of {time} ms": _run(time) for time in ("-1", "0", "1e308")},
    }


def _profile(body: bytes) -> list[Part]:
    return [send("PUT", "/v1/profiles/mine", body)]


def _gpu(name: str) -> list[Part]:
    """A bundled profile whose GPU is called otherwise."""
    file = json.loads(bundled_bytes("h100-dgx"))
    file["machine"]["gpu"] = name
    return _profile(json.dumps(file | {"name": "mine"}).encode())


def _run(time: str) -> list[Part]:
    """A calibration to two runs, one of which took ``time`` ms."""
    run = {name: value for name, value in TUNE.items() if name != "profile"}
    runs = [run | {"measured_ms": 0}, run | {"tp": 2, "measured_ms": 50}]
    body = json.dumps({"profile": "h100-dgx", "name": "mine", "runs": runs})
    changed = body.replace('"measured_ms": 0', f'"measured_ms": {time}')
    return post(changed.encode(), "/v1/calibrations")
