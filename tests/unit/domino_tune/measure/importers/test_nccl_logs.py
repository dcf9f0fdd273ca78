"""Logs of nccl-tests as people have them: of any version, with several tables, with marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import pytest

from domino_tune.measure.importers import NO_HINTS, Hints, ImportedRows, read_table
from domino_tune.store.profiles import load_profile
from simulator.errors import InputError
from simulator.ops import busbw_factor

SIZES: Final = (1 << 20, 1 << 22)
MODERN: Final = ("type", "redop", "root")
WRONG: Final = "#wrong"
OPS: Final = {
    "all_reduce_perf": ("all_reduce", "sum"),
    "all_gather_perf": ("all_gather", "none"),
    "reduce_scatter_perf": ("reduce_scatter", "sum"),
    "broadcast_perf": ("broadcast", "none"),
    "sendrecv_perf": ("send_recv", "none"),
    "alltoall_perf": ("all_to_all", "none"),
}


class Job(NamedTuple):
    """One table: which collective, on which ranks, at what speed (GB/s of algorithm bandwidth)."""

    program: str = "all_reduce_perf"
    nodes: int = 1
    per_node: int = 8
    rate: float = 100.0
    named: bool = True
    columns: tuple[str, ...] = MODERN
    check: str = WRONG
    checked: str = "0"
    rank: str = "Rank {rank:2} Group  0 Pid {pid} on node-{node} device {device:2} [0x0a] H100"


def cells(job: Job, size: int, rate: float, unit_us: float) -> list[str]:
    op, redop = OPS[job.program]
    time_us = 20 + size / rate / 1e3
    alg = size / time_us / 1e3
    bus = alg * busbw_factor(op, job.nodes * job.per_node)
    known = {"type": "float", "redop": redop, "op": redop, "root": "-1"}
    if op == "broadcast":
        known["root"] = "0"
    left = [str(size), str(size // 4), *(known[name] for name in job.columns)]
    once = [f"{time_us / unit_us:.3f}", f"{alg:.2f}", f"{bus:.2f}", job.checked]
    return [*left, *once]


def printed(job: Job, first: tuple[str, str] = ("size", "count"), unit: str = "us") -> str:
    """What nccl-tests prints of a job."""
    unit_us = {"us": 1.0, "ms": 1e3}[unit]
    lines = [f"# Collective test starting: {job.program}"] if job.named else []
    lines += ["# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304", "#", "# Using devices"]
    for rank in range(job.nodes * job.per_node):
        node, device = divmod(rank, job.per_node)
        lines.append("#  " + job.rank.format(rank=rank, pid=4000 + rank, node=node, device=device))
    names = [*first, *job.columns, *2 * ["time", "algbw", "busbw", job.check]]
    lines += ["#", "#            out-of-place      in-place", "#  " + "  ".join(names)]
    if first[0] == "size":
        lines.append(f"#  (B)  (elements)  ({unit})  (GB/s)  (GB/s)  ({unit})  (GB/s)  (GB/s)")
    for size in SIZES:
        both = cells(job, size, job.rate, unit_us) + cells(job, size, 2 * job.rate, unit_us)[-4:]
        lines.append("    " + "   ".join(both))
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 150.1", "#"]
    return "\n".join(lines) + "\n"


def read(text: str, hints: Hints = NO_HINTS) -> ImportedRows:
    return read_table(text.encode(), "nccl-tests", hints)


def keys(found: ImportedRows) -> list[tuple[str, int, int, int]]:
    return [(row.op, row.nodes, row.per_node, row.bytes) for row in found.rows]


def in_place_us(rate: float, size: int) -> float:
    return 20 + size / (2 * rate) / 1e3


@pytest.mark.parametrize("between", ["", "Run-2\n", "2\n", "32 ranks again\n", "\n\n"])
def test_one_collective_twice_is_of_one_group(between: str) -> None:
    job = Job(nodes=4)
    found = read(printed(job._replace(rate=50.0)) + between + printed(job))
    assert keys(found) == [("all_reduce", 4, 8, size) for size in SIZES]
    assert [row.median_us for row in found.rows] == pytest.approx(
        [in_place_us(100.0, size) for size in SIZES], rel=1e-3
    )
    assert found.note == "2 tables: all_reduce on 4x8 (2 times)"
    (warning,) = found.warnings
    assert "2 signatures were timed more than once" in warning
    assert "the later one is kept" in warning


def test_runs_that_agree_are_samples_of_one_row() -> None:
    found = read(printed(Job()) + printed(Job(rate=101.0)))
    assert [row.samples for row in found.rows] == [2, 2]
    assert found.warnings == ()


def test_several_collectives_keep_their_names_and_groups() -> None:
    jobs = [Job(program) for program in OPS] + [Job(nodes=2, per_node=4)]
    found = read("".join(printed(job) for job in jobs))
    assert set(keys(found)) == {
        (OPS[job.program][0], job.nodes, job.per_node, size) for job in jobs for size in SIZES
    }
    assert found.note.startswith("7 tables: all_reduce on 1x8, all_gather on 1x8, ")
    assert found.warnings == ()


def test_tables_without_names_take_the_op_that_is_asked() -> None:
    twice = printed(Job(named=False)) + printed(Job(named=False, nodes=2))
    with pytest.raises(InputError, match="pass --op all_reduce"):
        read(twice)
    found = read(twice, Hints(op="all_reduce"))
    assert set(keys(found)) == {("all_reduce", n, 8, size) for n in (1, 2) for size in SIZES}


def test_a_gather_and_a_scatter_never_become_one_collective() -> None:
    """Their bus bandwidth follows from their times alike."""
    jobs = (Job("all_gather_perf"), Job("reduce_scatter_perf"))
    both = "".join(printed(job) for job in jobs)
    assert {row.op for row in read(both).rows} == {"all_gather", "reduce_scatter"}
    with pytest.raises(InputError, match="The file says all_gather_perf, but --op says reduce_sc"):
        read(both, Hints(op="reduce_scatter"))
    unnamed = "".join(printed(job._replace(named=False)) for job in jobs)
    for op in ("all_gather", "reduce_scatter"):
        with pytest.raises(InputError, match=f"are not of {op}; correct --op. Import a log of sev"):
            read(unnamed, Hints(op=op))


def test_an_exchange_sends_all_but_its_own_share() -> None:
    """alltoall.cu: (ranks − 1) / ranks of the algorithm bandwidth."""
    text = printed(Job("alltoall_perf", nodes=2))
    assert keys(read(text)) == [("all_to_all", 2, 8, size) for size in SIZES]
    assert read(text, Hints(op="all_to_all")).rows == read(text).rows
    assert busbw_factor("all_to_all", 16) == 15 / 16


def test_a_time_after_the_results_is_left_out() -> None:
    text = printed(Job())
    lines = [
        f"{line}  timestamp" if "algbw" in line
        else f"{line}  2026-03-01 10:00:00" if line.startswith("    ") else line
        for line in text.splitlines()
    ]  # fmt: skip
    assert read("\n".join(lines)).rows == read(text).rows


@pytest.mark.parametrize("mark", ["0:", "nccl-1  |", "[0]"])
def test_a_mark_that_touches_a_remark(mark: str) -> None:
    text = printed(Job())
    glued = [f"{mark}{'' if line.startswith('#') else ' '}{line}" for line in text.splitlines()]
    assert read("\n".join(glued)).rows == read(text).rows


def test_numbers_of_lines_are_no_ranks() -> None:
    text = printed(Job(nodes=2))
    numbered = [f"{number}:{line}" for number, line in enumerate(text.splitlines(), 1)]
    assert read("\n".join(numbered)).rows == read(text).rows


def test_a_broadcast_is_told_by_its_root() -> None:
    with pytest.raises(InputError, match="redop none and root 0 are not of send_recv"):
        read(printed(Job("broadcast_perf", named=False)), Hints(op="send_recv"))


def test_collectives_that_nothing_looks_up_are_left_out() -> None:
    other = printed(Job("all_gather_perf")).replace("all_gather_perf", "scatter_perf")
    found = read(printed(Job()) + other)
    assert {row.op for row in found.rows} == {"all_reduce"}
    assert found.note == "2 tables: all_reduce on 1x8; left out: scatter_perf"
    with pytest.raises(InputError, match="Unknown collective 'scatter_perf'"):
        read(other)


def test_a_run_that_broke_off_counts_no_ranks() -> None:
    broken = printed(Job()).split("#            out-of-place")[0]
    assert set(keys(read(broken + printed(Job())))) == {("all_reduce", 1, 8, n) for n in SIZES}


def test_a_header_alone_is_of_the_same_ranks() -> None:
    table = printed(Job(nodes=2))
    header = table[table.index("#            out-of-place") :]
    assert {key[:3] for key in keys(read(table + header))} == {("all_reduce", 2, 8)}


def test_groups_side_by_side_are_one_group_each() -> None:
    """NCCL_TESTS_SPLIT makes several groups, which run the same collective at once."""
    plain = printed(Job())
    last = next(line for line in plain.splitlines() if "Rank  7" in line)
    others = [last.replace("Rank  7 Group  0", f"Rank {rank:2} Group  1").replace("node-0", host)
              for rank, host in enumerate(8 * ["node-1"], 8)]  # fmt: skip
    assert read(plain.replace(last, "\n".join([last, *others]))) == read(plain)
    with pytest.raises(InputError, match="the groups of this table have several shapes"):
        read(plain.replace(last, "\n".join([last, *others[:4]])))


def test_a_table_of_one_rank_is_refused() -> None:
    with pytest.raises(InputError, match="the table is of one rank, which exchanges nothing"):
        read(printed(Job(per_node=1)))


def test_ranks_that_contradict_the_options_are_told() -> None:
    with pytest.raises(InputError, match="names 16 ranks on 2 nodes, which 4x8 are not"):
        read(printed(Job(nodes=2)), Hints(nodes=4, per_node=8))
    same_name = printed(Job(nodes=2)).replace("node-1", "node-0")
    assert keys(read(same_name, Hints(nodes=2)))[0][1:3] == (2, 8)
    with pytest.raises(InputError, match=r"each of 8 devices is there 2 times: .* Pass --nodes"):
        read(same_name)
    with pytest.raises(InputError, match="names 16 ranks on 2 nodes, which 4x4 are not"):
        read(printed(Job(nodes=2)), Hints(nodes=4, per_node=4))


def test_several_names_may_be_a_node() -> None:
    """Two hosts of one NVLink domain; pods of two GPUs."""
    for nodes, per_node in ((2, 4), (8, 2)):
        text = printed(Job("all_gather_perf", 1, nodes * per_node))
        for rank in range(nodes * per_node):
            line = next(one for one in text.splitlines() if f"Rank {rank:2} " in one)
            text = text.replace(line, line.replace("node-0", f"pod-{rank // per_node}"))
        whole = read(text, Hints(nodes=1, per_node=nodes * per_node))
        assert keys(whole)[0][1:3] == (1, nodes * per_node)


@pytest.mark.parametrize("device", ["device 0 [0x0a] H100", "device {device:2} [0x0a] H100"])
def test_a_device_of_each_ranks_own_is_read(device: str) -> None:
    """With one GPU a task, all are device 0 of their process."""
    rank = "Rank {rank:2} Group  0 Pid {pid} on node-{node} " + device
    assert keys(read(printed(Job(rank=rank))))[0][1:3] == (1, 8)


@pytest.mark.parametrize(
    ("name", "is_told"),
    [("NVIDIA H100 80GB HBM3", False), ("NVIDIA A100-SXM4-80GB", True), ("Radeon", False)],
)
def test_gpus_of_another_kind_are_told(name: str, is_told: bool) -> None:
    machine = load_profile("h100-dgx").machine
    text = printed(Job(rank=Job().rank.replace("H100", name)))
    found = read(text, Hints(machine=machine))
    assert (f"timed on '{name}', where the profile is of {machine.gpu}" in found.note) == is_told


@pytest.mark.parametrize(
    ("moved", "told"), [(4, "node-0 has 12, node-1 has 4"), (1, "node-0 has 15")]
)
def test_nodes_with_unlike_numbers_of_ranks_are_refused(moved: int, told: str) -> None:
    text = printed(Job(nodes=2))
    for rank in range(8, 16 - moved):
        line = next(one for one in text.splitlines() if f"Rank {rank:2} " in one)
        text = text.replace(line, line.replace("node-1", "node-0"))
    with pytest.raises(InputError, match=f"not the same number on each node .*{told}"):
        read(text)
    assert keys(read(text, Hints(nodes=2, per_node=8)))[0][1:3] == (2, 8)


@pytest.mark.parametrize("op", ["all_reduce_perf", "all_gather_perf", "broadcast_perf"])
@pytest.mark.parametrize(
    ("columns", "check", "checked", "rank"),
    [
        (
            ("type", "redop"),
            "error",
            "2e-07",
            "Rank {rank:2} Pid {pid} on node-{node} device 0 [0]",
        ),
        (("type",), "error", "0e+00", "Rank {rank:2} Pid {pid} on node-{node} device 0 [0x0a] A"),
        (("type", "redop", "root"), "error", "N/A", Job().rank),
        (("type", "redop", "root"), "#wrong", "N/A", Job().rank),
    ],
)
def test_columns_are_read_by_their_names(
    op: str, columns: tuple[str, ...], check: str, checked: str, rank: str
) -> None:
    job = Job(op, 2, 4, named=False, columns=columns, check=check, checked=checked, rank=rank)
    asked = Hints(op=OPS[op][0])
    if op == "all_reduce_perf" and "redop" not in columns:  # all versions name a reduction
        with pytest.raises(InputError, match=r"redop not given .* are not of all_reduce"):
            read(printed(job), asked)
        return
    modern = read(printed(job._replace(columns=MODERN, check=WRONG, checked="0")), asked)
    assert read(printed(job), asked) == modern


def test_the_first_version_printed_milliseconds() -> None:
    rank = "Rank {rank:2} on   node-{node} device {device:2} [0x06] Tesla P100"
    job = Job(
        named=False, columns=("type", "op"), check="res", checked="0e+00", rank=rank, rate=9.0
    )
    found = read(printed(job, first=("bytes", "N"), unit="ms"), Hints(op="all_reduce"))
    assert [row.median_us for row in found.rows] == pytest.approx(
        [in_place_us(9.0, size) for size in SIZES], rel=5e-3
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("2e-07", "0.25"), "line 17: results deviate by 0.25"),
        (lambda text: text.replace("values : 0 OK", "values : 3 FAILED"), "3 values out of bounds"),
        (lambda text: text.replace("float", "int32"), "deviate by 2e-07, of which 0 is rounding"),
        (lambda text: text.replace("  time  ", "  cputime  "), "run it without -C"),
        (lambda text: text[: text.rindex("2e-07")], "12 columns expected, got 11; truncated"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(change: Callable[[str], str], said: str) -> None:
    old = Job(columns=("type", "redop"), check="error", checked="2e-07")
    with pytest.raises(InputError, match=said):
        read(change(printed(old)))


def test_a_collective_without_timings_in_place_is_read() -> None:
    lines = printed(Job("all_gather_perf")).splitlines()
    rows = [" ".join([*line.split()[:9], *4 * ["N/A"]]) if line[:1] == " " else line
            for line in lines]  # fmt: skip
    assert read("\n".join(rows)) == read(printed(Job("all_gather_perf")))


MARKS: Final = (
    "[1,0]<stdout>:", "[0] ", "0: ", " 0: ", "[default0]:", "node-4.site: ",
    "Thu Mar  6 10:00:00 2025[1,0]<stdout>:", "[prterun-node-a-77@1,0]<stdout>: ",
    "(RayTrainWorker pid=123, ip=10.0.0.1) ", "\x1b[36m(RayTrainWorker pid=9)\x1b[0m ",
    "trainer-1  | ", "\x1b[33mtrainer-1  |\x1b[0m ", "trainer-1  | 2025-03-01T10:00:00.123456789Z ",
    "2025-03-01T10:00:00.123456789Z ", "2025-03-01 10:00:00,123 ", "[2025-03-01 10:00:00] ",
    "10:00:00.123 ", "[pod/trainer-0/main] ", "Mar  6 10:00:00 node-a trainer[77]: ",
    "2025-03-01T10:00:00.123456789Z [1,0]<stdout>: ", "[rank0]:", "rank 0: ", "[ 0] ",
    "[1,mpirank:0,algo-1]<stdout>:", "2025-03-01T10:00:00+01:00 stdout F ", "trainer-0 pytorch ",
    "2025-03-01 10:00:00,123 - INFO - ", "[INFO] ", "I0301 10:00:00.123456 77 run.py:12] ",
    "1740823200.123 ", "node-a: 10:00:00 ", "trainer.1.ab2@node-a    | ",
)  # fmt: skip


def marked(text: str, mark: str) -> str:
    return "".join(mark + line for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("mark", MARKS, ids=repr)
def test_marks_of_launchers_do_not_matter(mark: str) -> None:
    plain = printed(Job(nodes=2))
    assert read(marked(plain, mark)) == read(plain)


def test_lines_without_a_mark_are_kept() -> None:
    plain = printed(Job())
    lines = marked(plain, "[1,0]<stdout>:").splitlines()
    lines = [line.removeprefix("[1,0]<stdout>:") if number % 3 else line
             for number, line in enumerate(lines)]  # fmt: skip
    assert read("\n".join(lines)) == read(plain)


def interleaved(*texts: str) -> str:
    split: Sequence[list[str]] = [text.splitlines() for text in texts]
    return "\n".join(line for lines in zip(*split, strict=True) for line in lines)


def test_ranks_are_told_apart_by_their_marks() -> None:
    """Two jobs side by side, each with a mark of its own."""
    one, two = printed(Job()), printed(Job("all_gather_perf"))
    found = read(interleaved(marked(one, "a-1  | "), marked(two, "b-1  | ")))
    assert found.rows == read(one + two).rows


def mixed(*texts: str, blocks: int = 1) -> str:
    """Lines of several processes in one stream, ``blocks`` of each in turn."""
    left = [text.splitlines() for text in texts]
    lines = []
    while any(left):
        for one in left:
            lines += one[:blocks]
            del one[:blocks]
    return "\n".join(lines)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 15, 16])
@pytest.mark.parametrize("second", [Job(), Job("all_gather_perf"), Job(nodes=2), Job(per_node=4)])
def test_lines_of_several_runs_without_marks_are_refused(second: Job, blocks: int) -> None:
    with pytest.raises(InputError, match="the lines of several runs stand mixed in one table"):
        read(mixed(printed(Job(rate=50.0)), printed(second), blocks=blocks))


def test_mixed_sizes_are_refused_with_what_to_do() -> None:
    rows = printed(Job()).splitlines()
    first = next(number for number, row in enumerate(rows) if row.split()[0].isdigit())
    twice = [row for row in rows[first : first + 2] for _ in range(2)]
    with pytest.raises(InputError, match=r"lines \d+ to \d+: the lines of several"):
        read("\n".join([*rows[:first], *twice, *rows[first + 2 :]]))


@pytest.mark.parametrize("cycles", [2, 3])
@pytest.mark.parametrize("more", [0, 1])
def test_a_sweep_may_be_repeated_and_break_off(cycles: int, more: int) -> None:
    """nccl-tests -N prints its sizes again and again; a job may end in the midst."""
    rows = printed(Job()).splitlines()
    first = next(number for number, row in enumerate(rows) if row.split()[0].isdigit())
    sweep = rows[first : first + 2]
    found = read("\n".join([*rows[:first], *cycles * sweep, *sweep[:more], *rows[first + 2 :]]))
    assert [row.samples for row in found.rows] == [cycles + more, cycles]


def test_a_mark_that_is_not_known_is_named() -> None:
    with pytest.raises(InputError, match="Lines begin with '<<job 7>>', a mark of no launcher"):
        read(marked(printed(Job()), "<<job 7>> "))


def test_a_transcribed_table_of_two_groups_is_refused() -> None:
    table = "# op: all_reduce ranks={} nodes=1\nsize_bytes,time_us_outofplace,time_us_inplace\n"
    rows = "1024,30,30\n"
    text = table.format(8) + rows + "# op: all_gather ranks=8 nodes=1\n2048,30,30\n"
    with pytest.raises(InputError, match="tables of 2 collectives or groups"):
        read_table(text.encode(), "nccl-tests-csv")


@pytest.mark.parametrize(
    ("table", "importer"),
    [
        ("m,n,k,us\n4096,12288,4096,650\n4096,12288,4096,900\n", "gemm-csv"),
        ("num_workers,bytes,us\n8,1048576,650\n8,1048576,900\n", "eager-all-reduce-csv"),
        (
            "src,batch_size,isl,num_heads,head_dim,us\n"
            "sglang-0.5.9,2,4096,32,128,650\nsglang-0.5.9,2,4096,32,128,900\n",
            "attention-csv",
        ),
        (
            "op,num_tokens,num_tensor_parallel_workers,n_embd,n_expanded_embd,us\n"
            "add,4096,8,8192,28672,650\nadd,4096,8,8192,28672,900\n",
            "pointwise-csv",
        ),
        ("payload_bytes,algbw_GBps\n65000000,100\n65000000,72.2222\n", "busbw-csv"),
    ],
)
def test_rows_that_contradict_each_other_are_told(table: str, importer: str) -> None:
    found = read_table(table.encode(), importer)
    (row,) = found.rows
    assert row.median_us == pytest.approx(900)
    assert [text for text in found.warnings if "timed more than once" in text] == [
        "One signature was timed more than once, with times that differ by more than 5%: the later "
        "one is kept, so line 3 with 900 us, not line 2 with 650 us."
    ]


def test_the_median_of_three_and_more_is_kept() -> None:
    table = "m,n,k,us\n" + "".join(f"4096,12288,4096,{us}\n" for us in (650, 900, 700))
    found = read_table(table.encode(), "gemm-csv")
    assert [(row.median_us, row.samples) for row in found.rows] == [(700.0, 3)]
    assert found.warnings[-1].endswith(
        "their median is kept, so 700 us of 3 timings from 650 us (line 2) to 900 us (line 3)."
    )
