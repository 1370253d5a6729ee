"""Tables of nccl-tests as people paste them: cut columns, roots, like collectives, and two runs."""

from __future__ import annotations

import json

import pytest
from judge_options import judge_by_bounds_alone
from nccl_samples import DEVICES, HEADER, row, sign

from topoplan.synth.extras.judge.file_contents import FileContents
from topoplan.synth.extras.judge.judging import Judge
from topoplan.synth.extras.judge.machine import Machines
from topoplan.synth.extras.judge.readers.detect import read_text
from topoplan.synth.extras.judge.readers.launchers import count_hosts, count_processes
from topoplan.synth.extras.judge.report import write_text
from topoplan.topo.errors import InputError

ROOTED = row(8053063680, 22.0, 11.0, "none", "0")
LAST = "8589934592 1073741824 float none 0 386991 22.20 11.10 0 369719 23.23 11.62 0"


def read(text: str, where: str = "file", collective: str | None = None) -> FileContents:
    return read_text(text, where, collective)


def rates(contents: FileContents) -> list[tuple[int, str, float]]:
    return [(m.size_bytes, m.how, m.algbw_GBps) for m in contents.measurements]


@pytest.mark.parametrize("header", ["", HEADER])
@pytest.mark.parametrize("left", range(5, 14))
def test_what_is_left_of_a_row_is_read_with_its_root(header: str, left: int) -> None:
    contents = read(header + ROOTED + " ".join(LAST.split()[:left]) + "\n")
    last = [(how, algbw) for size, how, algbw in rates(contents) if size == 1 << 33]
    expected = [("out-of-place", 22.2)] * (left > 7) + [("in-place", 23.23)] * (left > 11)
    assert last == expected
    assert {m.collective for m in contents.measurements} == {"gather or scatter"}
    assert bool(contents.notes) == (left < 8 or left in (10, 11))


@pytest.mark.parametrize("left", range(1, 6))
def test_a_number_that_is_cut_is_not_believed(left: int) -> None:
    whole = LAST.removesuffix(" 0")
    contents = read(HEADER + ROOTED + whole[: -5 - left] + "\n")
    assert all(algbw < 23 for *_, algbw in rates(contents)) and contents.notes
    cut = read(HEADER + ROOTED + whole[:-3] + "\n")
    assert (1 << 33, "in-place", 23.23) not in rates(cut)


def test_a_row_whose_columns_contradict_each_other_is_left_out() -> None:
    odd = "8589934592 2147483648 float sum -1 38699 22.20 38.85 0 386991 22.20 38.85 0\n"
    contents = read(HEADER + odd)
    assert rates(contents) == [(1 << 33, "in-place", 22.2)]
    assert contents.notes == ("line 4: out of place the size over the time is not algbw; left out",)


def test_tables_in_markdown_are_read() -> None:
    head = HEADER.splitlines()[1].lstrip("# ").split()
    cells = LAST.split()
    lines = [f"|{'|'.join(words)}|\n" for words in (head, ["---"] * len(head), cells)]
    for text in ("".join(lines), "".join(lines).replace("|", " | "), lines[0] * 2 + lines[2]):
        assert [algbw for *_, algbw in rates(read(text))] == [22.2, 23.23]


UNCHECKED = row(1 << 30, 8, 7, "none", errors=("N/A", "N/A"))


@pytest.mark.parametrize(
    ("line", "where", "asked", "expected"),
    [
        (UNCHECKED, "file", None, "allgather or alltoall"),
        (UNCHECKED, "logs/14-nccl_alltoall.log", None, "alltoall"),
        (UNCHECKED, "all_to_all.txt", None, "alltoall"),
        (UNCHECKED, "all-gather.out", None, "allgather"),
        (UNCHECKED, "gather.out", None, "allgather or alltoall"),
        (UNCHECKED, "file", "alltoall", "alltoall"),
        (row(1 << 30, 8, 7, "none"), "file", None, "allgather"),
        (row(1 << 30, 8, 7, "none", errors=("0", "N/A")), "file", None, "alltoall"),
        (row(1 << 30, 8, 7, "none", "0"), "file", None, "gather or scatter"),
        (row(1 << 30, 8, 7, "none", "0"), "file", "scatter", "scatter"),
        (row(1 << 30, 8, 7, "none", "3"), "scatter_perf.txt", None, "scatter"),
        (row(1 << 30, 80, 78.75, "none", "0"), "file", None, "gather or scatter"),
        (row(1 << 30, 8, 8, "none", "0"), "gather.txt", None, "broadcast"),
    ],
)
def test_like_collectives_are_told_apart_or_both_named(
    line: str, where: str, asked: str | None, expected: str
) -> None:
    contents = read(HEADER + line, where, asked)
    assert {m.collective for m in contents.measurements} == {expected}


