"""When groups use cables, what is measured, and how messages are divided over parallel cables."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from fractions import Fraction
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from launch import run_command
from torch._C._distributed_c10d import HashStore

from topoplan.runtime.extras.cables import finding, joining, ports
from topoplan.runtime.extras.cables.cable_gloo import CableChannel, CableGloo
from topoplan.runtime.extras.cables.joining import needs_cables
from topoplan.runtime.extras.cables.relay import loopback_of
from topoplan.runtime.extras.cables.rounds import plan_rounds
from topoplan.runtime.ranks.cabled import may_be_cabled
from topoplan.topo.extras.cables import (
    FabricFacts,
    HostFacts,
    PortAnswer,
    PortFacts,
    Segment,
    SegmentBundle,
)
from topoplan.topo.graph import Device, Link, Topology, both_directions


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


@pytest.mark.parametrize("what", ["a cable", "a subnet used twice", "unplugged", "one network"])
def test_why_cables_are_not_used_is_said_by_rank_0(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else all that people see is the error of gloo, which does not reach the other hosts."""
    networks = {"a cable": [[0, 1]], "a subnet used twice": [[0, 1], [2, 3]], "unplugged": [[0, 1]]}
    facts = make_facts(2 + 2 * ("used" in what), networks.get(what, []), opens_management=False)
    if what == "a subnet used twice":
        text = str(msgspec.json.encode(facts), "utf-8").replace("10.1.1.", "10.1.0.")
        facts = msgspec.json.decode(text, type=FabricFacts)
    if what == "unplugged":
        alone = HostFacts("h2", (2,), (PortFacts("port0", is_up=False),))
        facts = msgspec.structs.replace(facts, hosts=(*facts.hosts, alone))

    def collect(*_: object, is_wanted: Callable[[FabricFacts], bool]) -> FabricFacts:
        return facts if is_wanted(facts) else FabricFacts(facts.hosts)

    used: list[object] = []
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("TOPOPLAN_HOST", "h0")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(joining, "collect_facts", collect)
    monkeypatch.setattr(joining, "CableRelay", lambda rank, addresses, key: used.append(addresses))
    with suppress(AttributeError):  # the relay is none
        joining.join_by_cables(HashStore(), 0, len(facts.hosts), timedelta(seconds=5))
    expected = {
        "a subnet used twice": "h2:port1, h3:port1: the subnet 10.1.0.0/24 is used on 2 cables",
        "unplugged": "h2 (rank 2) is alone: h2:port0 is down",
    }
    assert expected.get(what, "") in caplog.text
    assert caplog.text.count("cables are not used: ") == (what in expected)
    # Relays listen on cables, not on the network of the rendezvous.
    assert used == ([["10.1.0.1"]] if what == "a cable" else [])


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


def write_interface(folder: Path, name: str, lower: tuple[str, ...] = (), **facts: str) -> Path:
    """Write what a kernel's folder /sys/class/net says of an interface that is up."""
    port = folder / "net" / name
    port.mkdir(parents=True)
    index = str(len(list(port.parent.iterdir())))
    for file, text in {"type": "1", "ifindex": index, "flags": "0x1003", "carrier": "1"}.items():
        (port / file).write_text(f"{facts.get(file, text)}\n")
    for below in lower:
        (port / f"lower_{below}").symlink_to(port.parent / below)
        (port.parent / below / "upper").mkdir(exist_ok=True)
    return port


def describe(monkeypatch: pytest.MonkeyPatch, folder: Path, **addresses: str) -> HostFacts:
    """Return the facts of a host with such a folder, and addresses by interface ("a b")."""
    listed = {name: [IPv4Interface(x) for x in of.split()] for name, of in addresses.items()}
    monkeypatch.setattr(ports, "_SYS", folder)
    monkeypatch.setattr(ports, "list_addresses", lambda: listed)
    return ports.describe_host("spark", [0], "192.0.2.1")


