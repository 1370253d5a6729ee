"""topo-judge's readers: logs of many versions and ranks, tables whole and broken, JSON, and what is
refused by name.
"""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_samples import DEVICES, GRAPH, HEADER, row, sign, write_log
from thorough import count_examples

from topoplan.synth.extras.judge.file_contents import FileContents, Measurement
from topoplan.synth.extras.judge.readers.detect import read_file, read_text
from topoplan.topo.errors import InputError


def read(text: str, collective: str | None = None) -> FileContents:
    return read_text(text, "file", collective)


@st.composite
def channels(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """Rings that begin at rank 0, and trees of at most three children, as parents."""
    n, count = draw(st.integers(2, 9)), draw(st.integers(1, 4))
    rings = [[0, *draw(st.permutations(range(1, n)))] for _ in range(count)]
    trees = []
    for _ in range(count):
        order = draw(st.permutations(range(n)))
        parents = [-1] * n
        for at in range(1, n):
            free = [r for r in order[:at] if parents.count(r) < 3]
            parents[order[at]] = draw(st.sampled_from(free))
        trees.append(parents)
    return rings, trees


@settings(max_examples=count_examples(25))
@given(
    channels(),
    st.sampled_from([" commId 0xabc1", ""]),
    st.sampled_from(["", "[0]: ", "2024-05-01T10:00:00.1Z ", "w-0 | "]),
)
def test_rings_and_trees_of_a_log_are_found(
    found: tuple[list[list[int]], list[list[int]]], commit: str, before: str
) -> None:
    rings, trees = found
    contents = read("".join(before + line for line in write_log(rings, trees, commit=commit)))
    (c,) = contents.communicators
    assert c.rings == tuple(map(tuple, rings)) and c.trees == tuple(map(tuple, trees))
    assert c.ranks == len(rings[0]) and c.nodes == 1 and c.transports == {"P2P": c.ranks}
    assert [p.bus for p in c.locations.values()] == [
        f"{(r + 1) >> 4:04x}:{(r + 1) % 16 << 4:02x}:00.0" for r in range(c.ranks)
    ]
    assert contents.library == "NCCL 2.21.5+cuda12.4"


@settings(max_examples=count_examples(25))
@given(channels(), st.randoms(use_true_random=False))
def test_ranks_may_write_in_any_order(
    found: tuple[list[list[int]], list[list[int]]], random: object
) -> None:
    rings, trees = found
    lines = write_log(rings, trees)
    # The lines of each rank keep their order; those of different ranks mix as they like.
    by_rank: dict[str, list[str]] = {}
    for line in lines[1:]:
        by_rank.setdefault(line.split()[0], []).append(line)
    mixed = []
    while by_rank:
        rank = random.choice(sorted(by_rank))  # type: ignore[attr-defined]
        mixed.append(by_rank[rank].pop(0))
        if not by_rank[rank]:
            del by_rank[rank]
    (c,) = read("".join(mixed)).communicators
    assert c.rings == tuple(map(tuple, rings)) and c.trees == tuple(map(tuple, trees))


def test_a_damaged_number_of_ranks_takes_neither_memory_nor_time() -> None:
    lines = write_log([[0, 1, 2, 3]], [[-1, 0, 1, 2]])
    text = "".join(lines).replace("rank 3 nranks 4 ", f"rank 3 nranks {10**12} ")
    assert max(c.ranks for c in read(text).communicators) == 10**12


def test_messages_that_ran_into_each_other_are_parted() -> None:
    lines = write_log([[0, 1, 2]], [[-1, 0, 1]])
    at = next(i for i, line in enumerate(lines) if "Trees" in line)
    lines[at] = lines[at].rstrip(
        "\n"
    )  # "... [0] 1/-1/-1->0->-1node07:4001:5001 [1] NCCL INFO Trees"
    lines[at + 1] = lines[at + 1].rstrip("\n")
    (c,) = read("".join(lines)).communicators
    assert c.trees == ((-1, 0, 1),)


@pytest.mark.parametrize(
    "trees",
    [
        ["[0] 1/-1/-1->0->-1", "[0] -1/-1/-1->1->0"],
        ["[0] -1->0->1/-1/-1", "[0] 0->1->-1/-1/-1"],
        ["[0] 1/-1/-1->0->-1|-1->0->1/-1/-1", "[0] -1/-1/-1->1->0|0->1->-1/-1/-1"],
        [
            "[0] 1/-1/-1->0->-1 comm 0x5 nRanks 02 busId c1000",
            "[0] -1/-1/-1->1->0 comm 0x6 nRanks 02 busId c5000",
        ],
    ],
)
def test_trees_of_every_version_are_read(trees: list[str]) -> None:
    text = "".join(sign(rank, f"Trees {tree}") for rank, tree in enumerate(trees)) + sign(
        0, "Channel 00 :    0   1"
    )
    (c,) = read(text).communicators
    assert c.trees == ((-1, 0),) and c.rings == ((0, 1),)


def test_rings_are_put_together_from_what_each_rank_says_of_them() -> None:
    hops = "".join(sign(r, f"Ring 00 : {(r - 1) % 4} -> {r} -> {(r + 1) % 4}") for r in range(4))
    assert read(hops).communicators[0].rings == ((0, 1, 2, 3),)
    sends = "".join(
        f"NCCL INFO Channel 01 : {r}[{(r + 1) << 16:x}] -> {(r + 1) % 4}[1] via SHM/direct/direct\n"
        for r in range(4)
    )
    (c,) = read(sends).communicators
    assert (
        c.rings == ((0, 1, 2, 3),)
        and c.transports == {"SHM": 4}
        and c.locations[2].bus == "0000:30:00.0"
    )


def test_a_log_of_one_host_names_ranks_of_the_others() -> None:
    """Connections of ranks 0 to 7 lead on to the next host; ring 0 comes back from the last."""
    sends = "".join(sign(r, f"Ring 00 : {r} -> {r + 1} [send] via NET/IB/0") for r in range(8))
    hops = sign(0, "Ring 00 : 39 -> 0 -> 1") + sign(0, "Tree 0 : -1 -> 0 -> 16/1/-1")
    assert [c.ranks for c in read(sends).communicators] == [9]
    assert [c.ranks for c in read(sends + hops).communicators] == [40]


def test_communicators_are_told_apart_and_like_ones_counted() -> None:
    first = write_log([[0, 1, 2, 3]], [[-1, 0, 1, 2]], commit="")
    second = write_log([[0, 1]], [[-1, 0]], commit="")
    contents = read("".join(first + second + second))
    assert [(c.ranks, c.alike) for c in contents.communicators] == [(4, 1), (2, 2)]


def test_what_hinders_is_a_finding() -> None:
    text = (
        sign(0, "Could not enable P2P between dev 1(=1b000) and dev 0(=1a000)")
        + sign(0, "Could not find a path for pattern 4, falling back to simple order")
        + sign(0, "NCCL_P2P_LEVEL set by environment to LOC")
        + sign(0, "AllReduce: 4194304 Bytes -> Algo 1 proto 2 time 88.1")
        + sign(0, "AllGather: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}")
        + sign(
            0,
            "P2P is disabled between connected GPUs 2 and 3. You can repress this message with "
            "NCCL_IGNORE_DISABLED_P2P=1.",
        )
    )
    contents = read(text)
    assert {f.name for f in contents.findings} == {
        "p2p-refused",
        "simple-order",
        "variable-nccl_p2p_level",
    }
    assert all(f.advice and f.line for f in contents.findings)
    assert "1-0, 2-3" in next(f.message for f in contents.findings if f.name == "p2p-refused")
    assert [(p.collective, p.algorithm, p.protocol) for p in contents.picks] == [
        ("allgather", "RING", "LL"),
        ("allreduce", "RING", "SIMPLE"),
    ]


def tables(contents: FileContents) -> list[tuple[str, int]]:
    return sorted({(m.collective, m.ranks) for m in contents.measurements})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (row(1 << 20, 8, 14), ("allreduce", 8)),
        (row(1 << 20, 8, 7), ("reduce-scatter", 8)),
        (row(1 << 20, 8, 7, "none"), ("allgather", 8)),
        (row(1 << 20, 8, 7, "none", errors=("0", "N/A")), ("alltoall", 8)),
        (row(1 << 20, 8, 8, "none", "0"), ("broadcast", 8)),
        (row(1 << 20, 8, 8, "sum", "0"), ("reduce", 8)),
    ],
)
def test_a_table_says_by_itself_which_collective_it_is(
    line: str, expected: tuple[str, int]
) -> None:
    devices = "".join(DEVICES.format(i, 16 + i) for i in range(8))
    contents = read(devices + HEADER + line)
    assert tables(contents) == [expected]
    assert {m.how for m in contents.measurements} == {"out-of-place", "in-place"}
    assert contents.locations[3].bus == "13" and contents.locations[3].dev == 3