def test_nothing_is_compared_where_the_collective_is_not_known() -> None:
    contents = read(HEADER + UNCHECKED)
    verdict = Judge(Machines("dgx1", [])).judge(contents)
    assert verdict.verdict.name == "undecided-allgather-alltoall" and verdict.verdict.advice
    assert not verdict.shares
    assert "allgather or alltoall on 8 ranks" in write_text([verdict], None)
    with pytest.raises(InputError, match="a table of allgather or alltoall, and allreduce"):
        read(HEADER + UNCHECKED, collective="allreduce")


def test_out_of_place_and_in_place_are_told_apart() -> None:
    text = HEADER + row(1 << 31, 34.19, 34.19)
    text += "4294967296 1073741824 float sum -1 120810 35.55 35.55 0 249100 17.24 17.24 0\n"
    shown = write_text([Judge(Machines("switch:2@60", [])).judge(read(text))], None)
    assert "allreduce in place falls from 34.19 GB/s at 2 GiB to 17.24 GB/s at 4 GiB" in shown
    table = [line.split() for line in shown.splitlines() if " GiB " in line and "place" in line]
    listed = [(row[0], row[2], row[-1]) for row in table if row[1] == "GiB"]
    assert ("4", "17.24", "in-place") in listed and "out-of-place  <- peak" in shown


def start(*ranks: int | None) -> str:
    return "# nThread 1 nGpus 1 minBytes 8 maxBytes 8\n" + "".join(
        "#  ...\n" if rank is None else DEVICES.format(rank, 16 + rank) for rank in ranks
    )


def test_two_runs_in_one_file_are_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_by_bounds_alone(monkeypatch)
    first, second = row(1 << 30, 200, 375), row(1 << 30, 100, 187.5)
    text = start(0, 1, None, 15) + HEADER + first + start(0, None, 15) + HEADER + second
    contents = read(text)
    assert [(m.ranks, m.run, m.algbw_GBps) for m in contents.measurements[::2]] == [
        (16, 1, 200),
        (16, 2, 100),
    ]
    assert not contents.findings
    verdict = Judge(Machines("dgx-a100:2", [])).judge(contents)
    assert [m.title for m in verdict.measured] == ["allreduce, run 1,", "allreduce, run 2,"]
    # Sizes that go on are one run; other numbers of ranks are other tables anyway.
    (one,) = {m.run for m in read(HEADER + first + HEADER + row(1 << 31, 99, 185.6)).measurements}
    assert one == 0


def test_dots_stand_for_what_was_left_out() -> None:
    # Dots below a header are rows, so what follows is another run, not a job beside it.
    text = start(0, 1, None, 7) + HEADER + "...\n" + start(0, None, 7) + HEADER
    contents = read(text + row(1 << 30, 20, 35))
    assert not contents.findings and {m.ranks for m in contents.measurements} == {8}
    # A list that ends in dots does not tell how many there were.
    contents = read(start(0, 1, None) + HEADER + row(1 << 30, 20, 20, "sum", "0"))
    assert {m.ranks for m in contents.measurements} == {0}


TWICE = "# size count type redop time algbw busbw error time algbw busbw error\n"


def out_of_place(size: int, algbw: float) -> str:
    """Return a table of an allreduce of four ranks with one row, of which one half is measured."""
    half = f"{size / algbw * 1e-3:9.2f} {algbw:7.2f} {1.5 * algbw:7.2f}    N/A"
    row = f"{size:12d}  {size // 4:12d}     float     sum  {half}\n"
    return TWICE + row + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 45\n#\n"


def test_runs_of_rows_of_one_half_follow_each_other() -> None:
    sizes = [1 << 20, 1 << 21, 1 << 22]
    text = "".join(start(0, 1, 2, 3) + out_of_place(size, 30.0) for size in sizes)
    contents = read(text)
    assert not contents.findings and not contents.notes
    assert [(m.size_bytes, m.ranks, m.run) for m in contents.measurements] == [
        (size, 4, 0) for size in sizes
    ]
    # A command between the runs is that of the next one.
    launch = "$ mpirun -np {} ./build/{}_perf -b 4M -e 4M\n"
    text = launch.format(4, "all_reduce") + start(0, 1, 2, 3) + out_of_place(1 << 22, 30.0)
    text += launch.format(8, "reduce_scatter") + HEADER + row(1 << 22, 40, 35)
    found = {(m.collective, m.ranks) for m in read(text).measurements}
    assert found == {("allreduce", 4), ("reduce-scatter", 8)}