def test_interfaces_of_one_connector_are_known_by_the_driver_s_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enp1s0f0np0.7")
    for name in names:
        pci = f"{2 * ('P2' in name):04}:01:00.{int('f1' in name)}"
        device = tmp_path / "devices" / pci
        port = write_interface(tmp_path, name, names[:1] if "." in name else ())
        if "." not in name:
            (device / "net" / name).mkdir(parents=True)
            (port / "device").symlink_to(device)
            rdma = tmp_path / "infiniband" / name.replace("en", "roce").partition("np")[0]
            rdma.mkdir(parents=True)
            (rdma / "device").symlink_to(device)
            (rdma / "sys_image_guid").write_text("4821:0b03:0096:a5cb\n")
    addresses = dict.fromkeys(names, "10.0.0.9/32 169.254.3.1/16 192.168.100.10/24")
    for place in ("00.0", "p0"):
        host = describe(monkeypatch, tmp_path, **addresses)
        own = f"48210b030096a5cb {place}"
        assert [port.name for port in host.ports] == list(names)
        assert [port.connector for port in host.ports] == [own, f"{own[:-1]}1", own, own]
        assert [port.rdma for port in host.ports] == [
            "rocep1s0f0",
            "rocep1s0f1",
            "roceP2p1s0f0",
            "rocep1s0f0",
        ]
        assert {port.address for port in host.ports} == {"192.168.100.10/24"}
        assert all(port.is_up for port in host.ports)
        for name in names[:3]:
            (tmp_path / "net" / name / "phys_port_name").write_text(f"p{int('f1' in name)}\n")


def test_interfaces_without_a_cable_of_their_own_are_no_ports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_interface(tmp_path, "lo", type="772")
    for name in ("eth0", "eth1", "eth2"):
        (write_interface(tmp_path, name) / "master").mkdir()
    write_interface(tmp_path, "bond0", ("eth0", "eth1"))
    write_interface(tmp_path, "br0", ("eth2",))
    write_interface(tmp_path, "docker0", carrier="0")
    write_interface(tmp_path, "ztabcdef")
    write_interface(tmp_path, "eth3", carrier="0")
    (tmp_path / "net" / "bonding_masters").write_text("bond0\n")
    addresses = {name: f"10.0.{i}.1/24" for i, name in enumerate(("bond0", "br0", "docker0"))}
    host = describe(monkeypatch, tmp_path, lo="127.0.0.1/8", **addresses)
    assert [(x.name, x.address, x.is_up, x.connector) for x in host.ports] == [
        ("bond0", "10.0.0.1/24", True, ""),
        ("br0", "10.0.1.1/24", True, "port eth2"),
        ("eth3", "", False, ""),
    ]


def test_addresses_are_the_kernel_s_own() -> None:
    assert ports.list_addresses()["lo"][0] == IPv4Interface("127.0.0.1/8")


@pytest.mark.parametrize("boots", [("x", "x", "x"), ("x", "y", "x")])
def test_hosts_with_equal_names_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, boots: tuple[str, ...]
) -> None:
    store, own = HashStore(), threading.local()
    monkeypatch.setattr(finding, "name_host", lambda: "ubuntu")
    monkeypatch.setattr(finding, "name_boot", lambda: boots[own.rank])

    def collect(rank: int) -> FabricFacts:
        own.rank = rank
        launch = finding.PortLaunch(store, rank, 3, "", timedelta(seconds=20))
        return finding.collect_facts(launch, is_wanted=lambda _: False)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(collect, range(3)))
    apart = [("ubuntu-rank0", (0, 2)), ("ubuntu-rank1", (1,))]
    for facts in found:
        hosts = [(host.name, host.ranks) for host in facts.hosts]
        assert hosts == (apart if "y" in boots else [("ubuntu", (0, 1, 2))])