def test_without_the_list_of_devices_the_ranks_follow_from_the_factor() -> None:
    assert tables(read(HEADER + row(1 << 26, 20, 35))) == [("allreduce", 8)]
    assert tables(
        read("# nThread 1 nGpus 1 minBytes 8 maxBytes 8\n" + HEADER + row(1 << 26, 20, 30))
    ) == [("allreduce", 4)]


def test_old_tables_and_those_without_their_header_are_read() -> None:
    old = (
        "    67108864      16777216   float     sum    1568.3   42.79   74.88  2e-07   1560.9   "
        "42.99   75.23  2e-07\n"
    )
    contents = read(old)
    assert [(m.algbw_GBps, m.busbw_GBps, m.time_us, m.wrong) for m in contents.measurements] == [
        (42.79, 74.88, 1568.3, False),
        (42.99, 75.23, 1560.9, False),
    ]
    oldest = (
        "#  bytes             N    type      op     time  algbw  busbw    delta     time  algbw  "
        "busbw    delta\n"
        "    10000000       2500000   float     sum    0.468  21.37  32.05    1e-07    0.465  "
        "21.51  32.26    1e-07\n"
    )
    assert tables(read(oldest)) == [("allreduce", 4)]
    alone = "1048576  262144  float  sum  -1  38.2  27.45  48.04  0\n"
    assert [m.how for m in read(alone).measurements] == ["out-of-place"]