def test_a_run_that_was_given_up_is_no_job_beside_the_next() -> None:
    table = HEADER + row(1 << 30, 20, 30)
    listed = start(0, 1, 2, 3)
    for before, after in (
        (listed.replace("minBytes 8 ", "minBytes 4 "), listed),
        (listed, "$ ./build/all_reduce_perf -b 8 -g 4\n" + listed),
    ):
        contents = read(before + after + table)
        assert not contents.findings and {m.ranks for m in contents.measurements} == {4}
    # The same options again, before any row, are those of a job beside it.
    for text in (listed * 2, listed + "# Collective test starting: all_reduce_perf\n" + listed):
        assert [f.name for f in read(text + table).findings] == ["separate-jobs"]


def test_a_job_that_is_listed_amid_another_s_broken_row_runs_beside_it() -> None:
    broken = (
        "     1048576        262144     float     sum      -1node07:1:2 [0] NCCL INFO Using x\n"
    )
    text = start(0, 1, 2, 3) + HEADER + broken + start(0, 1, 2, 3)
    assert [f.name for f in read(text + row(1 << 30, 20, 30)).findings] == ["separate-jobs"]


def slow(count: int, redop: str, root: str = "-1", size: int = 1 << 12) -> str:
    """Return a row of floats so slow that its rates say nothing of the collective."""
    half = f"{size / 0.25 * 1e-3:9.2f} {0.25:7.2f} {0.22:7.2f}    N/A"
    return f"{size:12d}  {count:12d}     float  {redop:>6}  {root:>6}  {half} {half}\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (slow(1 << 10, "sum"), "allreduce"),
        (slow(1 << 9, "sum"), "reduce-scatter"),
        (slow(1 << 6, "sum"), "reduce-scatter"),
        (slow(1 << 9, "sum", "0"), "reduce"),
        (slow(1 << 7, "none"), "allgather or alltoall"),
        (slow(1 << 10, "none", "0"), "broadcast"),
        (slow(1 << 7, "none", "0"), "gather or scatter"),
        (slow(1 << 10, "sum").replace("float", "half"), "reduce-scatter"),
        (slow(1 << 12, "sum").replace("float", "fp8_e4m3"), "allreduce"),
        # Of 128 ranks the ratio of rates is close to that of two ranks that add up.
        (row(1 << 30, 80, 79.38).replace(str(1 << 28), str(1 << 21)), "reduce-scatter"),
        (row(1 << 30, 80, 80), "allreduce"),
        # The name of a test may be that of an earlier table.
        ("$ ./all_reduce_perf\n" + slow(1 << 7, "sum"), "reduce-scatter"),
        # A number of elements that does not make the size says nothing.
        (slow(1000, "sum"), "allreduce"),
    ],
)
def test_the_elements_of_a_row_tell_its_collective(line: str, expected: str) -> None:
    assert {m.collective for m in read(HEADER + line).measurements} == {expected}


def call(name: str) -> str:
    return sign(0, f"{name}: opCount 1 sendbuff 0x7f00 count 1024 datatype 7 op 0 root 0 comm 0x1")


def test_what_the_library_says_is_called_tells_the_collective() -> None:
    for calls, expected in (
        (call("AllGather"), "allgather"),
        (call("AllGather") + call("AllReduce"), "allgather or alltoall"),
        (call("AllReduce"), "allgather or alltoall"),
        (call("Send"), "allgather or alltoall"),
    ):
        contents = read(HEADER + calls + slow(1 << 7, "none"))
        assert {m.collective for m in contents.measurements} == {expected}
    # Calls of one run say nothing of the next.
    text = HEADER + call("AllGather") + slow(1 << 7, "none") + HEADER + slow(1 << 6, "none")
    named = [m.collective for m in read(text).measurements]
    assert named == ["allgather"] * 2 + ["allgather or alltoall"] * 2


@pytest.mark.parametrize("listed", ["", start(0, 1, 2, 3)])
def test_a_message_on_the_operation_of_a_row_is_cut_off(listed: str) -> None:
    half = f"{1 << 12:12d}  {1 << 10:12d}     float     sum"
    rest = "    16.4    0.25    0.37  2e-07\n"
    text = listed + TWICE + half + call("AllReduce") + rest
    (measured,) = read(text).measurements
    assert (measured.collective, measured.algbw_GBps) == ("allreduce", 0.25)


