"""Hosts joined to one machine: ranks in their order, NICs at their speeds, and what is assumed said."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch import patient_ranks, wait_for_all

from topoplan.topo.derived.hosts import NETWORK, ASSUMED_GBps, join_cpu_hosts, join_hosts
from topoplan.topo.errors import InputError
from topoplan.topo.graph import Device, Link, Topology, both_ways
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router


def host(name: str, gpus: int, nics: dict[str, float | None], notes: tuple[str, ...] = ()) -> Topology:
    """GPUs and NICs on one CPU; a NIC of speed None has none that is known."""
    speeds = {nic: {} if speed is None else {"net_speed_GBps": speed} for nic, speed in nics.items()}
    devices = [Device("cpu0", "cpu"), *(Device(f"gpu{i}") for i in range(gpus))]
    devices += [Device(nic, "nic", extra=extra) for nic, extra in speeds.items()]
    links = [x for d in devices[1:] for x in both_ways(Link(d.id, "cpu0", Fraction(12), kind="pcie"))]
    extra = {"notes": list(notes), "facts": [{"subject": "gpu/0", "key": "uuid", "source": "NVML", "value": "x"}]}
    return Topology(name, tuple(devices), tuple(links), extra=extra)


def uplinks(topology: Topology) -> dict[str, Fraction]:
    return {a: rate for (a, b), rate in topology.capacity_GBps.items() if b == NETWORK}


def test_two_hosts_have_all_devices_and_a_network_between_their_nics() -> None:
    joined = join_hosts([host("a", 2, {"mlx5_0": 25.0}, ("odd",)), host("b", 3, {"mlx5_0": 12.5, "mlx5_1": 12.5})])
    assert joined.ranks == ("host0/gpu0", "host0/gpu1", "host1/gpu0", "host1/gpu1", "host1/gpu2")
    assert uplinks(joined) == {
        "host0/mlx5_0": Fraction(25),
        "host1/mlx5_0": Fraction(25, 2),
        "host1/mlx5_1": Fraction(25, 2),
    }
    assert joined.is_symmetric
    assert len(joined.devices) == 4 + 6 + 1
    assert joined.by_id["host1/gpu0"].extra["host"] == "b"
    assert joined.extra == {"hosts": ["a", "b"], "notes": ["a: odd"]}
    assert Router(joined).route(0, 4) is not None


@given(st.permutations([(h, f"gpu{i}") for h in range(3) for i in range(2)]), st.integers(1, 6))
def test_ranks_come_in_the_order_of_their_seats_and_others_are_left_out(
    order: list[tuple[int, str]], count: int
) -> None:
    seats = order[:count]
    used = sorted({h for h, _ in seats})
    joined = join_hosts([host(name, 2, {"eth0": 1.25}) for name in "abc"], seats)
    if len(used) == 1:
        assert joined.ranks == tuple(gpu for _, gpu in seats)
    else:
        gpus = [joined.by_id[rank] for rank in joined.ranks]
        assert [(d.extra["host"], d.id.rpartition("/")[2]) for d in gpus] == [("abc"[h], gpu) for h, gpu in seats]
    halves = [h for h in used if sum(x == h for x, _ in seats) == 1]
    assert sum("no rank, left out" in note for note in joined.extra["notes"]) == len(halves)
    assert Topology.loads(joined.dumps()) == joined


def test_one_host_is_itself() -> None:
    alone = host("a", 2, {})
    assert join_hosts([alone]) is alone
    assert join_hosts([alone], [(0, "gpu1"), (0, "gpu0")]).ranks == ("gpu1", "gpu0")


def test_different_machines_join() -> None:
    joined = join_hosts([preset("pcie-2socket"), preset("dgx1"), preset("ring:3")])
    assert len(joined.ranks) == 8 + 8 + 3
    assert all(Router(joined).route(a, b) for a, b in ((0, 8), (18, 0), (9, 16)))


@pytest.mark.parametrize(
    ("nics", "ends", "says"),
    [
        ({}, {"host0/cpu0": ASSUMED_GBps}, "no NIC; cpu0 taken to send 1.25 GB/s"),
        ({"eth0": None}, {"host0/eth0": ASSUMED_GBps}, "no NIC of known speed; eth0 taken to send"),
        ({"ib0": 50.0, "eth0": 0.125}, {"host0/ib0": Fraction(50)}, "eth0: down, slow or of unknown speed"),
    ],
)
def test_what_is_assumed_of_a_hosts_way_out_is_noted(
    nics: dict[str, float | None], ends: dict[str, Fraction], says: str
) -> None:
    joined = join_hosts([host("a", 1, nics), host("b", 1, {"eth0": 1.25})])
    assert {end: rate for end, rate in uplinks(joined).items() if end.startswith("host0")} == ends
    assert [note for note in joined.extra["notes"] if note.startswith("a: ") and says in note]


@pytest.mark.parametrize(
    ("seats", "says"),
    [
        ([], "nothing to join"),
        ([(2, "gpu0")], "host 2; expected one from 0 to 1"),
        ([(0, "gpu9")], "has no GPU 'gpu9'; it has gpu0, gpu1"),
        ([(0, "gpu0"), (0, "gpu0")], "another rank's already"),
    ],
)
def test_seats_that_cannot_be_are_refused_in_one_line(seats: list[tuple[int, str]], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        join_hosts([host("a", 2, {}), host("b", 2, {})], seats)
    assert "\n" not in str(caught.value)


def test_processes_stand_in_for_gpus_where_there_are_none() -> None:
    topology = join_cpu_hosts(["a", "b"], [0, 1, 0])
    assert topology.ranks == ("rank0", "rank1", "rank2")
    assert all(topology.by_id[rank].extra["stands_for"] == "cpu" for rank in topology.ranks)
    assert Router(topology).route(0, 2) == ("rank0", "host0", "rank2")
    assert Router(topology).route(0, 1) == ("rank0", "host0", NETWORK, "host1", "rank1")
    assert NETWORK not in join_cpu_hosts(["a"], [0, 0]).by_id


def _may_name_hosts() -> bool:
    try:
        return subprocess.run(["unshare", "--uts", "hostname", "elsewhere"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


JOIN = str(Path(__file__).with_name("ranks") / "join_command.py")


@pytest.mark.skipif(not _may_name_hosts(), reason="no host name of its own for a process (unshare --uts)")
def test_ranks_on_two_host_names_are_on_two_hosts(tmp_path: Path) -> None:
    names = ("node-b", "node-a", "node-b")
    running = []
    for rank, name in enumerate(names):
        place = {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank // 2), "GLOO_SOCKET_IFNAME": "lo"}
        environment = {**os.environ, **place, "TOPOPLAN_RENDEZVOUS": str(tmp_path / "meet"), **patient_ranks()}
        inner = ["sh", "-c", f'hostname {name}; exec "$@"', "-", sys.executable, JOIN]
        running.append(
            subprocess.Popen(["unshare", "--uts", *inner], env=environment, stdout=subprocess.PIPE, text=True)
        )
    ended = wait_for_all(running, 100)
    assert [process.returncode for process in ended] == [0, 0, 0]
    assert ended[0].stdout == ended[1].stdout == ended[2].stdout
    topology = Topology.loads(ended[0].stdout)
    assert topology.extra["hosts"] == ["node-b", "node-a"]
    if "stands_for" in topology.by_id[topology.ranks[0]].extra:  # where there are no GPUs
        assert [topology.by_id[rank].extra["host"] for rank in topology.ranks] == list(names)
