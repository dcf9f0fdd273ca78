"""Rates: rows that the machine cannot reach, and tables in another unit than it seems."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.measure.importers import Hints, read_table
from domino_tune.measure.importers.rates import UNITS, bound_of
from simulator.errors import InputError
from simulator.lookup import NO_ROOF
from simulator.lookup.gemm import GemmTable
from simulator.lookup.pointwise import PointwiseRow
from tests.unit.domino_tune.measure.importers.machines import H100, LAPTOP

ATTENTION = "src,batch_size,isl,num_heads,head_dim,us\n"
POINTWISE = "op,num_tokens,num_tensor_parallel_workers,n_embd,n_expanded_embd,us\n"
COLLECTIVES = "nccl_dtype,op_name,num_gpus,bytes,us\n"
# Real times on an H100, in microseconds, and the place of the first row that is too fast as ms.
TABLES = {
    "gemm-csv": ("m,n,k,us\n1,256,128,2.2\n4096,4096,4096,180\n8192,4096,4096,365\n", "line 3"),
    "attention-csv": (f"{ATTENTION}sglang-0.5.9,4,4096,16,128,620\n", "line 2"),
    "pointwise-csv": (f"{POINTWISE}add,32768,1,8192,28672,580\nadd,64,1,4096,11008,2\n", "line 2"),
    "collectives-csv": (
        f"{COLLECTIVES}half,all_reduce,8,64,12\nhalf,all_reduce,8,67108864,330\n", "line 3"
    ),
    "eager-all-reduce-csv": ("num_workers,bytes,us\n8,67108864,340\n", "line 2"),
}  # fmt: skip


def in_unit(table: str, unit: str) -> bytes:
    """Return the table with its last column in ``unit``."""
    head, *lines = table.splitlines()
    cells = [line.rpartition(",") for line in lines]
    scaled = [f"{rest},{float(us) / UNITS[unit]!r}" for rest, _, us in cells]
    return "\n".join([head, *scaled]).encode()


@pytest.mark.parametrize("importer", TABLES)
@pytest.mark.parametrize("unit", ["ms", "s"])
def test_times_that_no_machine_reaches_name_line_rate_and_unit(importer: str, unit: str) -> None:
    table, place = TABLES[importer]
    with pytest.raises(InputError) as refusal:
        read_table(in_unit(table, unit), importer, Hints(machine=H100))
    message = str(refusal.value)
    assert (place if unit == "ms" else "line 2") in message
    assert "B/s" in message or "TFLOP/s" in message
    assert H100.gpu in message
    assert f"give --unit {unit}" in message


@pytest.mark.parametrize("importer", TABLES)
@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_that_is_given_counts(importer: str, unit: str) -> None:
    table, _ = TABLES[importer]
    plain = read_table(table.encode(), importer, Hints(machine=H100))
    found = read_table(in_unit(table, unit), importer, Hints(machine=H100, unit=unit))
    assert [row.median_us for row in found.rows] == pytest.approx(
        [row.median_us for row in plain.rows]
    )
    assert found.warnings == plain.warnings == ()


@pytest.mark.parametrize("importer", ["gemm-csv", "attention-csv", "collectives-csv"])
def test_nanoseconds_are_told_by_the_median_row(importer: str) -> None:
    table, _ = TABLES[importer]
    with pytest.raises(InputError, match=r"median row, line \d+, .* as slow .*--unit ns"):
        read_table(in_unit(table, "ns"), importer, Hints(machine=H100))
    found = read_table(in_unit(table, "ns"), importer, Hints(machine=H100, unit="us"))
    assert "times as slow as H100" in found.warnings[0]


def test_the_message_of_the_issue() -> None:
    with pytest.raises(InputError) as refusal:
        read_table(b"m,n,k,us\n4096,4096,4096,0.18\n", "gemm-csv", Hints(machine=H100))
    assert str(refusal.value) == (
        "line 2: a GEMM of 4096×4096×4096 (m×n×k) in 0.18 us would be 763,550 TFLOP/s, above the "
        "peak of H100 SXM 80 GB for bf16, 989.4 TFLOP/s; 1 of 1 rows are too fast. The column "
        "looks like milliseconds: give --unit ms."
    )


def test_a_single_wrong_row_is_not_taken_for_another_unit() -> None:
    rows = "".join(f"{m},4096,4096,{m * 0.05}\n" for m in range(2048, 4096, 256))
    with pytest.raises(
        InputError, match=r"line 10: .*1 of 9 rows.*Correct these rows, .* --dtype, --unit\."
    ):
        read_table(f"m,n,k,us\n{rows}4096,4096,4096,0.18\n".encode(), "gemm-csv",
                   Hints(machine=H100))  # fmt: skip


def test_the_peak_is_that_of_the_dtype() -> None:
    data = b"m,n,k,us\n4096,4096,4096,400\n"  # 344 TFLOP/s: tensor cores
    assert read_table(data, "gemm-csv", Hints(machine=H100)).rows
    with pytest.raises(InputError, match=r"for fp32, 66\.9 TFLOP/s.*--dtype"):
        read_table(data, "gemm-csv", Hints(machine=H100, dtype="fp32"))


def test_formats_with_a_unit_of_their_own_take_none() -> None:
    data = b"payload_bytes,algbw_GBps\n67108864,200\n"
    assert read_table(data, "busbw-csv", Hints(machine=H100)).warnings == ()
    with pytest.raises(InputError, match="leave --unit out"):
        read_table(data, "busbw-csv", Hints(machine=H100, unit="us"))
    with pytest.raises(InputError, match=r"bus bandwidth.*in the unit that the format has"):
        read_table(b"payload_bytes,algbw_GBps\n67108864,200000\n", "busbw-csv",
                   Hints(machine=H100))  # fmt: skip
    slow = read_table(b"payload_bytes,algbw_GBps\n67108864,0.02\n", "busbw-csv",
                      Hints(machine=H100))  # fmt: skip
    assert "as slow" in slow.warnings[0]


def test_options_that_may_be_wrong_are_named() -> None:
    odd = b"payload_bytes,algbw_GBps\n67108864,200000\n67108864,0.0002\n"
    with pytest.raises(
        InputError, match=r"--into \(the machine\), --op, --nodes, --ranks-per-node\."
    ):
        read_table(odd, "busbw-csv", Hints(machine=H100))


def test_rows_that_look_ups_lift_are_counted() -> None:
    rows = "4096,4096,4096,135\n4096,4096,4096,135\n4096,4096,2048,66\n4096,4096,1024,40\n"
    data = f"m,n,k,us\n{rows}".encode()
    found = read_table(data, "gemm-csv", Hints(machine=H100))
    (warning,) = found.warnings
    assert warning.startswith("2 of 3 rows are faster than the data sheet of H100 SXM 80 GB")
    assert H100.roof is not NO_ROOF
    table = GemmTable(
        found.rows, peak_flops={"bf16": 989.4e12}, memory_bandwidth=3.35e12, sm_count=132,
        roof=H100.roof,
    )  # fmt: skip
    lifted = [table.estimate(row.signature).duration_us > row.median_us for row in found.rows]
    assert sum(lifted) == 2
    streamed = f"{POINTWISE}add,32768,1,8192,28672,450\n".encode()
    assert "1 of 1 rows" in read_table(streamed, "pointwise-csv", Hints(machine=H100)).warnings[0]
    measured = Hints(machine=replace(H100, l2_mb=0.0))
    assert read_table(data, "gemm-csv", measured).warnings == ()


def test_small_traffic_may_come_from_the_cache() -> None:
    row = PointwiseRow(name="add", bytes_read=40 << 20, bytes_written=20 << 20, median_us=10.0)
    assert row.median_us * bound_of(row, H100).most > bound_of(row, H100).work  # 6.3 TB/s
    large = replace(row, bytes_read=400 << 20, bytes_written=200 << 20, median_us=100.0)
    assert large.median_us * bound_of(large, H100).most < bound_of(large, H100).work


def test_links_between_nodes_may_be_slow() -> None:
    gigabit = b"payload_bytes,algbw_GBps\n67108864,0.01\n"
    between = Hints(machine=H100, nodes=2, per_node=1)
    assert read_table(gigabit, "busbw-csv", between).warnings == ()
    assert read_table(gigabit, "busbw-csv", Hints(machine=H100)).warnings


def test_peaks_that_were_measured_leave_room() -> None:
    data = b"m,n,k,us\n512,512,512,2500\n"  # 0.107 TFLOP/s, twice the machine's fastest yet
    hints = Hints(machine=LAPTOP, dtype="fp32")
    assert read_table(data, "gemm-csv", hints).rows
    with pytest.raises(InputError, match="give --unit ms"):
        read_table(b"m,n,k,us\n512,512,512,2.5\n", "gemm-csv", hints)


def test_without_a_machine_nothing_is_compared() -> None:
    assert read_table(b"m,n,k,us\n4096,4096,4096,0.18\n", "gemm-csv").rows