def test_a_row_that_lost_its_operation_is_named_by_the_text_or_left_out() -> None:
    text = HEADER + slow(1 << 10, "") + row(1 << 30, 20, 35, root="0")
    (note,) = read(text).notes
    assert note == (
        "line 4: rows of a test that nothing names, which has no bound here, are left out"
    )
    assert {m.collective for m in read(text, "all_reduce.txt").measurements} == {
        "allreduce",
        "reduce",
    }


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("mpirun -np 4 -H a,b ", 4),
        ("$ mpiexec -n 4 --ppn 2 ", 4),
        ("srun -n4 ", 4),
        ("srun --ntasks 16 --ntasks-per-node=8 ", 16),
        ("srun --nodes=3 --ntasks-per-node=8 --cpus-per-task=8 -- ", 24),
        ("srun -N2 --ntasks-per-node 4 ", 8),
        ("salloc -N 2 mpirun -N 8 ", 16),
        ("mpirun -H a:8,b:8 ", 16),
        ("mpirun --host a,b,c -npernode 4 ", 12),
        ("mpirun --host a,b --map-by ppr:8:node:PE=2 ", 16),
        ("mpirun --map-by ppr:8:node -np 32 ", 32),
        ("torchrun --nnodes=2 --nproc-per-node=8 ", 16),
        ("python -m torch.distributed.run --nproc_per_node=4 ", 4),
        # What is a variable, a range, or half of what is needed says nothing.
        ("mpirun -np $GPUS ", 0),
        ("mpirun -N 8 --hostfile hosts ", 0),
        ("mpirun -H a,b numactl -N 1 ", 0),
        ("srun --nodes=2-4 --ntasks-per-node=8 ", 0),
        ("torchrun --nnodes=1:4 --nproc-per-node=8 ", 0),
        ("srun -N 4 ", 0),
        ("./build/", 0),
    ],
)
def test_a_launcher_s_command_line_tells_the_number_of_processes(
    launcher: str, expected: int
) -> None:
    assert count_processes(launcher) == expected


def test_a_batch_script_tells_what_its_command_line_leaves_open() -> None:
    script = " --nodes=4 --ntasks-per-node=8"
    assert count_processes("srun ", script) == count_processes("mpirun ", script) == 32
    assert count_processes("srun -N 2 ", script) == 16
    assert count_processes("srun -n 3 ", script) == 3
    assert count_processes("./build/", script) == 0


BATCH = "#!/bin/bash\n#SBATCH -N 2 # two of them\n#SBATCH --ntasks-per-node=8\n"
CALLED = call("AllReduce").replace(" comm 0x1", " comm 0x1 [nranks=24] stream 0x2")
SLOW = slow(1 << 10, "sum")


@pytest.mark.parametrize(
    ("before", "rows", "ranks"),
    [
        ("srun --nodes=4 --ntasks-per-node=8 \\\n  -- all_reduce_perf -b 8 -g 1\n", SLOW, 32),
        ("mpirun \\\n -np 3 \\\n ./all_reduce_perf -b 8 \\\n -g 2\n", SLOW, 6),
        ("./all_reduce_perf -b 8 -t 2 -g 4\n", SLOW, 8),
        ("srun ./all_reduce_perf -b 8 -g 4\n", SLOW, 0),
        ("./all_reduce_perf\n", SLOW, 0),
        (BATCH + "srun ./all_reduce_perf\n", SLOW, 16),
        (BATCH + "#!/bin/sh\nsrun ./all_reduce_perf\n", SLOW, 0),
        (CALLED, SLOW, 24),
        # Each rank has one part of a size, however low the rates are.
        ("", slow(1 << 5, "none"), 32),
        ("", slow(1 << 7, "sum"), 8),
        ("", slow(1 << 7, "none", "0"), 8),
        (start(0, 1, None, 3), slow(1 << 7, "none"), 8),
        ("", slow(1 << 7, "none") + slow(1 << 6, "none"), 0),
        # Rates that do not allow it say how many there were.
        ("", row(1 << 30, 8, 7, "none").replace(str(1 << 28), str(1 << 27)), 8),
    ],
)
def test_the_number_of_ranks_is_what_the_command_or_the_rows_state(
    before: str, rows: str, ranks: int
) -> None:
    assert {m.ranks for m in read(before + HEADER + rows).measurements} == {ranks}


def test_the_number_of_ranks_is_that_of_the_communicator_that_ends() -> None:
    """At 1840 ranks busbw / algbw, with two decimals, allows many numbers."""
    ended = sign(0, "comm 0x55 rank 0 nranks 1840 cudaDev 0 busId 19000 - Destroy COMPLETE")
    contents = read(HEADER + row(1 << 34, 188.24, 376.28) + ended)
    assert {m.ranks for m in contents.measurements} == {1840}


