"""Logs whose ranks write into each other's lines."""

from __future__ import annotations

import pytest
from nccl_samples import sign, write_log

from topoplan.synth.judge.readers.detect import read_text
from topoplan.synth.judge.reading import Reading


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
