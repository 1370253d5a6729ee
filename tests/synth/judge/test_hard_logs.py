"""Logs whose ranks write into each other's lines, and runs that fail."""

from __future__ import annotations

import pytest
from nccl_samples import HEADER, row, sign, write_log

from topoplan.synth.judge.readers.detect import read_text
from topoplan.synth.judge.reading import Reading
from topoplan.topo.errors import InputError


def read(text: str) -> Reading:
    return read_text(text, "file")


def list_names(reading: Reading) -> list[str]:
    return [finding.name for finding in reading.findings]


LOG = [*write_log([[0, 1]] * 2, [[-1, 0]] * 2), sign(0, "Using network Socket")]
SIZES = "comm 0x55{0} rank {0} nRanks 2 nNodes {1} localRanks 2 localRank {0}"


@pytest.mark.parametrize(
    "glued",
    [
        "node07:4001:5001 [1] NC" + sign(0, "Setting affinity for GPU 0"),
        "nod" + sign(0, "Connected to proxy localRank 0"),
        "stream 0x5" + sign(1, "Mem Realloc old size 0"),
    ],
)
def test_text_before_the_name_of_a_host_makes_no_second_host(glued: str) -> None:
    assert list_names(read("".join(LOG) + glued)) == []
    # Before its process is known, the name is settled by the lines that follow.
    assert list_names(read("".join(LOG[:1]) + glued + "".join(LOG[1:]))) == []


def test_a_name_that_ends_in_another_hosts_is_another_host_with_other_processes() -> None:
    far = sign(2, "Using network Socket", "xnode07")
    assert list_names(read("".join(LOG) + far)) == ["network-socket"]


def test_a_stated_number_of_hosts_counts_before_their_names() -> None:
    far = sign(2, "Using network Socket", "gpu9")
    for nodes in (1, 2):
        stated = sign(0, SIZES.format(0, nodes)) + sign(1, SIZES.format(1, nodes))
        names = list_names(read("".join(LOG) + stated + far))
        assert names == ["network-socket"] * (nodes - 1)


def warn(rank: int, text: str) -> str:
    return sign(rank, "").replace("INFO \n", f"WARN {text}\n").replace("] NCCL", "] at.cc:7 NCCL")


NO_PATH = "No transport found for rank 1[20000] -> rank 0[10000]"
TEST = "node07: Test NCCL failure all_reduce.cu:47 'unhandled system error (set NCCL_DEBUG) / '\n"
STOPPED = warn(1, NO_PATH) + sign(0, "Using network IB") + sign(1, "transport.cc:90 -> 2")
ROWS = HEADER + row(1 << 20, 9.0, 9.0)


@pytest.mark.parametrize("end", [TEST, sign(1, "group.cc:70 -> 2 [Async thread]")])
def test_a_call_that_fails_after_the_start_is_the_verdict(end: str) -> None:
    reading = read("".join(LOG) + STOPPED + end)
    failed = next(finding for finding in reading.findings if finding.name == "start-failed")
    assert "a call failed after the initialization" in failed.message
    assert NO_PATH in failed.message and failed.line == len(LOG) + 1


@pytest.mark.parametrize(
    "end",
    [
        "",  # no call of the application's
        sign(0, "group.cc:70 -> 2"),  # of another process than the warning
        sign(1, "group.cc:70 -> 7"),  # still in progress
        sign(1, "misc/socket.cc:46 -> 3") + sign(1, "proxy.cc:1495 -> 3 [Service thread]"),
    ],
)
def test_a_warning_alone_ends_no_run(end: str) -> None:
    assert "start-failed" not in list_names(read("".join(LOG) + STOPPED + end))


def test_what_was_measured_before_a_failure_stands_with_a_note() -> None:
    reading = read("".join(LOG) + ROWS + STOPPED + TEST)
    assert reading.measurements and "start-failed" not in list_names(reading)
    number = len((*LOG, *ROWS.splitlines())) + 1
    assert any(f"line {number}: a run failed: " in note for note in reading.notes)


def test_a_failure_before_another_run_is_a_note() -> None:
    reading = read("".join(LOG) + STOPPED + TEST + "".join(LOG))
    assert "start-failed" not in list_names(reading)
    assert any("a run failed" in note and NO_PATH in note for note in reading.notes)


def test_a_table_without_rows_whose_test_failed_is_refused_with_that() -> None:
    with pytest.raises(
        InputError, match=r"failed: line 4: Test NCCL failure all_reduce.cu:47 'unh"
    ):
        read(HEADER + TEST)
    with pytest.raises(InputError, match=r"failed: line 4: at.cc:7 NCCL WARN No transport found"):
        read(HEADER + warn(1, NO_PATH) + TEST)
    with pytest.raises(InputError, match=r"failed: line 4: Test CUDA failure common.cu:9 'out of"):
        read(HEADER + "node07: Test CUDA failure common.cu:9 'out of memory'\n")
