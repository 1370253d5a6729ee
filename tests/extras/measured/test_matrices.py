"""Rates between GPUs that other tools measured correct those of a topology."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from topoplan.cli.probe import main
from topoplan.topo.errors import InputError
from topoplan.topo.extras.machine_details.p2p_or_memory import DIRECT, find_faster
from topoplan.topo.extras.measured.believe import believe
from topoplan.topo.extras.measured.matrices import read_measurements
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset

HEADS = {
    "read": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
    "write": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    "both": "memcpy CE GPU(row) <-> GPU(column) bandwidth (GB/s)",
    "samples": "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)",
    "both ways": "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)",
    "disabled": "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)",
}


def matrix(kind: str, *rows: tuple[str | float, ...]) -> str:
    lines = [HEADS[kind], "   " + " ".join(str(number) for number in range(len(rows)))]
    for number, row in enumerate(rows):  # with places, as the tools print rates
        cells = [x if isinstance(x, str) else f"{x:.2f}" for x in row]
        lines.append(f" {number} {' '.join(cells)}")
    return "\n".join(lines) + "\n\n"


def rates_of(text: str, name: str = "ring:2") -> dict[tuple[int, int], Fraction]:
    found = read_measurements(text, "file", preset(name)).experiments
    return {pair: rate for experiment in found for pair, rate in experiment.rates_GBps.items()}


def test_readers_receive_and_writers_send() -> None:
    assert rates_of(matrix("write", ("N/A", 3), (2, "N/A"))) == {(0, 1): 3, (1, 0): 2}
    assert rates_of(matrix("read", ("N/A", 3), (2, "N/A"))) == {(1, 0): 3, (0, 1): 2}
    assert rates_of(matrix("samples", (900, 3), (2, 900))) == {(0, 1): 3, (1, 0): 2}


def test_a_pair_has_the_best_of_what_was_measured_one_way_and_directly() -> None:
    text = (
        matrix("read", ("N/A", 3), (2, "N/A"))
        + matrix("write", ("N/A", 2.5), (2.75, "N/A"))
        + matrix("both", ("N/A", 9), (9, "N/A"))
        + matrix("disabled", (900, 8), (8, 900))
    )
    assert rates_of(text) == {(1, 0): 3, (0, 1): Fraction(5, 2)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "no matrix\n",
            "as nvbandwidth, p2pBandwidthLatencyTest or nvloom print them; it has none",
        ),
        (matrix("both", ("N/A", 9), (9, "N/A")), "it has nvbandwidth's CE copies GPU <-> GPU"),
        (matrix("disabled", (1, 9), (9, 1)), "it has p2pBandwidthLatencyTest's P2P disabled"),
        (
            matrix("disabled", (1, 9), (9, 1)) + matrix("both ways", (1, 9), (9, 1)),
            "P2P disabled, p2pBandwidthLatencyTest's P2P enabled, both ways together",
        ),
        (matrix("write", ("N/A", 9, 9), (9, "N/A", 9), (9, 9, "N/A")), "of 3 GPUs, and topology"),
    ],
)
def test_what_says_nothing_of_these_gpus_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError) as raised:
        rates_of(text)
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_a_slow_link_is_believed_and_pairs_that_were_not_measured_are_named() -> None:
    ring = preset("ring:4@25")
    rows: list[list[str | float]] = [
        [24 if abs(i - j) in (1, 3) else "N/A" for j in range(4)] for i in range(4)
    ]
    rows[1][2] = 12
    text = matrix("write", *map(tuple, rows))
    corrected = believe(ring, read_measurements(text, "file", ring))
    slow = [link for link in corrected.links if link.bandwidth_GBps != 25]
    assert [(x.src, x.dst, x.bandwidth_GBps) for x in slow] == [("gpu1", "gpu2", Fraction(12))]
    assert any("no rate of 0 -> 2, 1 -> 3, 2 -> 0, 3 -> 1" in note for note in corrected.notes)


def test_a_link_is_believed_to_carry_what_it_carried() -> None:
    """A bandwidth test is no estimate: assumed rates, and those of links alike, are no limit."""
    star = preset("switch:4")
    links = tuple(
        replace(x, bandwidth_GBps=Fraction(24), source="assumed: Gen4 x16, by the GPUs: A10")
        for x in star.links
    )
    for rates, apart in (
        ((26.3, 26.1, 26.2, 26.3), 1),
        ((9.9, 9.6, 10, 10.2), 2),
        ((24.3, 23.9, 24.1, 23.6), 1),
    ):
        text = matrix("write", *(tuple(rates[i] for _ in range(4)) for i in range(4)))
        topology = replace(star, links=links)
        corrected = believe(topology, read_measurements(text, "file", topology))
        for link in corrected.links:
            assert link.extra["measured"]["GBps"] <= float(link.bandwidth_GBps)
        sent = {link.bandwidth_GBps for link in corrected.links if link.src in topology.ranks}
        assert len(sent) == apart


def test_p2p_that_is_slower_than_host_memory_is_named_and_not_advised() -> None:
    text = matrix("samples", (900, 9), (9.5, 900)) + matrix("disabled", (900, 21), (22, 900))
    read = read_measurements(text, "file", preset("path:2@24"))
    (note,) = (note for note in read.notes if "P2P" in note)
    assert "9 to 9.5 GB/s where copies through host memory carry 21 to 22 GB/s" in note
    assert "NCCL_P2P_DISABLE=1" in note and "by P2P only" in note and "slower" in read.medium
    assert read.pairs[0, 1] == {"GBps": 9, "through_memory_GBps": 21}
    fast = matrix("samples", (900, 21), (21, 900)) + matrix("disabled", (900, 9), (20, 900))
    read = read_measurements(fast, "file", preset("path:2@24"))
    assert not any("P2P" in note for note in read.notes) and read.medium.endswith("Test")
    corrected = believe(preset("path:2@24"), read)
    assert find_faster(corrected) == {frozenset(("gpu0", "gpu1")): DIRECT}
    assert find_faster(Topology.loads(corrected.dumps())) == find_faster(corrected)
    for wrong in (None, {"pairs": 3}, {"pairs": [3, {"src": "gpu0", "GBps": "no"}]}):
        assert not find_faster(replace(corrected, extra={"measured": wrong}))


def test_topo_probe_writes_the_corrected_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nvbandwidth.txt"
    file.write_text(matrix("write", ("N/A", 12), (20, "N/A")), encoding="utf-8")
    assert main(["path:2@20", "--measured", str(file), "--json"]) == 0
    topology = Topology.loads(capsys.readouterr().out)
    assert [link.bandwidth_GBps for link in topology.links] == [12, 20]
    measured = json.loads(topology.dumps())["measured"]
    assert measured["over"] == "nvbandwidth" and len(measured["pairs"]) == 2
    assert main(["path:2@20", "--measured", str(tmp_path / "none.txt")]) == 2
    assert "none.txt: cannot be read" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--measured", str(file), "--measure"])


def test_rates_of_gpus_that_do_not_reach_each_other_are_none_by_p2p() -> None:
    head = "P2P Connectivity Matrix\n     D\\D     0     1     2\n"
    reach = "     0\t     1     1     0\n     1\t     1     1     0\n     2\t     0     0     1\n"
    names = "   D\\D     0      1      2\n"
    rows = "     0 900.1  99.0  20.0\n     1  98.0 900.2  21.0\n     2  20.5  21.5 900.3\n"
    table = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n" + names + rows
    for said in (head + reach, "Device=0 CANNOT Access Peer Device=2\n"):
        read = read_measurements(said + table, "file", preset("switch:3@100"))
        assert (0, 1) in read.pairs and (0, 2) not in read.pairs
        assert any("GPUs 0 -> 2" in note and "left out" in note for note in read.notes)
        assert ((2, 1) in read.pairs) == said.startswith("Device")
    # A later run with P2P counts.
    again = head + reach + table + head + reach.replace("0\n", "1\n") + table
    assert (0, 2) in read_measurements(again, "file", preset("switch:3@100")).pairs
    apart = head + reach.replace("1     1     0\n", "0     0     0\n").replace(
        "\t     1", "\t     0"
    )
    with pytest.raises(InputError, match="P2P disabled"):
        read_measurements(apart + table, "file", preset("switch:3@100"))


@pytest.mark.parametrize("prefix", ["[1,{}]<stdout>:", "{}: ", "2030-01-02T03:04:0{}Z stdout F "])
def test_what_a_log_puts_before_each_line_is_no_cell(prefix: str) -> None:
    bare = matrix("write", ("N/A", 12), (20, "N/A"))
    text = "".join(prefix.format(i) + line for i, line in enumerate(bare.splitlines(True)))
    read = read_measurements(text, "file", preset("path:2@20"))
    assert read.pairs == read_measurements(bare, "file", preset("path:2@20")).pairs
