"""Tables of OSU's benchmarks and all_reduce_bench.py, and rates of pairs, which are refused."""

from __future__ import annotations

import pytest

from topoplan.synth.extras.judge.file_contents import FileContents
from topoplan.synth.extras.judge.readers.detect import read_text
from topoplan.topo.errors import InputError
from topoplan.topo.extras.measured.pair_rates import find_pair_rates, find_refused
from topoplan.topo.formats.detect import read_topology_text


def read(text: str) -> FileContents:
    return read_text(text, "file")


def rates(contents: FileContents) -> list[tuple[str, int, int, float]]:
    return [
        (m.collective, m.ranks, m.size_bytes, round(m.algbw_GBps, 3)) for m in contents.measurements
    ]


OSU = """\
# OSU MPI-CUDA {} Latency Test v7.0
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
{}             8630.58           8619.50           8642.46         10
"""


@pytest.mark.parametrize(
    ("launcher", "test", "expected"),
    [
        ("$ mpirun -np 4 osu_allreduce -d cuda", "Allreduce", ("allreduce", 4, 1 << 24, 1.944)),
        ("srun -n 4 ./osu_bcast -d cuda", "Broadcast", ("broadcast", 4, 1 << 24, 1.944)),
        (
            "srun -N 2 --ntasks-per-node=4 osu_allgather",
            "Allgather",
            ("allgather", 8, 1 << 27, 15.551),
        ),
        (
            "mpiexec -np 4 osu_alltoall -d rocm",
            "All-to-All Personalized Exchange",
            ("alltoall", 4, 1 << 26, 7.776),
        ),
        ("mpirun -n 4 x", "Reduce_scatter", None),
    ],
)
def test_a_size_of_osu_is_that_of_all_ranks(
    launcher: str, test: str, expected: tuple[str, int, int, float] | None
) -> None:
    text = f"{launcher}\n\n{OSU.format(test, 1 << 24)}"
    if expected is None:
        with pytest.raises(InputError, match="line 3: OSU does not print the number of ranks"):
            read(text)
    else:
        contents = read(text)
        assert rates(contents) == [expected] and contents.kind == "table of OSU micro-benchmarks"


def test_ranks_of_osu_over_nccl_say_themselves() -> None:
    text = "#Using NCCL\n" * 8 + "\n# OSU NCCL-CUDA Allreduce Latency Test v7.5\n# Size   Avg\n"
    contents = read(text + "[1,0]<stdout>: 1073741824           8955.18\n")
    assert rates(contents) == [("allreduce", 8, 1 << 30, 119.902)]
    assert contents.measurements[0].busbw_GBps == pytest.approx(119.902 * 1.75, rel=1e-4)


def test_tests_of_osu_that_are_no_collective_of_gpus_are_named() -> None:
    with pytest.raises(InputError, match="line 1: OSU's Bandwidth test, for which"):
        read("# OSU MPI-CUDA Bandwidth Test v5.9\n# Size      Bandwidth (MB/s)\n1 2.1\n")
    with pytest.raises(InputError, match="buffers in host memory"):
        read("$ mpirun -np 2 osu_reduce\n" + OSU.format("Reduce", 4).replace("-CUDA", ""))
    both = OSU.format("Bandwidth", 4) + "mpirun -np 2 osu_reduce\n" + OSU.format("Reduce", 4)
    contents = read(both)
    assert [m.collective for m in contents.measurements] == ["reduce"]
    assert any("line 1: OSU's Bandwidth test" in note for note in contents.notes)


TABLE = """\
- hardware: _CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9, minor=0)

The average bandwidth of all_reduce over 4 ranks (5 warmups / 20 trials):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|   32KB  |   1.18GBps |   0.79GBps |
|   16GiB | 367.24GBps | 244.83GBps |
"""
SINGLE = """\
The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 16 ranks):
 algbw: 176.590 GBps (1412.7 Gbps)
 busbw: 331.106 GBps (2648.8 Gbps)
"""