def test_the_name_of_a_test_amid_its_rows_begins_no_run() -> None:
    rows = row(1 << 29, 20, 20, "sum", "0") + "so far reduce_perf is fine\n"
    rows += row(1 << 30, 20, 20, "sum", "0")
    assert {m.ranks for m in read(start(0, 1, 2) + HEADER + rows).measurements} == {3}


@pytest.mark.parametrize(
    "tag",
    [
        "[1,0]<stdout>:",
        "Thu Jul  4 09:05:01 2030<stdout>:",
        "[prterun-a-7@1,0]<stdout>: ",
        "[0]",
        "[0] ",
    ],
)
def test_mpiruns_tags_within_rows_are_no_part_of_them(tag: str) -> None:
    line = row(1 << 30, 46, 69)
    at, middle = line.index("-1") + 2, line.index("     0") + 6
    cut = f"{line[:at]}{tag}{line[at:middle]}{tag}{line[middle:]}"
    text = "".join(tag + line for line in (HEADER + cut).splitlines(True))
    assert rates(read(text)) == rates(read(HEADER + line)) and not read(text).notes


def test_the_devices_of_a_run_without_rows_are_not_those_of_another_run() -> None:
    listed = [DEVICES.format(rank, 16 + rank) for rank in range(4)]
    begun = "# nThread 1 nGpus {} minBytes 8 maxBytes 8\n"
    measured = begun.format(2) + "".join(listed[:2]) + HEADER + row(1 << 30, 46, 46)
    given_up = begun.format(4) + "".join(listed)
    assert sorted(read(measured + given_up).locations) == [0, 1]
    assert sorted(read(given_up + measured).locations) == [0, 1]


def test_hosts_are_not_counted_in_a_list_with_gaps() -> None:
    listed = "".join(DEVICES.format(rank, 16 + rank) for rank in (0, 1, 62, 63))
    text = listed.replace("node07 device 6", "node14 device 6") + HEADER + row(1 << 30, 46, 90.56)
    verdict = Judge(Machines("ring:8@48", [])).judge(read(text))
    assert "64 ranks, and ring:8" in verdict.measured[0].why_not


@pytest.mark.parametrize("size", ["1073741824", "1_073_741_824", "1,073,741,824"])
def test_rows_without_their_type_are_read_by_the_header(size: str) -> None:
    contents = read(
        f"size  time  algbw  busbw\n(B)  (us)  (GB/s)\n {size}  8203.9  130.88  229.04\n"
    )
    assert rates(contents) == [(1 << 30, "out-of-place", 130.88)]
    assert {(m.collective, m.ranks) for m in contents.measurements} == {("allreduce", 8)}


def test_rows_of_one_half_are_those_of_the_half_that_comes_first() -> None:
    header = (
        "#                     in-place             out-of-place\n"
        "# size count time algbw busbw #wrong time algbw busbw #wrong\n"
    )
    one = "1073741824 268435456 8203.9 130.88 229.04 0"
    assert rates(read(header + one)) == [(1 << 30, "in-place", 130.88)]
    both = rates(read(f"{header}{one} 8303.9 129.31 226.29 0\n"))
    assert both == [(1 << 30, "in-place", 130.88), (1 << 30, "out-of-place", 129.31)]


def test_each_run_is_on_the_gpus_that_it_saw() -> None:
    """The GPUs that a run sees are numbered anew, and those of another run are not its own."""
    run = "export CUDA_VISIBLE_DEVICES={}\n./all_reduce_perf -b 1G -e 1G -g 2\n{}" + HEADER
    listed = "".join(DEVICES.format(i, 0) for i in range(2)).replace("A40", "Graphics Device")
    runs = (("0,1", "", 12), ("'6,7,0'", "", 13), ("5,3,1", listed, 14))
    text = "".join(run.format(*two) + row(1 << 30, rate, rate) for *two, rate in runs)
    measured = Judge(Machines("ring:8@48", [])).judge(read(text)).measured
    assert [m.rank_map.in_use for m in measured if m.rank_map] == [(0, 1), (6, 7), (3, 5)]


def test_rows_below_the_end_of_a_test_are_another_run_s() -> None:
    runs = [row(1 << 30, rate, rate) + "# Avg bus bandwidth    : 9.1\n" for rate in (46, 23)]
    measured = read(HEADER + "".join(runs)).measurements
    assert {(m.run, m.algbw_GBps) for m in measured} == {(1, 46), (2, 23)}


