"""Importers: nccl-tests text and JSON, plain CSV, and putting rows into a profile."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from domino_tune.measure.importers import (
    IMPORTERS,
    Hints,
    descriptions,
    import_into,
    read_table,
)
from domino_tune.store.profiles import dump_profile, load_profile, parse_profile
from simulator.errors import InputError
from simulator.lookup import Provenance
from simulator.ops import Collective, Gemm
from simulator.profile import GemmSection, Profile
from tests.conftest import DATA
from tests.unit.domino_tune.measure.importers.machines import H100

SIZES = (1 << 20, 1 << 21, 1 << 22, 1 << 23)
SECRET = "HF_TOKEN=hunter2"


def bandwidths(size: int, us: float, ranks: int) -> tuple[float, float]:
    return size / us / 1e3, size / us / 1e3 * 2 * (ranks - 1) / ranks


def text(ranks: int = 8, hosts: int = 1, wrong: str = "0", program: str = "all_reduce_perf") -> str:
    lines = ["# nccl-tests version 2.17.1 nccl-headers=22902 nccl-library=22902"]
    if program:
        lines.append(f"# Collective test starting: {program}")
    lines += ["# nThread 1 nGpus 1 minBytes 1048576 maxBytes 8388608", "#", "# Using devices"]
    for rank in range(ranks):
        host = f"node{rank * hosts // ranks}"
        device = "device  0 [0000:1b:00] H100"
        lines.append(f"#  Rank {rank:2} Group  0 Pid {99 + rank:6} on {host:>10} {device}")
    lines += ["#", "#       size  count  type  redop  root  time  algbw  busbw #wrong", "#"]
    for size in SIZES:
        cells = f"{size:12}  {size // 4:12}     float     sum      -1"
        for us in (50.0 + size / 1e5, 40.0 + size / 1e5):
            alg, bus = bandwidths(size, us, ranks)
            cells += f"  {us:7.2f}  {alg:6.2f}  {bus:6.2f}  {wrong:>6}"
        lines.append(cells)
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1"]) + "\n"


def document(wrong: float | None = 0.0) -> dict[str, Any]:
    def timing(size: int, us: float) -> dict[str, Any]:
        alg, bus = bandwidths(size, us, 8)
        return {"time": us, "alg_bw": alg, "bus_bw": bus, "nwrong": wrong}

    devices = [{"rank": rank, "hostname": "node0"} for rank in range(8)]
    return {
        "version": 1,
        "args": ["/opt/nccl-tests/build/all_reduce_perf", "-J", "out.json"],
        "env": [SECRET],
        "nccl_version": 22902,
        "config": {"nthreads": 1, "ngpus": 1, "devices": devices},
        "results": [
            {
                "size": size, "count": size // 4, "type": "float",
                "out_of_place": timing(size, 50.0 + size / 1e5),
                "in_place": timing(size, 40.0 + size / 1e5),
            }
            for size in SIZES
        ],
    }  # fmt: skip


def test_json_of_several_groups_is_of_one() -> None:
    """With NCCL_TESTS_SPLIT each group times the collective by itself."""
    found = document()
    devices = [
        {"rank": rank, "hostname": f"node{rank % 2}", "group": rank % 2} for rank in range(16)
    ]
    found["config"]["devices"] = devices
    rows = read_table(json.dumps(found).encode(), "nccl-tests-json").rows
    assert {(row.nodes, row.per_node) for row in rows} == {(1, 8)}
    devices[0]["group"] = 1
    with pytest.raises(InputError, match="groups have several shapes"):
        read_table(json.dumps(found).encode(), "nccl-tests-json")


def test_json_with_values_out_of_bounds_is_refused() -> None:
    found = {**document(), "out_of_bounds": {"count": 3}}
    with pytest.raises(InputError, match="values out of bounds"):
        read_table(json.dumps(found).encode(), "nccl-tests-json")


def test_text_and_json_give_the_same_rows() -> None:
    from_text = read_table(text().encode(), "nccl-tests").rows
    from_json = read_table(json.dumps(document()).encode(), "nccl-tests-json").rows
    assert [row.key for row in from_text] == [row.key for row in from_json]
    assert [row.median_us for row in from_text] == pytest.approx(
        [row.median_us for row in from_json], abs=0.01
    )


def test_all_reduce_is_timed_in_place_as_torch_runs_it() -> None:
    row = read_table(text().encode(), "nccl-tests").rows[0]
    assert (row.op, row.nodes, row.per_node, row.bytes) == ("all_reduce", 1, 8, 1 << 20)
    assert row.median_us == pytest.approx(50.49)


def test_hosts_make_the_group() -> None:
    row = read_table(text(ranks=16, hosts=2).encode(), "nccl-tests").rows[0]
    assert (row.nodes, row.per_node) == (2, 8)


def test_hints_stand_in_for_what_old_output_does_not_say() -> None:
    old = text(program="").encode()
    with pytest.raises(InputError, match="--op"):
        read_table(old, "nccl-tests")
    assert read_table(old, "nccl-tests", Hints(op="all_reduce", ctas=16)).rows[0].ctas == 16


def test_the_environment_dump_is_dropped() -> None:
    data = json.dumps(document()).encode()
    profile = import_into(
        load_profile("h100-dgx"), read_table(data, "nccl-tests-json"), source="out.json", data=data
    )
    assert b"hunter2" not in dump_profile(profile)


@pytest.mark.parametrize("importer", ["nccl-tests", "nccl-tests-json"])
def test_wrong_results_are_refused(importer: str) -> None:
    data = text(wrong="3") if importer == "nccl-tests" else json.dumps(document(wrong=3.0))
    with pytest.raises(InputError, match="3 wrong elements"):
        read_table(data.encode(), importer)


@pytest.mark.parametrize("importer", ["nccl-tests", "nccl-tests-json"])
def test_unchecked_results_are_taken(importer: str) -> None:
    data = text(wrong="N/A") if importer == "nccl-tests" else json.dumps(document(wrong=None))
    assert len(read_table(data.encode(), importer).rows) == len(SIZES)


def test_a_bus_bandwidth_that_does_not_follow_is_refused() -> None:
    with pytest.raises(InputError, match=r"busbw .* wrong .* Pass --op, --nodes and --ranks-per"):
        read_table(text(program="").encode(), "nccl-tests", Hints(op="reduce_scatter"))


@pytest.mark.parametrize(
    ("importer", "data", "reason"),
    [
        ("nccl-tests", b"", "does not say which collective"),
        ("nccl-tests", text().split("#  Rank")[0].encode(), "--nodes 1 --ranks-per-node 8"),
        ("nccl-tests", text(ranks=9, hosts=2).encode(), "not the same number on each node"),
        ("cta-all-reduce-csv", b"freq_mhz,bytes\n1980,64\n", "at least one of cta1 … cta99"),
        ("nccl-tests", text()[:-140].encode(), "13 columns"),
        ("nccl-tests", text().replace("float", "float x", 1).encode(), "not a line of nccl-tests"),
        ("nccl-tests-json", b"{}", "Not a complete nccl-tests JSON"),
        ("nccl-tests-json", json.dumps(document()).encode()[:-9], "Not a complete"),
        ("gemm-csv", b"m,n,k,us\n", "empty"),
        ("gemm-csv", b"m,n,us\n1,2,3\n", "no column k"),
        ("gemm-csv", b"m,n,k,us\n1,2,3,4\n1,2,3\n", "line 3 has a different number of cells"),
        ("gemm-csv", b"m,n,k,us\n1,2,3,nan\n", "line 2: us must be finite"),
        ("gemm-csv", b"m,n,k,us\n1,2,3,-4\n", "line 2: us must be finite"),
        ("gemm-csv", b"m,n,k,us\n1,2,3,0\n", "line 2: us must be > 0"),
        ("gemm-csv", b"m,n,k,us\n1.5,2,3,4\n", "line 2: m must be a whole number"),
        ("gemm-csv", b"m,n,k,us\n1,2,x,4\n", "line 2: k = 'x' is not a number"),
        ("gemm-csv", gzip.compress(b"m,n,k,us\n1,2,3,4\n", mtime=0)[:-4], "not complete gzip"),
        ("gemm-csv", b"\xff\xfe", "not UTF-8"),
        ("pointwise-csv", b"op,num_tokens,num_tensor_parallel_workers,n_embd,n_expanded_embd,us\n"
            b"pool,1,1,8,8,1\n", "unknown op 'pool'"),
        ("nccl-test", b"", "Did you mean 'nccl-tests"),
    ],
)  # fmt: skip
def test_doubtful_tables_are_refused_with_line_and_reason(
    importer: str, data: bytes, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        read_table(data, importer)


def test_plain_gemms_are_sorted_and_repeats_merged() -> None:
    data = b"# mine\nm,n,k,us\n64,64,64,50\n32,64,64,3\n64,64,64,52\n"
    imported = read_table(gzip.compress(data, mtime=0), "gemm-csv")
    assert [(row.m, row.median_us, row.spread_us, row.samples) for row in imported.rows] == [
        (32, 3.0, 0.0, 1),
        (64, 51.0, 1.0, 2),
    ]


def test_imported_rows_win_over_the_laws_and_say_where_they_are_from() -> None:
    h100 = load_profile("h100-dgx")
    data = text().encode()
    profile = import_into(h100, read_table(data, "nccl-tests"), source="mine.txt", data=data)
    op = Collective("all_reduce", SIZES[1], 1, 8)
    assert profile.collective_table().estimate(op).source == "measured"
    untouched = Collective("all_reduce", SIZES[1], 1, 4)
    assert profile.collective_table().estimate(untouched).source == "fitted"
    assert profile.collectives is not None
    provenance = profile.collectives.provenance
    assert provenance.kind == "imported"
    assert provenance.source.startswith("mine.txt (sha256:")
    assert "aiconfigurator" in provenance.note
    assert provenance.error is not None
    assert parse_profile(dump_profile(profile), source="test") == profile


def test_importing_again_replaces_rows_of_the_same_signature() -> None:
    first, second = b"m,n,k,us\n64,64,64,5\n64,64,32,4\n", b"m,n,k,us\n64,64,64,6\n"
    profile = replace(load_profile("h100-dgx"), gemm=None)
    for data in (first, second):
        profile = import_into(profile, read_table(data, "gemm-csv"), source="g.csv", data=data)
    table = profile.gemm_table()
    assert table.estimate(Gemm(64, 64, 64)).duration_us == 6.0
    assert table.estimate(Gemm(64, 64, 32)).duration_us == 4.0


@pytest.mark.parametrize(
    ("importer", "name", "rows"),
    [
        ("gemm-csv", "h100_gemm_bf16.csv.gz", 35742),
        ("gemm-csv", "h100_layer_gemms_llama2.csv.gz", 8288),
        ("attention-csv", "h100_attention_fwd_causal_hd128.csv.gz", 552),
        ("attention-pair-csv", "attention_fwd_bwd_hd128.csv", 12),
        ("pointwise-csv", "h100_pointwise_llama2.csv.gz", 2718),
        ("collectives-csv", "h100_nccl_nvlink.csv", 189),
        ("collectives-csv", "a100_nccl_nvlink.csv", 189),
        ("eager-all-reduce-csv", "h100_dgx_all_reduce_eager.csv", 2979),
    ],
)
def test_published_tables_are_read(importer: str, name: str, rows: int) -> None:
    assert len(read_table((DATA / "measured" / name).read_bytes(), importer).rows) == rows


@pytest.mark.facts
@pytest.mark.parametrize(
    ("importer", "name", "rows"),
    [
        ("cta-all-reduce-csv", "contention/ar_by_cta_w4.csv", 46),
        ("nccl-tests-csv", "nccl-tests/nccltests309_C_8n64_default.csv", 14),
        ("busbw-csv", "nccl-tests/stas00_h200_1n8_allreduce_busbw.csv", 20),
    ],
)
def test_tables_that_are_not_held_are_read(
    facts_dir: Any, importer: str, name: str, rows: int
) -> None:
    assert len(read_table((facts_dir / name).read_bytes(), importer).rows) == rows


@pytest.mark.parametrize("importer", [name for name, one in IMPORTERS.items() if one.columns])
def test_every_column_that_is_declared_is_needed(importer: str) -> None:
    columns = IMPORTERS[importer].columns
    for missing in columns:
        header = ",".join(name for name in columns if name != missing)
        comment = "# op: all_reduce ranks=8 nodes=1\n"
        data = f"{comment}{header}\n{','.join('1' for _ in columns[1:])}\n".encode()
        with pytest.raises(InputError, match=f"no column {missing};"):
            read_table(data, importer)


def test_every_importer_is_described() -> None:
    found = dict(descriptions())
    assert set(found) == set(IMPORTERS)
    for name, one in IMPORTERS.items():
        assert one.about
        assert all(column in found[name] for column in one.columns)
    assert "at least one of cta1 … cta99" in found["cta-all-reduce-csv"]
    assert "m tokens, n outputs, k inputs" in found["gemm-csv"]
    assert "Times of all_reduce and broadcast are in time_us_inplace" in found["nccl-tests-csv"]


@pytest.mark.parametrize(
    "data",
    [
        b"m;n;k;us\n64;64;32;5\n",
        b"m\tn\tk\tus\n64\t64\t32\t5\n",
        b"\xef\xbb\xbfm,n,k,us\r\n64,64,32,5\r\n",
        b"m, n, k, us\r64, 64, 32, 5\r",
        b'"m","n","k","us"\n"64","64","32","5"\n',
        b'm,n,k,us,remark\n64,64,32,5,"two\nlines, one cell"\n',
        b"\n# mine\n\nm,n,k,us\n\n64,64,32,5\n# end\n",
    ],
    ids=["semicolon", "tab", "mark", "cr", "quotes", "line break", "blank"],
)
def test_dialects_of_csv(data: bytes) -> None:
    (row,) = read_table(data, "gemm-csv").rows
    assert (row.m, row.n, row.k, row.median_us) == (64, 64, 32, 5.0)


DEVICES = {"nthreads": 10**9, "ngpus": 1, "devices": [{"hostname": "a"}]}


@pytest.mark.parametrize(
    ("importer", "data", "reason"),
    [
        ("gemm-csv", b"m,n,k,us\n1,2,3,4\n# x\n\n1,2,x,4\n", "line 5: k = 'x' is not a number"),
        ("gemm-csv", b"m,n,k,us,us\n1,2,3,4,5\n", "'us' stands twice"),
        ("gemm-csv", b"m,n,k,us\n1,2,3,4\x00\n", "NUL bytes"),
        ("gemm-csv", "m,n,k,us\n1,2,3,4\n".encode("utf-16"), "not UTF-8"),
        ("gemm-csv", b"PK\x03\x04\x14\xff\xfe", "save the table as CSV in UTF-8"),
        ("gemm-csv", b"m,n,k,us\n1,2,3,'4'\n", "line 2: us = .* is not a number"),
        ("gemm-csv", b'm,n,k,us\n1,2,3,"4\n', "line 2 is not CSV"),
        ("gemm-csv", b'm,n,k,us\n1,2,3,"4"5\n', "line 2 is not CSV"),
        ("gemm-csv", b'm,n,k,us\n1,2,3,"4' + b"9\n" * 200_000, "is not CSV: field larger"),
        ("gemm-csv", b"m,n,k,us\n1e400,2,3,4\n", "line 2: m must be finite"),
        ("gemm-csv", b"m,n,k,us\n1e16,2,3,4\n", "line 2: m must be a whole number"),
        ("gemm-csv", b"m,n,k,us\n1,2,3," + b"x" * 60_000, "xxx…' is not a number"),
        ("gemm-csv", b"m,n,k,us\n1,2,3," + b"9" * (1 << 17), "line 2 has more than 65,536 char"),
        ("gemm-csv", b"," * (1 << 20), "line 1 has more than 65,536 char"),
        ("gemm-csv", b",".join(b"c%d" % i for i in range(9000)), "'c11', …"),
        ("gemm-csv", b"m,n,k,us\n" + b"\n" * 1_000_001, "more than 1,000,000 lines"),
        ("gemm-csv", gzip.compress(bytes(65 << 20), 1), "more than 64 MiB"),
        ("attention-csv", b"src,batch_size,isl,num_heads,head_dim,us\nvllm,1,1,1,1,1\n",
            "no rows to import .1 rows of other kernels"),
        ("nccl-tests", text().replace("   8388608 ", "9" * 30).encode(), "size must be from 0"),
        ("nccl-tests-json", b"[" * 200_000, "nested too deeply"),
        ("nccl-tests-json", json.dumps({**document(), "config": DEVICES}).encode(), "1000000000"),
        ("nccl-tests-csv", b"# op: all_reduce ranks=8 nodes=0\n", "'0' nodes"),
        ("nccl-tests-csv", b"# op: all_reduce ranks=99999999999 nodes=1\n", "'99999999999' ranks"),
        ("nccl-tests-csv", b"#" + b" op: a" * 10_000, "does not say which collective"),
    ],
)  # fmt: skip
def test_hostile_tables_are_refused(importer: str, data: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refusal:
        read_table(data, importer)
    assert len(str(refusal.value)) < 500


def test_all_earlier_sources_stay_in_the_provenance() -> None:
    section = GemmSection(rows=(), provenance=Provenance(kind="measured", source="me", note="Hm."))
    profile = Profile(name="p", created="2026-01-01", machine=H100, gemm=section)
    for data in (b"m,n,k,us\n64,64,64,5\n", b"m,n,k,us\n64,64,32,4\n"):
        imported = read_table(data, "gemm-csv")
        profile = import_into(profile, imported, source=f"g{data[-2]:c}.csv", data=data)
        assert import_into(profile, imported, source=f"g{data[-2]:c}.csv", data=data) == profile
    assert profile.gemm is not None
    provenance = profile.gemm.provenance
    assert provenance.source.startswith("g4.csv (sha256:")
    assert provenance.note.startswith("Before: imported, g5.csv (sha256:")
    assert provenance.note.endswith("Before: measured, me. Hm.")
