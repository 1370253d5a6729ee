"""What an hwloc file says beside the topology, as facts (docs/facts.md): who the GPUs are, PCI functions, cards, nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ...facts import Fact, Facts, Value
from .cpus import Cpus
from .objects import Function, Machine, bus_id, infos, os_index, pci_ids
from .pci import SOURCE, Gpu, Nic

_STATES = {"1": "1: DOWN", "2": "2: INIT", "3": "3: ARMED", "4": "4: ACTIVE", "5": "5: ACTIVE_DEFER"}
_PORT = re.compile(r"Port([0-9]{1,3})State")
_CPUINFO = {"vendor": "vendor", "familyid": "family", "modelid": "model", "name": "model_name"}
_HOST = {"name": "HostName", "kernel": "OSRelease"}


def read_facts(machine: Machine, cpus: Cpus, gpus: list[Gpu], nics: list[Nic], node_of: Mapping[str, int]) -> Facts:
    """Facts of one machine; `node_of` has the NUMA nodes of PCI functions, by address, where they are known."""
    found = [
        *_of("host", {key: machine.infos.get(name) for key, name in _HOST.items()}),
        *_of("cpuinfo", {key: cpus.nodes[0].device.extra.get(word) for word, key in _CPUINFO.items()}),
    ]
    for node in cpus.nodes:
        if node.number is not None:
            found += _of(f"numa/{node.number}", {key: node.device.extra.get(key) for key in ("cpus", "socket")})
    memory = _gpu_memory(machine)
    for i, gpu in enumerate(gpus):
        address = gpu.function.bus_id
        told: dict[str, Value | None] = {"bus_id": address, "uuid": uuid(gpu), "name": gpu.told.get("GPUModel")}
        told |= {"numa_node": node_of.get(address or ""), "gpu_numa_id": memory.get(address or "")}
        found += _of(f"gpu/{i}", told)
    functions = {f.bus_id: f for f in [*(g.function for g in gpus), *(n.function for n in nics)] if f.bus_id}
    for address, function in functions.items():
        found += _of_function(address, function, node_of)
    for nic in nics:
        found += _of_nic(nic)
    return Facts(tuple(found))


def uuid(gpu: Gpu) -> str | None:
    """The UUID that a GPU's tool told, None where it told none."""
    return gpu.told.get("NVIDIAUUID") or gpu.told.get("AMDUUID")


def port_state(told: Mapping[str, str]) -> tuple[str | None, int | None]:
    """The state of the first port that is active, of the first otherwise, as Linux writes it; and how many there are."""
    ports = sorted((int(match.group(1)), value) for name, value in told.items() if (match := _PORT.fullmatch(name)))
    if not ports:
        return None, None
    states = [value for _, value in ports]
    state = "4" if "4" in states else states[0]
    return _STATES.get(state, state), len(ports)


def _of(subject: str, told: Mapping[str, Value | None]) -> Iterator[Fact]:
    return (Fact(subject, key, value, SOURCE) for key, value in told.items() if value is not None)


def _of_function(address: str, function: Function, node_of: Mapping[str, int]) -> Iterator[Fact]:
    chain = tuple(bus_id(bridge) for bridge in function.bridges)
    told: dict[str, Value | None] = {**function.ids, "numa_node": node_of.get(address)}
    yield from _of(f"pci/{address}", told | {"bridges": chain, "root": function.root})
    for name, bridge in zip(chain, function.bridges, strict=True):
        yield from _of(f"pci/{name}", pci_ids(bridge))


def _of_nic(nic: Nic) -> Iterator[Fact]:
    if not nic.is_rdma:
        yield from _of(f"net/{nic.name}", {"bus_id": nic.function.bus_id})
        return
    state, ports = port_state(nic.told)
    yield from _of(f"rdma/{nic.name}", {"bus_id": nic.function.bus_id, "state": state, "ports": ports})
    for interface in nic.interfaces:
        yield from _of(f"net/{interface}", {"bus_id": nic.function.bus_id})


def _gpu_memory(machine: Machine) -> dict[str, int]:
    """The NUMA nodes that are the memory of GPUs, by the GPU's address."""
    found: dict[str, int] = {}
    for element in machine.numa:
        address, number = infos(element).get("PCIBusID", "").lower(), os_index(element)
        if address and number is not None:
            found[address] = number
    return found