def test_what_a_test_s_command_sets_for_the_library_is_a_finding() -> None:
    rows = HEADER + row(1 << 30, 46, 46)
    command = (
        "mpirun -np 2 -x NCCL_P2P_DISABLE=1 -x NCCL_IB_DISABLE=0 \\\n ./all_reduce_perf -g 1\n"
    )
    (found,) = read(command + rows).findings
    assert found.name == "variable-nccl_p2p_disable" and found.line == 2
    assert found.message == "NCCL_P2P_DISABLE is set to 1"
    (found,) = read(rows + command).findings
    assert found.message.endswith("in a command below the results, which may be of another run")
    prose = "With NCCL_P2P_DISABLE=1 the all_reduce_perf test ends.\n"
    assert not read(prose + rows).findings


def test_a_list_of_fewer_devices_than_a_process_has_is_no_number_of_ranks() -> None:
    begun = "# nThread 1 nGpus 8 minBytes 8 maxBytes 8\n" + DEVICES.format(0, 16)
    cut = begun + DEVICES.format(1, 17) + HEADER + row(8, 0.001, 0.001)
    assert {m.ranks for m in read(cut).measurements} == {8}


def test_ranks_of_two_hosts_are_not_put_on_one() -> None:
    near, far = DEVICES.format(0, 0), DEVICES.format(7, 0).replace("node07", "node14")
    text = near + "...\n" + far + HEADER + row(1 << 30, 46, 80.5)
    for machine, says in (
        ("dgx-a100:2", "ranks on 2 hosts, and nothing says which GPUs"),
        ("dgx-a100", "ranks on 2 hosts (node07, node14), and dgx-a100 has one"),
    ):
        (measured,) = Judge(Machines(machine, [])).judge(read(text)).measured
        assert says in measured.why_not


def test_an_output_on_one_line_of_json_is_read_once() -> None:
    table = HEADER + row(1 << 29, 45, 67.5) + row(1 << 30, 46, 69)
    result = {"rc": 0, "stdout": table, "stdout_lines": table.splitlines()}
    for text in (
        f"changed: [node07] => {json.dumps(result)}\n",
        f"ok: [node07] => {json.dumps({'done': result}, indent=4)}\n",
        json.dumps(result),
        json.dumps({"done.stdout": table}),
    ):
        assert read(text).measurements == read(table).measurements


def test_a_table_that_is_printed_twice_is_one_run() -> None:
    table = HEADER + row(1 << 29, 45, 67.5) + row(1 << 30, 46, 69)
    assert read(table + "$ cat /tmp/table.txt\n" + table).measurements == read(table).measurements


def test_masked_numbers_are_no_cut() -> None:
    masked = "268435456 4194304 float none -1 XXXXX XXX.XX XXX.XX N/A XXXXX XXX.XX XXX.XX 0\n"
    with pytest.raises(InputError, match="XXXXX stands in place of numbers out of place"):
        read(HEADER + masked)


def test_lines_left_out_are_grouped_by_reason() -> None:
    cut = "".join(row(1 << size, 46, 69)[:50] + "\n" for size in range(20, 25))
    odd = row(1 << 28, 46, 69).replace("46.00", "15.00")
    (first, *others) = read(HEADER + cut + odd + row(1 << 30, 46, 69)).notes
    at = HEADER.count("\n")
    named = ", ".join(str(at + number) for number in (1, 2, 3))
    assert first.startswith(f"lines {named} and 2 more: the row is cut")
    assert others and all(note.startswith(f"line {at + 6}: ") for note in others)


def test_a_table_that_adds_but_checks_out_of_place_only_is_of_sendrecv() -> None:
    rows = row(1 << 20, 8, 8, errors=("0", "N/A")) + row(1 << 21, 9, 9, errors=("0", "N/A"))
    with pytest.raises(InputError, match="a table of sendrecv, which has no bound"):
        read(DEVICES.format(0, 16) + DEVICES.format(1, 17) + HEADER + rows)
    # What is not checked at all tells nothing, and a name decides.
    unchecked = rows.replace(" 0  ", " N/A  ")
    assert unchecked.count("N/A") == 4
    named = "# Collective test starting: all_reduce_perf\n" + HEADER + rows
    for text in (HEADER + unchecked, named):
        assert {m.collective for m in read(text).measurements} == {"allreduce"}


def test_rows_of_several_runs_without_headers_are_told_apart_by_their_sizes() -> None:
    text = HEADER
    for ranks, algbw in ((8, 180.0), (16, 185.0), (64, 175.0)):
        text += f"=== {ranks} ranks ===\n"
        for exponent in (30, 31):
            text += row(1 << exponent, algbw, algbw * 2 * (ranks - 1) / ranks)
    found = read(text.replace(HEADER, "all_reduce_perf -b 1G -e 2G\n"))
    assert sorted({m.ranks for m in found.measurements}) == [8, 16, 64]
    assert len(found.measurements) == 12
    # The rows of one run in another order are its own.
    turned = read(HEADER + row(1 << 31, 180.0, 315.0) + row(1 << 30, 180.0, 315.0))
    assert {(m.ranks, m.run) for m in turned.measurements} == {(8, 0)}


