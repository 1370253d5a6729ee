"""The doctor's check of the cables between hosts, from messages between their ports (facts.py).

The check takes a DoctorView, which has the topology, and yields a Finding for each fault; the
doctor makes those in `CHECKS`.
"""

from collections.abc import Iterator

from ...errors import InputError
from ..doctor.view import Check, DoctorView, Finding
from .facts import FIELD, FabricFacts, load_facts
from .faults import find_faults
from .segments import find_hearing


def check_cables(view: DoctorView) -> Iterator[Finding]:
    """Report cables that are crossed, slow, dead in one direction, or lead to another host.

    Also subnets and addresses that two cables share, MTUs that differ along one, hosts that no
    cable reaches, and data on the management network. What keeps hosts apart is an error, all else
    a warning.
    """
    topology = view.topology
    try:
        facts = load_facts(topology.extra, topology.name)
    except InputError as error:
        yield Finding(
            "warning", "unreadable-facts", (), "the ports' facts cannot be read", (str(error),), ""
        )
        return
    assert facts is not None  # can_ask
    devices = {str(d.extra.get("host")): d.id for d in topology.devices if d.kind == "gpu"}
    for fault in find_faults(facts):
        hosts = dict.fromkeys(facts.hosts[host].name for host, _ in fault.ports)
        yield Finding(
            "error" if fault.is_fatal else "warning",
            fault.code,
            tuple(devices[host] for host in hosts if host in devices),
            fault.text,
            tuple(_describe_port(facts, port) for port in fault.ports),
            fault.advice,
        )


def _describe_port(facts: FabricFacts, key: tuple[int, str]) -> str:
    port = facts.ports[key]
    heard = ", ".join(map(facts.name_port, sorted(find_hearing(facts)[key]))) or "no port"
    return (
        f"{facts.name_port(key)}: {port.address or 'no address'}, MTU {port.mtu}, "
        f"{'up' if port.is_up else 'down'}, hears {heard}"
    )


# The checks of this file.
CHECKS = (
    Check(
        "cables between hosts",
        check_cables,
        lambda view: FIELD in view.topology.extra,
        "no hand-shakes over ports of the hosts' ranks",
    ),
)
