"""Rows of the door's table that bring measurements: profiles, tables of times, runs."""

from __future__ import annotations

import csv
import gzip
import io
import json
from typing import Any, Final

from api.routes.profiles import MOST_LINES
from domino_tune.store.profiles import bundled_bytes
from tests.support.door.exchange import Part
from tests.support.door.made import Case, Row, ask, cases, put, send

SHARED: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "seq_length": 512, "overrides": ["num_hidden_layers=2"],
    "cuda_graph": True,
}  # fmt: skip
RUNS: Final[tuple[dict[str, Any], ...]] = (
    {**SHARED, "tp": 4, "micro_batch_size": 4, "label": "run 0", "measured_ms": 4.948},
    {**SHARED, "tp": 2, "micro_batch_size": 2, "label": "run 1", "measured_ms": 6.17},
)
"""8 % longer than predicted on the bundled H100 profile."""
TABLE: Final = "m,n,k,us\n4096,2048,4096,120\n8192,2048,4096,240\n16384,2048,4096,470\n"


def runs_table(runs: list[dict[str, Any]]) -> str:
    """Runs as a table."""
    out = io.StringIO()
    rows = [{**one, "overrides": " ".join(one["overrides"]), "cuda_graph": "yes"} for one in runs]
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def profiles() -> dict[str, Case]:
    """Files that are no profiles."""
    file = json.loads(bundled_bytes("h100-dgx"))
    tampered = file | {"name": "mine", "created": "2026-03-03"}
    long = b"x" * 15_000_000
    return cases(422, {
        "a profile that is empty": Row(put(b"{}"), "# bad-profile"),
        "a profile that is none": Row(put(b'{"schema": 1}'), "#/schema bad-profile"),
        "a profile with NaN": Row(put(b'{"schema": NaN}'), "#/schema"),
        "a profile of a million numbers": Row(
            put(b'{"a":[' + b"1.2345678901," * 10**6 + b"1]}"), "#", "at most 800,000 values"
        ),
        "a profile of 5 million objects": Row(
            put(b'{"a":[' + b"{}," * (5 * 10**6) + b"1]}"), "#", "at most 800,000 values"
        ),
        "a GPU that sets the terminal's title": Row(
            _gpu("H100\x1b]0;mine\x07"), "#/machine bad-profile"
        ),
        "a GPU that is read backwards": Row(_gpu("H100 \u202e08 BG"), "#/machine bad-profile"),
        "a GPU of 1,000,000 characters": Row(
            _gpu("H" * 1_000_000), "#/machine/gpu", "at most 64,000 characters"
        ),
        "a GPU of 15,000,000 characters": Row(
            put(b'{"machine": {"gpu": "' + long + b'"}}'), "#/machine/gpu"
        ),
        "a key of 100,000 in a profile": Row(
            put(b'{"a": {"' + b"k" * 100_000 + b'": 1}}'), "#/a/" + "k" * 100
        ),
        "a profile that was changed": Row(
            put(json.dumps(tampered).encode()), "#/checksum bad-profile", "checksum"
        ),
        "a profile of another name": Row(put(bundled_bytes("h100-dgx")), "# bad-input"),
    })  # fmt: skip


def imports() -> dict[str, Case]:
    """Tables that cannot be imported, and invalid ways to import one."""
    lines = "m,n,k,us\n" + "".join(f"{m},8,8,1\n" for m in range(1, MOST_LINES + 1))
    ends = {"LF": "\n", "CR": "\r", "LS": "\u2028", "CR LF": "\r\n"}
    files = {name: lines.replace("\n", end).encode() for name, end in ends.items()}
    return cases(422, {
        "an importer that is none": Row(_table(format="../x"), "# bad-input"),
        "an importer that is not there": Row(_table(format="no-such-format"), "# bad-input"),
        "an import into nothing": Row(_table(into="no-such-profile"), "# bad-input"),
        "an import of int4": Row(_table(dtype="int4"), "#/dtype bad-input"),
        "an import of 0 nodes": Row(_table(nodes="0"), "nodes"),
        "an import of many CTAs": Row(_table(ctas="many"), "ctas"),
        "an import in minutes": Row(_table(unit="min"), "unit"),
        "an import of more": Row(_table(unknown="1"), "unknown"),
        "an import of a file": Row(_table(file="/etc/passwd"), "file"),
        "a table that is none": Row(
            _table(b"\x00\xff" * 1000), "# bad-input", "The file is not UTF-8 text"
        ),
        **{
            f"a table of too many lines ending in {end}": Row(
                _table(body), "#", "20,000 lines"
            )
            for end, body in {**files, "nothing, packed": gzip.compress(lines.encode())}.items()
        },
    })  # fmt: skip


