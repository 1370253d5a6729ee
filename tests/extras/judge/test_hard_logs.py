"""Logs whose ranks write into each other's lines, runs that fail, and excerpts of several runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from nccl_samples import HEADER, row, sign, write_log

from topoplan.cli.extras import judge as command
from topoplan.synth.extras.judge.file_contents import FileContents
from topoplan.synth.extras.judge.judging import Judge
from topoplan.synth.extras.judge.machine import Machines
from topoplan.synth.extras.judge.ranking import rank_findings
from topoplan.synth.extras.judge.readers.detect import read_text
from topoplan.synth.extras.judge.verdict import FileVerdict
from topoplan.topo.errors import InputError


def read(text: str) -> FileContents:
    return read_text(text, "file")


def list_names(contents: FileContents | FileVerdict) -> list[str]:
    return [finding.name for finding in contents.findings]


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
    contents = read("".join(LOG) + STOPPED + end)
    failed = next(finding for finding in contents.findings if finding.name == "start-failed")
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


def test_what_stands_below_a_log_that_ends_in_a_warning_hides_no_failure() -> None:
    begun = [line for line in LOG if "COMPLETE" not in line]
    text = "".join(begun) + warn(0, "Accept: wrong type 3 != 4") + "export NCCL_DEBUG=INFO\n"
    contents = read(text)
    assert list_names(contents) == ["start-failed"] and "wrong type" in contents.findings[0].message


def test_a_log_that_ends_before_a_communicator_is_complete_is_not_left_alone() -> None:
    begun = [line for line in LOG if "COMPLETE" not in line]
    contents = read("".join(begun) + "export NCCL_DEBUG=WARN\n")
    (found,) = (f for f in contents.findings if f.name == "start-unfinished")
    assert found.line == len(begun)
    verdict = Judge(Machines("ring:2", [])).judge(contents)
    assert verdict.verdict == found and "near-bound-allreduce" in list_names(verdict)
    assert "start-unfinished" not in list_names(read("".join(begun) + ROWS))


def test_ranks_on_several_nodes_are_not_judged_on_one_host() -> None:
    sizes = [sign(rank, f"comm 0x5 rank {rank} nRanks 2 nNodes 2 localRanks 1") for rank in (0, 1)]
    (channels,) = Judge(Machines("ring:2", [])).judge(read("".join(sizes + LOG))).communicators
    assert "ranks on 2 nodes, and ring:2 is one host" in channels.why_not


@pytest.mark.parametrize("are_listed", [True, False])
def test_ranks_of_several_nodes_are_not_the_first_gpus_of_one(are_listed: bool) -> None:
    text = sign(0, "comm 0x5 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0")
    text += sign(0, "Channel 00/01 : 0 1")
    if are_listed:
        text += "".join(
            f"#  Rank  {rank} Group  0 Pid  {rank} on {host} device  0 [0000:06:00] NVIDIA H100\n"
            for rank, host in enumerate(("node1", "node2"))
        )
    verdict = Judge(Machines("dgx-h100:2", [])).judge(read(text))
    (channels,) = verdict.communicators
    if are_listed:
        assert channels.rank_map is not None and channels.rank_map.in_use == (0, 8)
    else:
        assert "ranks on 2 nodes, and nothing says which GPUs" in channels.why_not
        (measured,) = Judge(Machines("dgx-h100:2", [])).judge(read(text + ROWS)).measured
        assert "ranks on 2 nodes, and nothing says which GPUs" in measured.why_not


def test_what_was_measured_before_a_failure_stands_with_a_note() -> None:
    contents = read("".join(LOG) + ROWS + STOPPED + TEST)
    assert contents.measurements and "start-failed" not in list_names(contents)
    number = len((*LOG, *ROWS.splitlines())) + 1
    assert any(f"line {number}: a run failed: " in note for note in contents.notes)


def test_a_failure_before_another_run_is_a_note() -> None:
    contents = read("".join(LOG) + STOPPED + TEST + "".join(LOG))
    assert "start-failed" not in list_names(contents)
    assert any("a run failed" in note and NO_PATH in note for note in contents.notes)


def test_a_table_without_rows_whose_test_failed_is_refused_with_that() -> None:
    with pytest.raises(
        InputError, match=r"failed: line 4: Test NCCL failure all_reduce.cu:47 'unh"
    ):
        read(HEADER + TEST)
    with pytest.raises(InputError, match=r"failed: line 4: at.cc:7 NCCL WARN No transport found"):
        read(HEADER + warn(1, NO_PATH) + TEST)
    with pytest.raises(InputError, match=r"failed: line 4: Test CUDA failure common.cu:9 'out of"):
        read(HEADER + "node07: Test CUDA failure common.cu:9 'out of memory'\n")


def write_excerpt(rank: int, pid: int, *transports: str, host: str = "node07") -> str:
    """Return the lines of one process of two ranks, by which it connects to the other one."""
    at = f"{host}:{pid}:{pid} [{rank}] NCCL INFO Channel"
    return "".join(
        f"{at} {channel:02d}/0 : {rank}[{rank}] -> {1 - rank}[{1 - rank}] [send] via {name}\n"
        for channel, name in enumerate(transports)
    )


def test_excerpts_of_several_runs_are_judged_apart() -> None:
    shared, wired = write_excerpt(0, 11, "SHM/direct/direct"), write_excerpt(0, 12, "P2P/CUMEM")
    contents = read("== SHM ==\n" + shared + "== P2P ==\n" + wired)
    assert [c.transports for c in contents.communicators] == [{"SHM": 1}, {"P2P": 1}]
    assert any("2 runs" in note and "as rank 0; each is judged" in note for note in contents.notes)


def test_runs_one_after_another_have_their_own_ranks() -> None:
    first = write_log([[0, 1]], [[-1, 0]], commit="")
    second = [line.replace(":400", ":410").replace("P2P", "SHM") for line in first]
    contents = read("".join(first + second))
    assert [c.transports for c in contents.communicators] == [{"P2P": 2}, {"SHM": 2}]
    assert len(contents.communicators[1].locations) == 2


def test_the_processes_of_one_run_are_not_parted() -> None:
    wired = write_excerpt(0, 11, "P2P/CUMEM") + write_excerpt(1, 12, "P2P/CUMEM")
    again = write_excerpt(0, 11, "P2P/CUMEM").replace(":11 [", ":99 [")  # another thread
    contents = read(wired + again)
    assert [c.transports for c in contents.communicators] == [{"P2P": 3}] and not contents.notes


def test_runs_whose_lines_are_mixed_are_noted() -> None:
    far = write_excerpt(0, 12, "P2P/CUMEM", "P2P/CUMEM").splitlines(True)
    near = write_excerpt(0, 11, "SHM/direct", "SHM/direct").splitlines(True)
    contents = read("".join(near[:1] + far[:1] + near[1:] + far[1:]))
    assert [c.transports for c in contents.communicators] == [{"SHM": 2, "P2P": 2}]
    assert any("their lines are mixed" in note for note in contents.notes)


def test_connections_of_communicators_without_channels_are_noted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "log.txt"
    file.write_text("".join(LOG) + write_excerpt(0, 77, "SHM/direct"), encoding="utf-8")
    assert command.main([str(file), "--topology", "ring:2"]) == 0
    assert "whole rings or trees are not judged: 1 via SHM" in capsys.readouterr().out


HANG = (
    "[rank1]:[E Process.cpp:1] [PG 0 Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLGATHER, NumelIn=4, Timeout(ms)=60000) ran for 60012 "
    "milliseconds before timing out.\n"
)


def test_a_number_of_ranks_that_nothing_states_is_a_least_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "log.txt"
    line = sign(0, "Channel 00/0 : 16[17000] -> 18[21000] via P2P/IPC")
    ended = line.replace("\n", " comm 0x56 nRanks 32\n")
    for text, says in ((line, "of at least 19 ranks"), (ended, "communicator of 32 ranks")):
        file.write_text(text, encoding="utf-8")
        assert command.main([str(file), "--topology", "ring:2"]) == 0
        out = capsys.readouterr().out
        assert says in out and "give the log of all ranks" in out


def test_a_ring_whose_line_is_cut_states_no_number_of_ranks() -> None:
    order = [0, 5, 4, 7, *range(8, 24)]
    joined = sign(0, "Channel 03 : 0[14000] -> 5[41000] via P2P/IPC/read")
    contents = read(sign(0, f"Channel 14/16 : {' '.join(map(str, order))}") + joined)
    assert [(c.ranks, c.has_more) for c in contents.communicators] == [(24, True)]


def test_what_is_to_be_given_is_said_where_a_log_has_the_tuner_s_choice_alone() -> None:
    contents = read("[0] NCCL INFO 805306368 Bytes -> Algo 1 proto 2 time 3970.68\n")
    verdict = Judge(Machines("ring:2", [])).judge(contents).verdict
    assert verdict.name == "not-judged" and "give a table of nccl-tests" in verdict.message


def test_lines_that_ray_leaves_out_are_noted() -> None:
    log = "".join(LOG[:2]) + LOG[2].replace("\n", " [repeated 7x across cluster]\n")
    notes = read(log + "".join(LOG[3:])).notes
    assert any(note.startswith("line 3: Ray left out") for note in notes)


def test_what_cuda_says_of_peers_is_read_in_any_program_s_words() -> None:
    said = "Failed: Cuda error 'peer access is not supported between these two devices'\n"
    with pytest.raises(InputError, match=r"line 2: CUDA refuses peer access .*, and nothing was"):
        read("NCCL version 2.20.5+cuda12.4\n" + said)
    assert "p2p-refused-cuda" in list_names(read("".join(LOG) + said))


def test_what_the_samples_say_of_peers_is_a_finding_beside_what_ran() -> None:
    said = "Device=0 CANNOT Access Peer Device=1\nDevice=1 CANNOT Access Peer Device=0\n"
    assert "p2p-refused-test" in list_names(read(said + "".join(LOG)))
    assert "p2p-refused-test" not in list_names(read(said.replace("NOT", "") + "".join(LOG)))
    with pytest.raises(InputError, match="CUDA's samples say of P2P, without what ran"):
        read(said)


def test_ranks_at_both_ends_of_any_connection_count() -> None:
    said = "Channel 01/1 : 1[0] -> 3[1] [send] via NET/IB/0/GDRDMA/Shared"
    (found,) = read(sign(0, said)).communicators
    assert found.ranks == 4


def test_the_source_of_the_library_sets_nothing() -> None:
    source = '  INFO(NCCL_ENV, "NCCL_GRAPH_FILE set by environment to %s", str);\n'
    assert list_names(read(source + "".join(LOG))) == list_names(read("".join(LOG)))
    said = sign(0, "NCCL_GRAPH_FILE set by environment to graph.xml")
    assert "variable-nccl_graph_file" in list_names(read("".join(LOG) + said))


def test_an_excerpt_with_a_failing_call_is_no_start() -> None:
    failed = warn(0, "NET/IB : Got completion with error 5") + sign(0, "proxy.cc:692 -> 6")
    with pytest.raises(InputError, match=r"^file: a call failed: line 1: .*Got completion"):
        read(failed)
    with pytest.raises(InputError, match=r"^file: the start failed: line 4: "):
        read("".join(LOG[:3]) + failed)


def test_a_collective_that_does_not_end_is_the_first_finding() -> None:
    contents = read("".join(LOG) + HANG * 2)
    assert list_names(contents).count("timed-out") == 1
    (found,) = (finding for finding in contents.findings if finding.name == "timed-out")
    assert "gave up ALLGATHER after 60 s" in found.message and found.line == len(LOG) + 1
    assert rank_findings(contents.findings)[0] == found
    with pytest.raises(InputError, match="line 1: a collective did not end"):
        read(HANG)


def test_a_connection_that_another_process_cuts_keeps_its_transport() -> None:
    lines = write_excerpt(0, 11, "NET/IB/0/GDRDMA", "NET/IB/1/GDSetting up\n")
    assert [c.transports for c in read(lines).communicators] == [{"NET/IB/GDRDMA": 2}]


@pytest.mark.parametrize("wrap", ['        "{}",', '"{}"', "{}<br>", "{}<br />"])
def test_lines_in_a_list_of_lines_are_read_without_it(wrap: str) -> None:
    bare = "".join(LOG) + HEADER + row(1 << 30, 46, 69)
    wrapped = "ok: [node1] =>\n" + "".join(wrap.format(x) + "\n" for x in bare.splitlines())
    assert read(wrapped).communicators == read(bare).communicators
    assert read(wrapped).measurements == read(bare).measurements


def test_a_table_without_rows_beside_a_log_is_noted() -> None:
    notes = read("".join(LOG) + HEADER).notes
    assert any("a table of nccl-tests without a row" in note for note in notes)
    other = ROWS.replace(HEADER, "# sendrecv_perf\n" + HEADER)
    for whole in (ROWS, other):
        assert not any("without a row" in note for note in read("".join(LOG) + whole).notes)


def end(rank: int, host: str) -> str:
    """Return the line with which a rank ends its communicator of two."""
    text = f"comm 0x55{rank} rank {rank} nranks 2 cudaDev 0 busId f01000 - Destroy COMPLETE"
    return sign(rank, text).replace("node07", host)


def test_the_lines_that_end_a_communicator_tell_where_its_ranks_are() -> None:
    found = read(ROWS + end(0, "a1") + end(1, "a2"))
    assert {rank: place.host for rank, place in found.locations.items()} == {0: "a1", 1: "a2"}
    assert found.locations[0].bus == "000f:01:00.0" and not found.communicators
    assert not read(ROWS + end(0, "a1")).locations, "one of two"
    assert not read(ROWS + end(0, "a1") + end(1, "a2") + end(1, "a3")).locations, "which of two?"


def test_a_size_that_other_lines_state_is_not_the_least_number_of_ranks() -> None:
    connection = sign(1, "Channel 00/0 : 1[1] -> 2[2] via P2P/IPC")
    timings = sign(0, "Init timings - ncclCommInitRankConfig: rank 0 nranks 4 total 1.16")
    (known,) = read(connection + timings).communicators
    (least,) = read(connection).communicators
    assert (known.ranks, known.has_more) == (4, False)
    assert (least.ranks, least.has_more) == (3, True)
