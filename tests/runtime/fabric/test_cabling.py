"""When groups use cables, what is measured, and how messages are divided over parallel cables."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import patience
import pytest
import torch

from topoplan.runtime.emulate import why_not, why_not_mpi
from topoplan.runtime.fabric import ports
from topoplan.runtime.fabric.cable_gloo import CableChannel, CableGloo
from topoplan.runtime.fabric.cabling import may_be_cabled
from topoplan.runtime.fabric.joining import needs_cables
from topoplan.runtime.fabric.relay import loopback_of
from topoplan.runtime.fabric.rounds import plan_rounds
from topoplan.topo.fabric import (
    FabricFacts,
    HostFacts,
    PortAnswer,
    PortFacts,
    Segment,
    SegmentBundle,
)
from topoplan.topo.graph import Topology

REASON = why_not()
needs_namespaces = pytest.mark.skipif(
    REASON is not None, reason=f"nothing can be emulated here: {REASON}"
)


def make_facts(hosts: int, networks: list[list[int]], *, opens_management: bool) -> FabricFacts:
    """Return the facts of hosts that each of some networks joins, by the hosts' numbers."""
    ports = [[PortFacts("mgmt0", f"192.168.0.{host + 1}/24")] for host in range(hosts)]
    named = [("mgmt0", list(range(hosts)))] if opens_management else []
    for number, joined in enumerate(networks):
        named.append((f"port{number}", joined))
        for host in joined:
            ports[host].append(PortFacts(f"port{number}", f"10.1.{number}.{host + 1}/24"))
    return FabricFacts(
        tuple(HostFacts(f"h{i}", (i,), tuple(of), "mgmt0") for i, of in enumerate(ports)),
        answers=tuple(
            PortAnswer(a, name, b, name, b, name)
            for name, joined in named
            for a in joined
            for b in joined
            if a != b
        ),
    )


@pytest.mark.parametrize(
    ("networks", "opens_management", "expected"),
    [
        ([[0, 1], [1, 2], [2, 0]], False, True),  # a ring
        ([[0, 1], [1, 2], [2, 0]], True, True),  # cables before a slow network
        ([[0, 1, 2]], False, True),  # a switch, where the rendezvous' network joins no hosts
        ([[0, 1, 2]], True, False),  # a cluster: gloo does as it always has
        ([[0, 1]], True, False),  # a missing cable
        ([], True, False),
    ],
)
def test_groups_use_cables_where_gloo_alone_would_not_do(
    networks: list[list[int]], opens_management: bool, expected: bool
) -> None:
    assert needs_cables(make_facts(3, networks, opens_management=opens_management)) is expected


def test_a_ring_without_management_network_is_used_too() -> None:
    facts = make_facts(3, [[0, 1], [1, 2], [2, 0]], opens_management=False)
    hosts = tuple(msgspec.structs.replace(host, management="") for host in facts.hosts)
    assert needs_cables(msgspec.structs.replace(facts, hosts=hosts))


def test_only_launches_on_several_hosts_look_for_cables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME", "TOPOPLAN_FABRIC"):
        monkeypatch.delenv(name, raising=False)
    assert not may_be_cabled()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert not may_be_cabled()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert may_be_cabled()
    monkeypatch.setenv("TOPOPLAN_FABRIC", "off")
    assert not may_be_cabled()


def test_flows_of_a_round_share_no_host() -> None:
    ring = [Segment(((i, "port0"), ((i + 1) % 6, "port1"))) for i in range(6)]
    rounds = plan_rounds([SegmentBundle((x,)) for x in ring])
    assert sorted(flow for flows in rounds for flow in flows) == sorted(
        2 * [flow for x in ring for flow in ((x.ports[0], x.ports[1]), (x.ports[1], x.ports[0]))]
    )
    for flows in rounds:
        hosts = [port[0] for flow in flows for port in flow]
        assert len(set(hosts)) == len(hosts)
    assert len(rounds) <= 12


def test_subnets_of_one_cable_are_measured_together() -> None:
    cable = SegmentBundle(tuple(Segment(((0, f"en{i}"), (1, f"en{i}"))) for i in range(2)))
    there = [((0, f"en{i}"), (1, f"en{i}")) for i in range(2)]
    back = [(q, p) for p, q in there]
    assert plan_rounds([cable]) == [there, back] * 2