def test_all_reduce_bench_of_all_versions_is_read() -> None:
    contents = read(TABLE)
    assert rates(contents) == [
        ("allreduce", 4, 1 << 15, 0.79),
        ("allreduce", 4, 1 << 34, 244.83),
    ]
    assert {place.model for place in contents.locations.values()} == {"NVIDIA H100 80GB HBM3"}
    assert contents.measurements[1].busbw_GBps == 367.24
    prefixed = "".join(f"[node-7:0]:{line}" for line in SINGLE.splitlines(True))
    for text in (SINGLE, prefixed):
        assert rates(read(text)) == [("allreduce", 16, 4_000_000_000, 176.59)]
    trials = (
        "The 4.0GiB payload bandwidth of all_reduce over 8 ranks (5 warmups / 3 trials):\n\n"
        "|    busbw   |    algbw   |\n| ---------: | ---------: |\n"
        "| 100.00GBps |  57.14GBps |\n|  98.00GBps |  56.00GBps |\n| 120.00GBps |  68.57GBps |\n"
    )
    (median,) = read(trials).measurements
    assert (median.size_bytes, median.algbw_GBps, median.how) == (1 << 32, 57.14, "median of 3")


def test_runs_of_all_reduce_bench_are_told_apart() -> None:
    assert [m.run for m in read(TABLE + TABLE).measurements] == [1, 1, 2, 2]