def calibrations() -> dict[str, Case]:
    """Impossible runs, each together with a possible one."""
    first, second = RUNS
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "a run of -1 ms": ({"measured_ms": -1}, "measured_ms"),
        "a run of 0 ms": ({"measured_ms": 0}, "measured_ms"),
        "a run of 1e308 ms": ({"measured_ms": 1e308}, "measured_ms"),
        "a run of some ms": ({"measured_ms": "some"}, "measured_ms"),
        "a run of 4,096 by 4,096 ranks": ({"tp": 4096, "dp": 4096}, "dp"),
        "a run of 10^9 tokens": ({"seq_length": 10**9}, "seq_length"),
        "a run of a huge model": ({"overrides": ["hidden_size=100000000"]}, "overrides/0"),
        "a run of too many ops": (
            {"overrides": ["num_hidden_layers=4096"], "pp": 64, "grad_accumulation": 8000}, "model",
        ),
        "a run of a plan": ({"plan": {}}, "plan"),
        "a run with an odd key": ({"a~/é": 1}, "a~0~1%C3%A9"),
    }  # fmt: skip
    impossible: dict[str, tuple[dict[str, Any], str]] = {
        "a run of nonsense": ({"model": "nonsense"}, "run 2: Unknown model"),
        "a run on 7 ranks": (
            {"tp": 7}, "num_attention_heads = 16 is not divisible by tp = 7"
        ),
        "a run of 4 stages": (
            {"tp": 4, "pp": 4}, "num_hidden_layers = 2 is not divisible by pp"
        ),
        "a run of 8 row slices": (
            {"tp": 4, "strategy": "domino", "row_slices": 8},
            "row_slices = 8 needs at least as many",
        ),
        "a run of 3 column slices": (
            {"tp": 4, "strategy": "domino", "attn_col_slices": 3},
            "attn_col_slices = 3",
        ),
        "a run of user buffers over nodes": (
            {"tp": 16, "strategy": "userbuffers"}, "inside one node"
        ),
    }  # fmt: skip
    tables = {
        "a table of no runs": "measured_ms\n",
        "a table of large runs": runs_table([*RUNS]).replace("512", "512000000"),
        "a table of 65 runs": runs_table([first] * 65),
    }
    bare = {key: value for key, value in second.items() if key != "label"} | {"micro_batch_size": 4}
    return cases(422, {
        **{
            name: Row(_calibration([first, second | change]), f"#/runs/1/{place}")
            for name, (change, place) in changes.items()
        },
        **{
            name: Row(
                _calibration([first, bare | change]), "#/runs/1 bad-input", said
            )
            for name, (change, said) in impossible.items()
        },
        "one run": Row(_calibration([first]), "#/runs"),
        "two runs of one layout": Row(
            _calibration([first, first]), "#/runs bad-input",
            "All runs are of one layout: run 0, run 0.",
        ),
        "runs that contradict each other": Row(
            _calibration([first, {**first, "measured_ms": 15.0}, second]), "#/runs bad-input",
            "run 0, run 0 are of one layout and contradict each other",
        ),
        "a run faster than any": Row(
            _calibration([first, {**second, "measured_ms": 0.001}]), "#/runs/1 bad-input",
            "TFLOP/s a GPU, where H100 SXM 80 GB has 989.4 in bf16",
        ),
        "a run of what does not fit": Row(
            _calibration(
                [first, {**second, "model": "gpt3-175b", "overrides": [], "measured_ms": 1e6}]
            ), "#/runs/1 bad-input", "GiB a GPU, where H100 SXM 80 GB has 79",
        ),
        "65 runs": Row(_calibration([first] * 65), "#/runs"),
        **{name: Row(_calibration(table), "#/runs") for name, table in tables.items()},
        "a table with an odd column": Row(
            _calibration(runs_table([*RUNS]).replace("tp", "pt")), "#/runs bad-input"
        ),
    }) | cases(409, {
        "a calibration in place of a bundled one": _calibration([*RUNS], "h100-dgx"),
        "a calibration in place of another bundled one": _calibration([*RUNS], "a100-sxm"),
    })  # fmt: skip


def _gpu(name: str) -> list[Part]:
    """A bundled profile with another name of its GPU."""
    file = json.loads(bundled_bytes("h100-dgx"))
    file["machine"]["gpu"] = name
    return put(json.dumps(file | {"name": "mine"}).encode())


def _table(body: bytes = TABLE.encode(), **changed: str) -> list[Part]:
    query = {"format": "gemm-csv", "into": "h100-dgx", **changed}
    words = "&".join(f"{name}={value}" for name, value in query.items())
    return [send("POST", f"/v1/profiles/mine/import?{words}", body, "text/csv")]


def _calibration(runs: Any, name: str = "mine") -> list[Part]:
    return ask("calibrations", {"profile": "h100-dgx", "name": name, "runs": runs})
