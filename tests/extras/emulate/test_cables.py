"""topo-emulate --cables: the plan on paper, and what emulated hosts find of it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from topoplan.runtime.extras.emulate.cabling import plan_cabling
from topoplan.topo.errors import InfeasibleError, InputError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset


def join(hosts: int, pairs: list[tuple[str, str]], switches: tuple[str, ...] = ()) -> Topology:
    devices = [Device(f"h{i}") for i in range(hosts)]
    devices += [Device(switch, "switch", "network") for switch in switches]
    links = [x for a, b in pairs for x in both_directions(Link(a, b, Fraction(1)))]
    return Topology("joined", tuple(devices), tuple(links))


def test_each_cable_has_a_subnet_and_ports_of_its_own() -> None:
    plan = plan_cabling(preset("ring:4"), Fraction(8_000_000))
    assert plan.hosts == tuple(f"gpu{i}" for i in range(4))
    ports = [port for x in plan.cables for port in (x.a, x.b)]
    assert len({(port.device, port.name) for port in ports}) == len(ports) == 8
    assert len({port.address for port in ports}) == 8
    for x in plan.cables:
        assert x.a.address.rpartition(".")[0] == x.b.address.rpartition(".")[0]
        assert (x.rate_ab, x.rate_ba) == (8_000_000, 8_000_000)


def test_parallel_links_are_parallel_cables_and_switches_one_subnet() -> None:
    assert len(plan_cabling(join(2, [("h0", "h1"), ("h0", "h1")])).cables) == 2
    plan = plan_cabling(join(3, [("h0", "s"), ("h1", "s"), ("h2", "s")], ("s",)))
    addresses = [x.a.address or x.b.address for x in plan.cables]
    assert addresses == ["10.64.0.1/24", "10.64.0.2/24", "10.64.0.3/24"]


def test_gpus_with_one_host_share_it() -> None:
    ring = preset("ring:4")
    hosts = tuple(Device(d.id, extra={"host": f"box{i // 2}"}) for i, d in enumerate(ring.devices))
    plan = plan_cabling(Topology("boxes", hosts, ring.links))
    assert (plan.hosts, plan.seats, len(plan.cables)) == (("box0", "box1"), (0, 0, 1, 1), 2)


def test_machines_that_cables_do_not_make_are_refused() -> None:
    loop = [("h0", "s"), ("h1", "t"), ("s", "t"), ("t", "u"), ("u", "s")]
    with pytest.raises(InfeasibleError, match="loop"):
        plan_cabling(join(2, loop, ("s", "t", "u")))
    one = Topology("one", (Device("a", extra={"host": "x"}), Device("b", extra={"host": "x"})), ())
    with pytest.raises(InputError, match="1 hosts"):
        plan_cabling(one)
    half = Topology("half", (Device("a"), Device("b")), (Link("a", "b"),))
    with pytest.raises(InputError, match="both directions"):
        plan_cabling(half)
