"""What an hwloc file says beside the topology, as facts (docs/facts.md): who the GPUs are, PCI functions, cards, nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ... import fact_keys as keys
from ...fact_keys import CPUINFO, HOST, Key, gpu_subject, net_subject, numa_subject, pci_subject, rdma_subject
from ...facts import Fact, Facts, Value
from .cpus import Cpus
from .objects import Function, Machine, bus_id, infos, os_index, pci_ids
from .pci import SOURCE, Gpu, Nic

_STATES = {"1": "1: DOWN", "2": "2: INIT", "3": "3: ARMED", "4": "4: ACTIVE", "5": "5: ACTIVE_DEFER"}
_PORT = re.compile(r"Port([0-9]{1,3})State")
_CPUINFO: dict[str, Key[Any]] = {
    "vendor": keys.CPUINFO_VENDOR,
    "familyid": keys.CPUINFO_FAMILY,
    "modelid": keys.CPUINFO_MODEL,
    "name": keys.CPUINFO_MODEL_NAME,
}
_HOST = {keys.HOST_NAME: "HostName", keys.HOST_KERNEL: "OSRelease"}
_IDS: tuple[Key[Any], ...] = (
    keys.PCI_CLASS,
    keys.PCI_VENDOR,
    keys.PCI_DEVICE,
    keys.PCI_SUBSYSTEM_VENDOR,
    keys.PCI_SUBSYSTEM_DEVICE,
)
"""Keys of the ids that `pci_ids` gives, under the same names."""


def read_facts(machine: Machine, cpus: Cpus, gpus: list[Gpu], nics: list[Nic], node_of: Mapping[str, int]) -> Facts:
    """Facts of one machine; `node_of` has the NUMA nodes of PCI functions, by address, where they are known."""
    found = [
        *_of(HOST, {key: machine.infos.get(name) for key, name in _HOST.items()}),
        *_of(CPUINFO, {key: cpus.nodes[0].device.extra.get(word) for word, key in _CPUINFO.items()}),
    ]
    for node in cpus.nodes:
        if node.number is not None:
            found += _of(
                numa_subject(node.number),
                {key: node.device.extra.get(key) for key in (keys.NUMA_CPUS, keys.NUMA_SOCKET)},
            )
    memory = _gpu_memory(machine)
    for i, gpu in enumerate(gpus):
        address = gpu.function.bus_id
        told: dict[Key[Any], Value | None] = {keys.GPU_BUS_ID: address, keys.GPU_UUID: uuid(gpu)}
        told |= {keys.GPU_NAME: gpu.told.get("GPUModel"), keys.GPU_NUMA_NODE: node_of.get(address or "")}
        told |= {keys.GPU_OWN_NUMA_NODE: memory.get(address or "")}
        found += _of(gpu_subject(i), told)
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


def _of(subject: str, told: Mapping[Key[Any], Value | None]) -> Iterator[Fact]:
    return (Fact(subject, key, value, SOURCE) for key, value in told.items() if value is not None)


def _of_function(address: str, function: Function, node_of: Mapping[str, int]) -> Iterator[Fact]:
    chain = tuple(bus_id(bridge) for bridge in function.bridges)
    told: dict[Key[Any], Value | None] = {key: function.ids.get(key) for key in _IDS}
    told |= {keys.PCI_NUMA_NODE: node_of.get(address), keys.PCI_BRIDGES: chain, keys.PCI_ROOT: function.root}
    yield from _of(pci_subject(address), told)
    for name, bridge in zip(chain, function.bridges, strict=True):
        ids = pci_ids(bridge)
        yield from _of(pci_subject(name), {key: ids.get(key) for key in _IDS})


def _of_nic(nic: Nic) -> Iterator[Fact]:
    if not nic.is_rdma:
        yield from _of(net_subject(nic.name), {keys.NET_BUS_ID: nic.function.bus_id})
        return
    state, ports = port_state(nic.told)
    told: dict[Key[Any], Value | None] = {
        keys.RDMA_BUS_ID: nic.function.bus_id,
        keys.RDMA_STATE: state,
        keys.RDMA_PORTS: ports,
    }
    yield from _of(rdma_subject(nic.name), told)
    for interface in nic.interfaces:
        yield from _of(net_subject(interface), {keys.NET_BUS_ID: nic.function.bus_id})


def _gpu_memory(machine: Machine) -> dict[str, int]:
    """The NUMA nodes that are the memory of GPUs, by the GPU's address."""
    found: dict[str, int] = {}
    for element in machine.numa:
        address, number = infos(element).get("PCIBusID", "").lower(), os_index(element)
        if address and number is not None:
            found[address] = number
    return found