def test_a_run_of_one_rank_beside_others_is_left_out() -> None:
    one = DEVICES.format(0, 16)
    alone = one + HEADER + row(1 << 30, 267.4, 267.4, "sum", "0")
    two = one + DEVICES.format(1, 17) + HEADER + row(1 << 30, 4.0, 4.0)
    found = read(two + alone)
    assert {m.ranks for m in found.measurements} == {2} and not found.findings
    assert any("a run of one rank" in note for note in found.notes)
    (finding,) = read("# reduce_perf\n" + alone).findings
    assert finding.name == "single-rank" and finding.message.startswith("one rank is listed")


@pytest.mark.parametrize(
    "said",
    [
        "mpirun detected that one or more processes exited with non-zero status, thus causing\n",
        "srun: error: node7: task 3: Exited with exit code 1\n",
        "Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n",
    ],
)
def test_a_table_of_a_job_that_failed_is_not_called_cut(said: str) -> None:
    with pytest.raises(InputError, match=r"the launcher says that a process failed \(line 5\)"):
        read(HEADER + "-----\n" + said)
    with pytest.raises(InputError, match="it is cut, or the test had not begun"):
        read(HEADER + "-----\n")


def test_a_table_without_rows_is_refused_by_the_error_below_it() -> None:
    error = "[n1:17] Signal: Segmentation fault (11)\n"
    wrong = "# Out of bounds values : 0 OK\n"
    with pytest.raises(InputError, match=r"measured; line 6 below it says '\[n1:17\] Signal: Seg"):
        read(HEADER + wrong + "-----\n" + error + "srun: error: n1: task 3: Exited with code 1\n")
    with pytest.raises(InputError, match="it is cut, or the test had not begun"):
        read(error + HEADER)
    with pytest.raises(InputError, match=r"the launcher says that a process failed \(line 5\)"):
        read(
            HEADER + "-----\nPrimary job  terminated normally, but 1 process returned\n"
            "a non-zero exit code. Per user-direction, the job has been aborted.\n"
        )
    with pytest.raises(InputError, match="it is cut, or the test had not begun"):
        read(HEADER + "warning: Cuda API error detected: cudaDeviceEnablePeerAccess (0x2c0)\n")
    harmless = "n1:7:7 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
    with pytest.raises(InputError, match="it is cut, or the test had not begun"):
        read(HEADER + harmless + "n1:7:7 [0] NCCL INFO NET/Socket : Using eth0\n")
    with pytest.raises(InputError, match="it is cut, or the test had not begun"):
        read(start(0, 1) + TWICE.replace("#", ""))
    with pytest.raises(InputError, match="without a size that it measured"):
        read(HEADER + wrong + "# Avg bus bandwidth    : 0 \n")
    with pytest.raises(InputError, match="its rows are left out"):
        read(HEADER + wrong + "# Avg bus bandwidth    : 12.5 \n")


def test_the_start_of_a_further_run_is_no_odd_row() -> None:
    started = "# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) iters: 20\n"
    with pytest.raises(InputError, match="it is cut, or the test had not begun"):
        read(started + HEADER + "$ ./all_reduce_perf -g 2\n" + started)
    with pytest.raises(InputError, match="line 5: a row in another form"):
        read(started + HEADER + "8 9.1 0.00 0.00\n")


@pytest.mark.parametrize(
    "prose",
    [
        "Measured on 2 nodes with 8 H100 each:",
        "two DGX nodes, each with 8 GPUs",
        "16 GPUs across 2 servers",
        "2 nodes (8x H100 80GB per node)",
    ],
)
def test_hosts_that_prose_states_count_where_the_ranks_agree(prose: str) -> None:
    found = read(f"{prose}\n" + HEADER + row(1 << 30, 160.0, 300.0))
    hosts = {m.locations[rank].host for m in found.measurements for rank in range(8)}
    others = {m.locations[rank].host for m in found.measurements for rank in range(8, 16)}
    assert (hosts, others) == ({"host 1"}, {"host 2"}) and not found.notes
    eight = read(f"{prose}\n" + HEADER + row(1 << 30, 160.0, 280.0))
    assert not any(m.locations for m in eight.measurements)
    assert any("2 hosts of 8 GPUs each, and a table has 8 ranks" in note for note in eight.notes)
    far = read(f"{prose}\n" + "-\n" * 60 + HEADER + row(1 << 30, 160.0, 300.0))
    process = "# nThread 1 nGpus 8 minBytes 8 maxBytes 128 step: 2(factor)\n"
    one = read(f"{prose}\n" + process + HEADER + row(1 << 30, 160.0, 280.0))
    assert not any(m.locations for m in (*far.measurements, *one.measurements))
    assert not far.notes and not one.notes


