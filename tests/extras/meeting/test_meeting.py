"""topo-probe as ranks of a launch: their hosts, joined."""

from __future__ import annotations

import subprocess
from fractions import Fraction
from pathlib import Path

import pytest
from fake_library import HIDDEN
from fake_library import variables as fake_variables
from fake_nvml import nvl72_tray
from launch import run_joined, run_modules
from ranks.join_command import HOST_NAME

from topoplan.topo.graph import Topology


def test_ranks_of_a_launch_print_once_and_are_joined() -> None:
    """Two ranks on a host without GPUs: stand-ins, printed by the first of them."""
    first, second = run_joined("topoplan.cli.probe", "--json", ranks=2)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert len(Topology.loads(first.stdout).ranks) == 2
    assert second.stdout == ""


def _may_name_hosts() -> bool:
    try:
        return (
            subprocess.run(
                ["unshare", "--uts", "hostname", "elsewhere"], capture_output=True
            ).returncode
            == 0
        )
    except FileNotFoundError:
        return False


@pytest.mark.long
@pytest.mark.skipif(
    not _may_name_hosts(), reason="no host name of its own for a process (unshare --uts)"
)
def test_ranks_on_two_host_names_are_on_two_hosts_of_one_fabric(tmp_path: Path) -> None:
    """Two trays of an NVL72, the first with two ranks."""
    names = ("node-b", "node-a", "node-b")
    common = {
        **dict.fromkeys(HIDDEN),
        **fake_variables(nvl72_tray(), tmp_path),
        "WORLD_SIZE": "3",
        "GLOO_SOCKET_IFNAME": "lo",
        "TOPOPLAN_RENDEZVOUS": str(tmp_path / "meet"),
    }
    ranks = [
        {**common, "RANK": str(rank), "LOCAL_RANK": str(rank // 2), HOST_NAME: name}
        for rank, name in enumerate(names)
    ]
    ended = run_modules("ranks.join_command", [], ranks, 100)
    assert [process.returncode for process in ended] == [0] * 3
    assert len({process.stdout for process in ended}) == 1
    topology = Topology.loads(ended[0].stdout)
    assert topology.extra["hosts"] == ["node-b", "node-a"]
    assert [topology.by_id[rank].extra["host"] for rank in topology.ranks] == list(names)
    (switch,) = (d.id for d in topology.devices if d.family == "nvswitch")
    rates = [rate for (_, end), rate in topology.capacity_GBps.items() if end == switch]
    assert rates == [Fraction(900)] * 3