def test_rows_broken_by_messages_are_put_together() -> None:
    text = (
        HEADER
        + "     1048576        262144     float     sum      -1node07:1:2 [0] NCCL INFO Using "
        "network IB\n"
        + sign(1, "Connected all rings").replace("[1]", "[1]")
        + "[0]   131.0    8.00   14.00      0"
        + sign(0, "AllReduce: 1048576 Bytes -> Algo 1 proto 2 time 79.2")
        + "[0]   131.0    8.01   14.02      0\n"
        + row(1 << 21, 16, 28)
    )
    contents = read(text)
    assert [(m.size_bytes, m.algbw_GBps) for m in contents.measurements] == [
        (1 << 20, 8.0),
        (1 << 20, 8.01),
        (1 << 21, 16.0),
        (1 << 21, 16.0),
    ]


@pytest.mark.parametrize(
    "before", ["[1,0]<stdout>:", "worker-0: ", "2024-05-01T10:00:00Z ", "[rank0]: ", "> "]
)
def test_what_a_launcher_puts_before_lines_does_not_matter(before: str) -> None:
    text = "".join(before + line + "\n" for line in (HEADER + row(1 << 26, 20, 35)).splitlines())
    assert tables(read(text)) == [("allreduce", 8)]


def test_a_test_that_is_named_is_believed_and_wrong_results_are_said() -> None:
    text = (
        "# Collective test starting: reduce_scatter_perf\n"
        + HEADER
        + row(1 << 26, 20, 17.5, errors=("3", "0"))
    )
    contents = read(text)
    assert tables(contents) == [("reduce-scatter", 8)]
    assert [f.name for f in contents.findings] == ["wrong-results"]


INSPECTED = {
    "header": {"id": "0x1", "rank": 2, "n_ranks": 8, "nnodes": 1},
    "metadata": {"inspector_output_format_version": "v4.0"},
    "coll_perf": {
        "coll": "AllReduce",
        "coll_msg_size_bytes": 1 << 30,
        "coll_exec_time_us": 6000,
        "coll_algobw_gbs": 178.9,
        "coll_busbw_gbs": 313.1,
    },
}
TESTED = {
    "version": 1,
    "args": ["./build/all_gather_perf", "-b", "8"],
    "nccl_version": 22304,
    "config": {"ngpus": 1},
    "devices": [
        {"rank": r, "hostname": "a", "device": r, "device_hex": f"0000:{r + 1:02x}:00"}
        for r in range(4)
    ],
    "results": [
        {
            "size": 1 << 20,
            "count": 1,
            "type": "float",
            "redop": "none",
            "root": "-1",
            "out_of_place": {"time": 52.4, "alg_bw": 20.0, "bus_bw": 15.0, "nwrong": 0.0},
            "in_place": None,
        }
    ],
}
RUN = {
    "collective": "allreduce",
    "ranks": 4,
    "rows": [{"size_bytes": 1 << 20, "plan_us": 100.0, "stock_us": 200.0, "wrong": 0}],
}


def only(contents: FileContents) -> Measurement:
    (measurement,) = contents.measurements
    return measurement