NVBANDWIDTH = """\
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.63     55.64

Running device_to_device_bidirectional_memcpy_read_ce.
memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A    530.00
 1    530.00       N/A

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    276.36
 1    274.89       N/A

SUM device_to_device_memcpy_read_ce 551.25
"""
OF_SAMPLES = """\
P2P Connectivity Matrix
     D\\D     0     1
     0\t     1     1
     1\t     1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 909.92  22.47
     1  22.67 918.56
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 913.03  27.07
     1  11.46 916.42
P2P=Disabled Latency Matrix (us)
   GPU     0      1
     0   1.37  11.64
     1  11.66   1.39
"""
NVLOOM = (
    "Running device_to_device_unidir_write_sm\n\t0\t1\t2\t| \t\n0\tN/A\t782.12\t781.11\t|\t\n"
    "1\t780.00\tN/A\t779.10\t|\t\n2\t781.00\t782.50\tN/A\t|\t\n"
)
NVBANDWIDTH_JSON = """\
{"nvbandwidth": {"testcases": [{"name": "host_to_device_memcpy_ce",
  "bandwidth_matrix": [["55.6", "55.7"]]}, {"name": "device_to_device_memcpy_read_ce",
  "bandwidth_matrix": [["N/A", "276.1"], ["274.9", "N/A"]]}]}}
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (NVBANDWIDTH, "pairs of 2 GPUs, measured by nvbandwidth (CE copies GPU -> GPU: 274.89 to"),
        (NVBANDWIDTH[:130], "of each of 2 GPUs, measured by nvbandwidth (CE copies CPU -> GPU"),
        (OF_SAMPLES, "p2pBandwidthLatencyTest (P2P enabled: 11.46 to 27.07 GB/s one way)"),
        (OF_SAMPLES.replace(" Matrix (GB", " (GB"), "(P2P enabled: 11.46 to 27.07 GB/s one way)"),
        (NVLOOM, "pairs of 3 GPUs, measured by nvloom (device_to_device_unidir_write_sm: 779.1 to"),
        (
            "Running bisect_device_to_device_write_sm\n\t0\t1\t\n0\t700.10\t701.20\t\n",
            "of each of 2 GPUs, measured by nvloom",
        ),
        (NVBANDWIDTH_JSON, "nvbandwidth (device_to_device_memcpy_read_ce: 274.9 to 276.1 GB/s"),
    ],
)
def test_rates_of_pairs_are_said_by_judge_and_probe(text: str, says: str) -> None:
    for reader in (read, lambda given: read_topology_text(given, "file")):
        with pytest.raises(InputError) as caught:
            reader(text)
        assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "end"),
    [("{}", "\n\n"), ("{}", "<br>\n"), ("{}", "<br>"), ('  "{}",', "\n"), ("<p>{}</p>", "\n")],
)
def test_matrices_are_found_in_what_pages_make_of_lines(line: str, end: str) -> None:
    text = "".join(line.format(given) + end for given in OF_SAMPLES.splitlines())
    cut = OF_SAMPLES.replace("\t     1     1\n     1", "\t     1     0\n     1")
    assert [x.rows for x in find_pair_rates(text)] == [x.rows for x in find_pair_rates(OF_SAMPLES)]
    shown = "".join(line.format(given) + end for given in cut.splitlines())
    assert find_refused(shown) == find_refused(cut) == {(0, 1)}


@pytest.mark.parametrize("dash", ["\u2014", "-", "X"])
def test_dashes_on_the_diagonal_are_no_rates(dash: str) -> None:
    heading = "### Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n\nmeasured:\n\n```\n"
    rows = f"   D\\D     0      1\n     0    {dash}    104\n     1   103     {dash}\n```\n"
    assert [x.rows for x in find_pair_rates(heading + rows)] == [[[None, 104], [103, None]]]


def test_pairs_measured_on_one_gpu_are_none() -> None:
    alone = (
        "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n  D\\D  0\n  0 540.65\n"
    )
    with pytest.raises(InputError, match="p2pBandwidthLatencyTest's output without rates of sev"):
        read(alone)


def test_matrices_have_their_cells_in_place() -> None:
    one_way = [rates for rates in find_pair_rates(OF_SAMPLES) if "enabled" in rates.test]
    assert one_way[0].rows == [[913.03, 27.07], [11.46, 916.42]]
    assert [rates.is_one_way for rates in find_pair_rates(NVBANDWIDTH)] == [True, False, True]
    assert find_pair_rates('{"nvbandwidth": [1]}') == [] and find_pair_rates("{") == []


def test_what_osu_measured_and_is_left_out_is_noted_by_reason() -> None:
    launched = "mpirun -np 4 osu_allreduce -d cuda\n"
    host = OSU.replace("MPI-CUDA", "MPI").format("Allreduce", 1 << 24)
    pairs = OSU.format("Bandwidth", 1 << 20).replace(" Latency", "")
    notes = read(pairs * 5 + launched + host + launched + OSU.format("Allreduce", 1 << 24)).notes
    assert len(notes) == 2 and " and 2 more: OSU's Bandwidth test" in notes[0]
    assert "buffers in host memory" in notes[1]


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("Invalid value when checking the pattern at 0x7f00\n", "line 2: it found wrong values"),
        ("Waiving device_to_device_memcpy_read_sm.\n", "it waived device_to_device_memcpy_read_sm"),
        ("", "without rates of several GPUs; give here"),
    ],
)
def test_nvbandwidth_without_rates_is_refused_by_what_it_says(rest: str, says: str) -> None:
    with pytest.raises(InputError, match=f"^file: nvbandwidth's output.*{says}"):
        read("nvbandwidth Version: v0.8\n" + rest)


def test_copies_that_json_says_were_waived_are_named() -> None:
    name = "device_to_device_memcpy_read_ce"
    cases = f'{{"name" : "{name}",\n\t"status" : "Waived"}}'
    with pytest.raises(InputError, match=f"it waived {name}, as it does where"):
        read(f'{{\n\t"nvbandwidth" : {{"testcases" : [{cases}]}}}}\n')


def test_rates_between_cpus_and_gpus_correct_no_topology() -> None:
    table = "memcpy SM CPU(row) -> GPU(column) bandwidth (GB/s)\n   0   1\n0  35.1  35.2\n"
    with pytest.raises(InputError, match=r"of each of 2 GPUs.*what joins the GPUs; give here"):
        read(table)


@pytest.mark.parametrize(
    "prefix", ["(head, rank=0, pid={}) [1,0]<stdout>:", "2030-01-02T03:04:0{}Z stdout F ", "> "]
)
def test_what_a_log_puts_before_the_lines_of_osu_is_cut_off(prefix: str) -> None:
    text = "$ mpirun -np 4 osu_allreduce -d cuda\n" + OSU.format("Allreduce", 1 << 24)
    lines = "".join(prefix.format(i) + line for i, line in enumerate(text.splitlines(True)))
    assert rates(read(lines)) == rates(read(text)) != []