def run_on_cables(machine: str, *options: str, script: Path) -> str:
    """Run a script on the ranks of emulated hosts that cables join; return what it prints."""
    command = [
        sys.executable,
        "-m",
        "topoplan.cli.extras.emulate",
        machine,
        "--cables",
        *options,
        "--",
    ]
    done = run_command(*command, sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    return done.stdout


BOXES = """
import os, random, socket, torch, torch.distributed as dist, topoplan.runtime.register
from topoplan.runtime.ranks.cabled import find_cabling, set_cabling

assert "TOPOPLAN_EMULATED" not in os.environ
if os.environ["LOCAL_RANK"] == "0":
    # Half of the ports are in use, others on each host.
    with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as limits:
        limits.write("40000 40399")
    draw = random.Random(os.environ["RANK"])
    taken = [socket.create_server(("", x)) for x in draw.sample(range(40000, 40400), 200)]
for attempt in range(2):  # as torchrun restarts ranks, in one store
    set_cabling(None)
    dist.init_process_group("topo")
    if not attempt:
        dist.destroy_process_group()
rank = dist.get_rank()
tensor = torch.full((1 << 16,), float(rank + 1))
dist.all_reduce(tensor)
assert (tensor == 10).all()
topology = find_cabling().topology
assert topology.ranks == ("box0/rank0", "box1/rank1", "box0/rank2", "box1/rank3")
plan = topoplan.synthesize("allreduce", topology, "ring")
communicator = topoplan.Communicator(plan, choose="plan")
assert (communicator.allreduce(tensor) == 40).all()
communicator.close()
trained = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
trained.register_comm_hook(None, topoplan.ddp_hook(plan, choose="plan"))
trained(torch.full((1, 300), float(rank))).sum().backward()
assert (trained.module.weight.grad == 1.5).all()
if not rank:
    print(topology.dumps())
dist.destroy_process_group()
"""


@pytest.mark.network("namespaces")
def test_several_ranks_on_each_host_sum_over_its_cable(tmp_path: Path) -> None:
    """Ranks take turns over the hosts, as with mpirun --map-by node."""
    script, machine = tmp_path / "rank.py", tmp_path / "boxes.json"
    script.write_text(BOXES, encoding="utf-8")
    gpus = tuple(Device(f"gpu{i}", extra={"host": f"box{i % 2}"}) for i in range(4))
    cable = both_directions(Link("gpu0", "gpu1", Fraction(1)))
    machine.write_text(Topology("boxes", gpus, tuple(cable)).dumps(), encoding="utf-8")
    topology = Topology.loads(run_on_cables(str(machine), script=script))
    (link,) = [x for x in topology.links if x.src == "box0/out"]
    assert (link.dst, link.extra["src_address"]) == ("box1/in", "10.130.0.1")


UNTIL_CUT = """
import torch, torch.distributed as dist, topoplan.runtime.register
from datetime import timedelta
from topoplan.runtime.ranks.launch import announce_ready

dist.init_process_group("topo", timeout=timedelta(seconds=30))
dist.group.WORLD.set_timeout(timedelta(seconds=6))
announce_ready()
try:
    while True:  # in small ones, which stay with gloo
        dist.all_reduce(torch.ones(8))
except RuntimeError as error:
    print(str(error).replace("\\n", " "), flush=True)
"""


@pytest.mark.network("namespaces")
def test_a_cut_cable_is_named_though_a_stock_collective_does_not_know_it(tmp_path: Path) -> None:
    """Relays accept connections for ranks that they do not reach."""
    script = tmp_path / "rank.py"
    script.write_text(UNTIL_CUT, encoding="utf-8")
    printed = run_on_cables("ring:3", "--inject", "cut gpu0-gpu1 at 0.2s", script=script)
    errors = printed.splitlines()
    assert len(errors) == 3
    for line in errors:
        assert "link gpu0 - gpu1 (gpu0:port0 to gpu1:port0) carries nothing" in line


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


@pytest.mark.network("MPI between namespaces", "mpi4py")
def test_ranks_of_mpirun_sum_over_cables_and_not_by_mpi(tmp_path: Path) -> None:
    """On a ring of three Open MPI's own messages end the job, those of ranks to meet too."""
    script = tmp_path / "rank.py"
    script.write_text(UNDER_MPIRUN, encoding="utf-8")
    printed = run_on_cables("ring:3", "--mpi", script=script)
    (said,) = printed.splitlines()
    assert said.startswith("transport mpi: Open MPI") and "3 hosts that cables join" in said
    assert said.endswith("mpirun --mca btl_tcp_if_include 10.99.0.0/16")