class Recorder:
    """Stands for gloo: remembers what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, int]] = []

    def send(self, tensors: Any, peer: int, tag: int) -> Recorder:
        self.sent.append((tensors[0].numel(), peer, tag))
        return self

    def wait(self, *_: object) -> bool:
        return True


def test_messages_are_divided_by_the_rates_of_parallel_cables() -> None:
    one, two, relayed = Recorder(), Recorder(), Recorder()
    channels = {1: [CableChannel(one, 0, Fraction(3, 4)), CableChannel(two, 0, Fraction(1, 4))]}
    gloo = CableGloo(channels, relayed, lambda: None)
    gloo.send([torch.zeros(1 << 20)], 1, 7).wait()
    assert (one.sent, two.sent) == ([(3 << 18, 0, 7)], [(1 << 18, 0, 7)])
    gloo.send([torch.zeros(8)], 1, 6)
    gloo.send([torch.zeros(8)], 1, 7)
    assert (one.sent[1:], two.sent[1:]) == ([(8, 0, 6)], [(8, 0, 7)])
    gloo.send([torch.zeros(8)], 2, 7)
    assert relayed.sent == [(8, 2, 7)]


def test_every_rank_has_a_loopback_address_of_its_own() -> None:
    addresses = [loopback_of(rank) for rank in range(2000)]
    assert len(set(addresses)) == 2000
    assert all(0 < int(x.split(".")[-1]) < 255 for x in addresses)


def test_interfaces_of_one_connector_are_known_by_the_driver_s_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enp1s0f0np0.7")
    for name in names:
        pci = f"{2 * ('P2' in name):04}:01:00.{int('f1' in name)}"
        device, port = tmp_path / "devices" / pci, tmp_path / "net" / name
        port.mkdir(parents=True)
        (port / "type").write_text("1\n")
        if "." not in name:
            (device / "net" / name).mkdir(parents=True)
            (port / "device").symlink_to(device)
            rdma = tmp_path / "infiniband" / name.replace("en", "roce").partition("np")[0]
            rdma.mkdir(parents=True)
            (rdma / "device").symlink_to(device)
            (rdma / "sys_image_guid").write_text("4821:0b03:0096:a5cb\n")
    addresses = [{"family": "inet", "local": "169.254.3.1", "prefixlen": 16}]
    addresses.append({"family": "inet", "local": "192.168.100.10", "prefixlen": 24})
    up = {"flags": ["UP", "LOWER_UP"]}
    rows: list[dict[str, Any]] = [{"ifname": x, **up, "addr_info": addresses} for x in names]
    rows[-1] |= {"link": names[0], "linkinfo": {"info_kind": "vlan"}}
    rows.append({"ifname": "enp9s0", **up, "master": "bond0"})
    (tmp_path / "net" / "enp9s0").mkdir()
    (tmp_path / "net" / "enp9s0" / "type").write_text("1\n")
    program = tmp_path / "ip"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(rows)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(ports, "_SYS", tmp_path)
    for place in ("00.0", "p0"):
        host = ports.describe_host("spark", [0], "192.0.2.1")
        card = "48210b030096a5cb"
        own = f"{card} {place}"
        expected = [own, f"{card} {place[:-1]}1", own, own]
        assert [port.connector for port in host.ports] == expected
        assert {port.address for port in host.ports} == {"192.168.100.10/24"}
        for name in names[:3]:
            (tmp_path / "net" / name / "phys_port_name").write_text(f"p{int('f1' in name)}\n")


def run_on_cables(machine: str, *options: str, script: Path) -> str:
    """Run a script on the ranks of emulated hosts that cables join; return what it prints."""
    command = [sys.executable, "-m", "topoplan.cli.emulate", machine, "--cables", *options, "--"]
    done = subprocess.run(
        [*command, sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=patience.seconds(150),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_namespaces
def test_emulated_hosts_find_their_cable_and_sum_over_it(tmp_path: Path) -> None:
    script, written = tmp_path / "rank.py", tmp_path / "found.json"
    script.write_text(
        "import os, random, socket, torch, torch.distributed as dist, topoplan.runtime.register\n"
        "from topoplan.runtime.ranks.cabled import find_cabling\n"
        "assert 'TOPOPLAN_EMULATED' not in os.environ\n"
        # Half of the ports are in use, others on each host.
        "with open('/proc/sys/net/ipv4/ip_local_port_range', 'w') as limits:\n"
        "    limits.write('40000 40399')\n"
        "draw = random.Random(os.environ['RANK'])\n"
        "taken = [socket.create_server(('', x)) for x in draw.sample(range(40000, 40400), 200)]\n"
        "dist.init_process_group('topo')\n"
        "tensor = torch.full((1 << 16,), float(dist.get_rank() + 1))\n"
        "dist.all_reduce(tensor)\n"
        "assert (tensor == 3).all()\n"
        "plan = topoplan.synthesize('allreduce', find_cabling().topology)\n"
        "communicator = topoplan.Communicator(plan, choose='plan')\n"
        "assert (communicator.allreduce(tensor) == 6).all()\n"
        "communicator.close()\n"
        "trained = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))\n"
        "trained.register_comm_hook(None, topoplan.ddp_hook(plan, choose='plan'))\n"
        "trained(torch.full((1, 300), float(dist.get_rank()))).sum().backward()\n"
        "assert (trained.module.weight.grad == 0.5).all()\n"
        "if not dist.get_rank():\n"
        f"    open({str(written)!r}, 'w').write(find_cabling().topology.dumps())\n"
        "dist.destroy_process_group()\n"
    )
    run_on_cables("path:2", script=script)
    topology = Topology.load(written)
    assert topology.ranks == ("gpu0", "gpu1")
    assert topology.links[0].extra["src_address"] == "10.130.0.1"


UNDER_MPIRUN = """
import os, sys, torch, torch.distributed as dist, topoplan, topoplan.runtime.register
from datetime import timedelta
from pathlib import Path
from topoplan.runtime.ranks.cabled import find_cabling
from topoplan.runtime.ranks.transport import Transport