def test_json_of_all_kinds_is_read() -> None:
    lines = "\n".join(json.dumps(INSPECTED) for _ in range(3))
    assert (
        only(read(lines)).how == "median of 3"
        and only(read(json.dumps(INSPECTED, indent=1))).ranks == 8
    )
    tested = read(json.dumps(TESTED))
    assert (only(tested).collective, only(tested).ranks, tested.library) == (
        "allgather",
        4,
        "NCCL 2.23.4",
    )
    assert tested.locations[1].bus == "0000:02:00"
    assert [(m.how, round(m.algbw_GBps, 2)) for m in read(json.dumps(RUN)).measurements] == [
        ("plan", 10.49),
        ("stock", 5.24),
    ]
    wrapped = "".join(
        json.dumps({"log": line, "stream": "stdout"}) + "\n"
        for line in write_log([[0, 1]], [[-1, 0]])
    )
    assert read(wrapped).communicators[0].rings == ((0, 1),)


WHOLE = "".join(write_log([[0, 1, 2, 3]] * 8, [[-1, 0, 1, 2]] * 8))
BEFORE_RINGS = WHOLE.index("Channel 00/08")
REFUSED = {
    "nothing": ("", "empty"),
    "an smi matrix": (
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n",
        "nvidia-smi's output",
    ),
    "a topology": ('<system version="1"></system>', "name it as the topology"),
    "a log without INIT": (
        sign(0, "Bootstrap : Using eth0:10.0.0.1<0>"),
        "without the lines of INIT",
    ),
    "prose about NCCL": (
        "# Notes\n\nOn two cards the script sets `NCCL_P2P_DISABLE=1`.\nLater NCCL is faster.\n",
        "mentions NCCL, without a result of a test or a line of its log (NCCL INFO)",
    ),
    "a version of NCCL": ("NCCL version 2.21.5+cuda12.4\n", "without the lines of INIT"),
    "a log of warnings alone": (
        "a:1:2 [0] misc/wrap.cc:7 NCCL WARN Call to modify failed\n",
        "line 1: the library warned: Call to modify failed; run with",
    ),
    "a log cut before rings": (WHOLE[:BEFORE_RINGS], "the log is cut"),
    "a log cut among rings": (WHOLE[: WHOLE.index("Channel 05/08")], "after 5 of 8 channels"),
    "a table without rows": (HEADER + "\n" * 3, "line 2: a table of nccl-tests without a row: it"),
    "a table whose rows are elsewhere": (
        HEADER + "# Avg bus bandwidth    : 46.1\n",
        "line 2: a table of nccl-tests without a row, though the test ended",
    ),
    "rows that are cut": (
        HEADER + row(1 << 20, 8, 8)[:45],
        "line 4: a table of nccl-tests without a whole row: the",
    ),
    "rows in another form": (
        HEADER + "1M 262144 46.00 46.00\n",
        "line 4: a row in another form than nccl-tests'",
    ),
    "an average alone": ("# Avg bus bandwidth    : 24.2\n", "the average of a table's rates alone"),
    "a table without algbw": (
        "size\ttype\tbusbw\talgo\n33554432\tfloat\t127.4\tTREE\n",
        "a table in another form than nccl-tests'",
    ),
    "devices alone": (DEVICES.format(0, 16), "line 1: a table of nccl-tests without a row: it"),
    "nccom-test's table": (
        "size(B)  count(elems)  type  time(us)  algbw(GB/s)  busbw(GB/s)\n"
        "33554432  33554432  uint8  768  40.69  40.69\n",
        "line 1: a table of nccom-test, which runs on AWS Neuron's",
    ),
    "DeepSpeed's summary": (
        "Comm. Op  Message Size  Count  Total Latency(ms)  busbw_avg (Gbps)\nbarrier\n",
        "DeepSpeed's summary of communication",
    ),
    "ucc_perftest's table": (
        "Collective:   Allreduce\nMemory type:  cuda\n  1024  4096  76.4  72.6  82.3\n",
        "ucc_perftest's output",
    ),
    "a profile": (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs...)  0.00%  12.3ms\n",
        "a profile of kernels",
    ),
    "a script's rates": ("busbw_avg (Gbps): 1495.64\n", "a script's rates"),
    "a table of sendrecv": (
        "# Collective test starting: sendrecv_perf\n" + HEADER + row(1 << 20, 8, 8),
        "sendrecv",
    ),
    "JSON that is cut": (json.dumps(TESTED)[:100], "cut off"),
    "JSON of something": ('{"a": 1}', "expected nccl-tests"),
    "a plan": ('{"format": "topoplan-plan"}', "topo-run"),
    "a poem": ("shall I compare thee to a summer's day\n", "not a format"),
    "a channel that misses a GPU": (
        GRAPH.format(
            '<gpu dev="0"/><gpu dev="0x1"/></channel><channel><gpu dev="0"/><gpu dev="0x2"/>'
        ).replace('nchannels="1"', 'nchannels="2"'),
        "channel 0 misses GPU 0x2",
    ),
    "fewer channels than declared": (
        GRAPH.format('<gpu dev="0"/><gpu dev="0x1"/>').replace('nchannels="1"', 'nchannels="3"'),
        "declares 3 channels",
    ),
    "a graph that is cut": (GRAPH.format('<gpu dev="0"/><gpu dev="0x1"/>')[:200], "cut off"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_judged_is_refused_by_name_in_one_line(what: str) -> None:
    text, said = REFUSED[what]
    with pytest.raises(InputError) as caught:
        read(text)
    assert (
        said in str(caught.value)
        and "\n" not in str(caught.value)
        and str(caught.value).startswith("file")
    )


def test_an_empty_name_and_an_empty_standard_input_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        InputError, match="the name of a file is empty; name a file, or - for standard input"
    ):
        read_file("")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(
        InputError, match=r"^standard input is empty: the command before \| printed nothing"
    ):
        read_file("-")


