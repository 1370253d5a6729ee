"""Collect facts from an hwloc file that a topology has no field for (docs/facts.md).

A fact is a value about a subject, such as `gpu/0` or `pci/0000:3b:00.0`, with its source.
HwlocMachine, HwlocGpu and HwlocNic are what was found in the file.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...facts import Fact, Facts, Value, keys
from ...facts.keys import (
    CPUINFO,
    HOST,
    Key,
    gpu_subject,
    net_subject,
    numa_subject,
    pci_subject,
    rdma_subject,
)
from .cpus import Cpus
from .objects import HwlocMachine, PciFunction, read_bus_id, read_infos, read_os_index, read_pci_ids
from .pci import SOURCE, HwlocGpu, HwlocNic

_STATES = {
    "1": "1: DOWN",
    "2": "2: INIT",
    "3": "3: ARMED",
    "4": "4: ACTIVE",
    "5": "5: ACTIVE_DEFER",
}
_PORT = re.compile(r"Port([0-9]{1,3})State")
_CPUINFO: dict[str, Key[Any]] = {
    "vendor": keys.CPUINFO_VENDOR,
    "familyid": keys.CPUINFO_FAMILY,
    "modelid": keys.CPUINFO_MODEL,
    "name": keys.CPUINFO_MODEL_NAME,
}
# Keys of the ids that `pci_ids` gives, under the same names.
_IDS: tuple[Key[Any], ...] = (
    keys.PCI_CLASS,
    keys.PCI_VENDOR,
    keys.PCI_DEVICE,
    keys.PCI_SUBSYSTEM_VENDOR,
    keys.PCI_SUBSYSTEM_DEVICE,
)


def read_facts(
    machine: HwlocMachine,
    cpus: Cpus,
    gpus: list[HwlocGpu],
    nics: list[HwlocNic],
    node_of: Mapping[str, int],
) -> Facts:
    """Return one machine's facts; `node_of` maps PCI addresses to NUMA nodes.

    `cpus`, `gpus` and `nics` are those found in the file.
    """
    facts = [
        *_build_facts(
            HOST,
            {
                keys.HOST_NAME: machine.infos.get("HostName"),
                keys.HOST_KERNEL: machine.infos.get("OSRelease"),
            },
        ),
        *_build_facts(
            CPUINFO, {key: cpus.nodes[0].device.extra.get(word) for word, key in _CPUINFO.items()}
        ),
    ]
    for cpu in cpus.devices:
        if cpu.numa_node is not None:
            facts += _build_facts(
                numa_subject(cpu.numa_node),
                {key: cpu.extra.get(key) for key in (keys.NUMA_CPUS, keys.NUMA_SOCKET)},
            )
    memory = _find_gpu_memory(machine)
    for i, gpu in enumerate(gpus):
        address = gpu.function.bus_id
        facts += _build_facts(
            gpu_subject(i),
            {
                keys.GPU_BUS_ID: address,
                keys.GPU_UUID: find_uuid(gpu),
                keys.GPU_NAME: gpu.infos.get("GPUModel"),
                keys.GPU_NUMA_NODE: node_of.get(address or ""),
                keys.GPU_OWN_NUMA_NODE: memory.get(address or ""),
            },
        )
    functions = {
        f.bus_id: f for f in [*(g.function for g in gpus), *(n.function for n in nics)] if f.bus_id
    }
    for address, function in functions.items():
        facts += _read_function_facts(address, function, node_of)
    for nic in nics:
        facts += _read_nic_facts(nic)
    return Facts(tuple(facts))


def find_uuid(gpu: HwlocGpu) -> str | None:
    """Return the UUID that the file has for a GPU, None if it has none."""
    return gpu.infos.get("NVIDIAUUID") or gpu.infos.get("AMDUUID")


def find_port_state(infos: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Return the state of an RDMA device's first active port, else of its first.

    The second value is the number of its ports.
    `infos` are the names and values of the device's <info> elements. The state is written as in
    Linux, such as "4: ACTIVE". Both are None if no ports are listed.
    """
    ports = sorted(
        (int(match[1]), value) for name, value in infos.items() if (match := _PORT.fullmatch(name))
    )
    if not ports:
        return None, None
    state = next((value for _, value in ports if value == "4"), ports[0][1])
    return _STATES.get(state, state), len(ports)


def _build_facts(subject: str, values: Mapping[Key[Any], Value | None]) -> Iterator[Fact]:
    return (Fact(subject, key, value, SOURCE) for key, value in values.items() if value is not None)


def _read_function_facts(
    address: str, function: PciFunction, node_of: Mapping[str, int]
) -> Iterator[Fact]:
    chain = tuple(read_bus_id(bridge) for bridge in function.bridges)
    yield from _build_facts(
        pci_subject(address),
        {
            **{key: function.ids.get(key) for key in _IDS},
            keys.PCI_NUMA_NODE: node_of.get(address),
            keys.PCI_BRIDGES: chain,
            keys.PCI_ROOT: function.root,
        },
    )
    for name, bridge in zip(chain, function.bridges, strict=True):
        ids = read_pci_ids(bridge)
        yield from _build_facts(pci_subject(name), {key: ids.get(key) for key in _IDS})


def _read_nic_facts(nic: HwlocNic) -> Iterator[Fact]:
    if not nic.is_rdma:
        yield from _build_facts(net_subject(nic.name), {keys.NET_BUS_ID: nic.function.bus_id})
        return
    state, ports = find_port_state(nic.infos)
    yield from _build_facts(
        rdma_subject(nic.name),
        {
            keys.RDMA_BUS_ID: nic.function.bus_id,
            keys.RDMA_STATE: state,
            keys.RDMA_PORTS: ports,
        },
    )
    for interface in nic.interfaces:
        yield from _build_facts(net_subject(interface), {keys.NET_BUS_ID: nic.function.bus_id})


def _find_gpu_memory(machine: HwlocMachine) -> dict[str, int]:
    """Return the numbers of the NUMA nodes that are memory of GPUs, by the GPU's address."""
    node_of_gpu: dict[str, int] = {}
    for element in machine.numa:
        address = read_infos(element).get("PCIBusID", "").lower()
        if address and (number := read_os_index(element)) is not None:
            node_of_gpu[address] = number
    return node_of_gpu