@pytest.mark.parametrize(
    "prose",
    ["2 nodes with 2 400G NICs each", "2 nodes with 64 cores each", "1 node with 8 H100"],
)
def test_what_prose_says_of_other_parts_is_no_number_of_gpus(prose: str) -> None:
    found = read(f"{prose}\n" + HEADER + row(1 << 30, 160.0, 300.0))
    assert not found.notes and not any(m.locations for m in found.measurements)


def test_a_version_in_a_list_of_what_people_use_is_no_log() -> None:
    for version in ("NCCL version: 2.19.3-cuda12.2_1.0-1", "NCCL version 2.10.X"):
        with pytest.raises(InputError, match="a text that mentions NCCL, without a result"):
            read(f"it hangs\n{version}\nIs that known?\n")
    with pytest.raises(InputError, match="an NCCL log without the lines"):
        read("it hangs\nNCCL version 2.19.3+cuda12.2\n")


def test_rates_of_pairs_beside_a_table_are_noted() -> None:
    pairs = (
        "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1\n"
        "     0 916.92  24.78\n     1  24.85 920.12\n\n"
    )
    notes = read(pairs + HEADER + row(1 << 30, 4.0, 7.0)).notes
    assert any("also has rates between pairs of 2 GPUs" in note for note in notes)
    assert not read(HEADER + row(1 << 30, 4.0, 7.0)).notes


def test_a_table_beside_one_of_osu_without_a_bound_is_read() -> None:
    osu = (
        "# OSU MPI Bi-Directional Bandwidth Test v5.9\n# Size      Bandwidth (MB/s)\n1      8.13\n"
    )
    found = read(osu + "\n" + HEADER + row(1 << 30, 24.72, 43.26))
    assert {m.ranks for m in found.measurements} == {8}
    assert any("line 1: OSU's Bi-Directional" in note for note in found.notes)
    with pytest.raises(InputError, match="line 1: OSU's Bi-Directional"):
        read(osu)


@pytest.mark.parametrize(
    ("launcher", "hosts"),
    [
        ("srun -N 2 --ntasks-per-node=4 ", 2),
        ("srun --nodes=4 -n 32 ", 4),
        ("mpirun -np 8 -H a:4,b:4 ", 2),
        ("mpirun -np 8 -H a:8,b:8 ", 1),
        ("mpirun -H a:8,b:8 ", 2),
        ("mpirun -np 2 -H a,b ", 2),
        ("mpirun -np 16 --npernode 8 ", 2),
        ("mpirun -np 8 ", 0),
        ("torchrun --nproc-per-node 8 ", 0),
    ],
)
def test_hosts_of_a_command_line(launcher: str, hosts: int) -> None:
    assert count_hosts(launcher) == hosts
    assert count_hosts("srun ", "--nodes=2 --ntasks-per-node=8") == 2


def test_a_table_whose_command_names_hosts_is_not_on_one() -> None:
    command = "srun -N 2 --ntasks-per-node=4 ./all_reduce_perf -b 1G -g 1\n"
    found = read(command + HEADER + row(1 << 30, 160.0, 280.0))
    hosts = [m.locations[rank].host for m in found.measurements for rank in (3, 4)]
    assert hosts == ["host 1", "host 2"] * len(found.measurements)
    # Two dies of MI250X are two ranks, and the command counts before prose.
    prose = "We have 4 nodes, each with 4 mi250x.\n"
    assert not read(prose + HEADER + row(1 << 30, 160.0, 310.0)).notes
    assert not read(prose + command + HEADER + row(1 << 30, 160.0, 280.0)).notes


def test_types_of_elements_are_variants() -> None:
    # the second type begins again at the first size
    text = HEADER + row(1 << 30, 20, 35) + row(1 << 31, 20, 35)
    text += row(1 << 30, 10, 17.5).replace("float", "f8e4m3")
    measured = read(text).measurements
    found = {(m.size_bytes, m.how): m.algbw_GBps for m in measured}
    assert {m.run for m in measured} == {0}
    assert found[1 << 30, "out-of-place float"] == 20
    assert found[1 << 30, "out-of-place f8e4m3"] == 10
    one = read(HEADER + row(1 << 30, 20, 35)).measurements
    assert {m.how for m in one} == {"out-of-place", "in-place"}