def test_a_table_of_another_collective_than_asked_for_is_refused() -> None:
    with pytest.raises(InputError, match="a table of allreduce, and alltoall was asked for"):
        read(HEADER + row(1 << 26, 20, 35), "alltoall")


def test_a_log_whose_rings_were_left_out_by_somebody_is_read_with_a_note() -> None:
    contents = read(
        WHOLE.replace(
            next(line for line in WHOLE.splitlines(True) if "Channel 06/08" in line), "...\n"
        )
    )
    assert len(contents.communicators[0].rings) == 7
    assert any("7 of 8 channels" in note for note in contents.notes)


SAMPLES = [
    WHOLE,
    HEADER + row(1 << 20, 8, 14) + row(1 << 26, 20, 35),
    json.dumps(INSPECTED) + "\n" + json.dumps(INSPECTED),
    json.dumps(TESTED),
    json.dumps(RUN),
    GRAPH.format('<gpu dev="0"/><gpu dev="0x1"/>'),
    "The graph:\n```xml\n" + GRAPH.format('<gpu dev="0"/><gpu dev="0x1"/>') + "\n```\n",
    "mpirun -np 4 osu_allreduce\n# OSU MPI-CUDA Allreduce Latency Test v7.0\n# Size  Avg\n"
    "1024 9.1\n",
    "The average bandwidth of all_reduce over 4 ranks (5 warmups / 20 trials):\n"
    "| payload |    busbw   |    algbw   |\n|   32KiB |   1.18GBps |   0.79GBps |\n",
    "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n"
    " 0       N/A    276.36\n 1    274.89       N/A\n",
    "=== System : maxBw 24.0 totalBw 24.0 ===\nCPU/0-0 (1/1/2)\n+ PCI[24.0] - DEV/0-1000\n"
    "              + LOC[5000.0] - GPU/0-1000\n              + XGMI[24.0] - DEV/0-2000\n"
    "+ PCI[24.0] - DEV/0-2000\n              + LOC[5000.0] - GPU/0-2000\n"
    "NCCL INFO Pattern 4, crossNic 0, nChannels 1, bw 24.0/24.0, type XGMI/PIX, sameChannels 0\n"
    "NCCL INFO  0 : GPU/0-1000 GPU/0-2000\n",
    "=== System : maxBw 24.0 totalBw 24.0 ===\nCPU/0-0 (1/1/2)\n+ PCI[24.0] - GPU/0-1000 (0)\n"
    "+ PCI[24.0] - NIC/0-2000\n              + NET[25.0] - NET/0-0 (0/0/25.0)\n"
    + HEADER
    + row(1 << 26, 20, 35),
]


@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_files_give_a_reading_or_one_line(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.sampled_from([0, 1, 7, 200, len(text)]))
        put = data.draw(
            st.sampled_from(
                [
                    "",
                    "\n",
                    "9" * 400,
                    "nan",
                    "-1",
                    "{",
                    "]",
                    "\0",
                    "->",
                    "é",
                    text[at // 2 : at // 2 + 80],
                ]
            )
        )
        text = text[:at] + put + text[at + length :]
    try:
        read(text)
    except InputError as error:
        assert "\n" not in str(error)


def test_a_number_of_thousands_of_digits_is_refused_with_its_line() -> None:
    line = f"n1:1:1 [0] NCCL INFO Channel 00/02 : 0 {'9' * 5000}\n"
    with pytest.raises(InputError, match="line 2: a number of more than 4000 digits"):
        read_text(f"a line\n{line}", "file")