def count_sent(pattern):
    files = Path("/sys/class/net").glob(f"{pattern}/statistics/tx_bytes")
    return sum(int(file.read_text()) for file in files)

assert not {"RANK", "MASTER_ADDR", "TOPOPLAN_EMULATED"} & set(os.environ)
assert topoplan.join_mpi()
dist.init_process_group("topo")
rank = dist.get_rank()
plan = topoplan.synthesize("allreduce", find_cabling().topology)
communicator = topoplan.Communicator(plan, choose="plan")
before = count_sent("mgmt0"), count_sent("port*")
tensor = torch.full((1 << 18,), float(rank + 1))
assert (communicator.allreduce(tensor) == 6).all()
# A rank that is done may have parts queued that its neighbour still waits for.
dist.barrier()
sent = count_sent("mgmt0") - before[0], count_sent("port*") - before[1]
# a ring of three hosts: each sends four thirds of the tensor
assert sent[0] < 50_000 and 1.3 < sent[1] / tensor.nbytes < 1.6, sent
communicator.close()
try:
    Transport(None, timedelta(seconds=20), "mpi")
except topoplan.InputError as error:
    refused = str(error)
if not rank:
    print(refused)
dist.destroy_process_group()
"""


@pytest.mark.skipif(
    (reason := why_not_mpi()) is not None, reason=f"no ranks by Open MPI here: {reason}"
)
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py (extra mpi) is not installed")
def test_ranks_of_mpirun_sum_over_cables_and_not_by_mpi(tmp_path: Path) -> None:
    """On a ring of three Open MPI's own messages end the job, those of ranks to meet too."""
    script = tmp_path / "rank.py"
    script.write_text(UNDER_MPIRUN, encoding="utf-8")
    printed = run_on_cables("ring:3", "--mpi", script=script)
    (said,) = printed.splitlines()
    assert said.startswith("transport mpi: Open MPI") and "3 hosts that cables join" in said
    assert said.endswith("mpirun --mca btl_tcp_if_include 10.99.0.0/16")
