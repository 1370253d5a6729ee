"""Names of facts: the keys of each subject, declared once, and functions that spell subjects.

A key is a text, so that facts are plain strings in JSON, but product code takes keys from here
only: a mistyped one does not import, and one that is not declared does not type-check.
The site lists all of them on the page docs/facts.md, for readers of the JSON.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

T = TypeVar("T", int, str, tuple[str, ...])


class Key(str, Generic[T]):
    """The key of a fact, which says what is asked about a subject; the value has type `T`.

    The key is the text that appears in JSON; `subject` and `meaning` document its subjects and its
    value. `subject` is a pattern of docs/facts.md such as `gpu/N/nvlink/L`. Numbers may arrive as
    text ("16"), or, if a tool gives a list of nodes instead of one, not as a number at all;
    `Facts.get_number` tells these cases apart.
    """

    subject: str
    meaning: str

    def __new__(cls, subject: str, name: str, meaning: str) -> Key[T]:
        """Declare the key `name` of subjects of one kind."""
        key = super().__new__(cls, name)
        key.subject, key.meaning = subject, meaning
        return key


# -- subjects

# Subjects of which there is one: the driver's library, the machine, its CPUs.
NVML, HOST, CPUINFO = "nvml", "host", "cpuinfo"

# First parts of subjects of which there are several; `Facts.list_names` gives their second parts.
GPU, PCI, NUMA, RDMA, NET = "gpu", "pci", "numa", "rdma", "net"

# How sources begin: NVML's functions, and the command that prints statuses of P2P, with its flag.
NVML_FUNCTION, TOPO_P2P = "nvml", "nvidia-smi topo -p2p"

# Third parts of subjects of a GPU's links and of pairs of GPUs.
NVLINK, XGMI, P2P = "nvlink", "xgmi", "p2p"

_OF_A_HOST = re.compile(r"(host[0-9]{1,6})/(.+)", re.DOTALL)


def qualify(host: str, name: str) -> str:
    """Return a fact's subject or a device id qualified with its host, such as `host0/gpu/3`."""
    return f"{host}/{name}"


def split_host(name: str) -> tuple[str, str]:
    """Split a subject or device id such as `host0/gpu/3` into the host and the rest.

    The host is empty for any other text.
    """
    match = _OF_A_HOST.fullmatch(name)
    return (match[1], match[2]) if match else ("", name)


def gpu_subject(index: object) -> str:
    """Return the subject `gpu/N` of a GPU's facts; N is its index in NVML or another tool."""
    return f"{GPU}/{index}"


def nvlink_subject(index: object, link: object) -> str:
    """Return the subject `gpu/N/nvlink/L` of a GPU's NVLink, by GPU index and link number."""
    return f"{GPU}/{index}/{NVLINK}/{link}"


def xgmi_subject(index: object, peer: object) -> str:
    """Return the subject `gpu/N/xgmi/M` of the xGMI links from GPU N to GPU M, by their indices."""
    return f"{GPU}/{index}/{XGMI}/{peer}"


def p2p_subject(index: object, peer: object) -> str:
    """Return the subject `gpu/N/p2p/M` of peer-to-peer access from GPU N to GPU M, by indices."""
    return f"{GPU}/{index}/{P2P}/{peer}"


def normalize_bus_id(written: str) -> str:
    """Return a PCI address as Linux writes it: `00000000:3B:00.0` becomes `0000:3b:00.0`."""
    domain, colon, rest = written.strip().lower().partition(":")
    return (
        f"{domain.lstrip('0').rjust(4, '0')}:{rest}"
        if colon and ":" in rest
        else written.strip().lower()
    )


def pci_subject(bus_id: object) -> str:
    """Return the subject `pci/BUS` of a PCI function by its address, as Linux writes it.

    For example, `pci/0000:3b:00.0`.
    """
    return f"{PCI}/{bus_id}"


def numa_subject(node: object) -> str:
    """Return the subject `numa/N` of a NUMA node by its number."""
    return f"{NUMA}/{node}"


def rdma_subject(name: object) -> str:
    """Return the subject `rdma/NAME` of an RDMA device by its name, such as mlx5_0."""
    return f"{RDMA}/{name}"


def net_subject(name: object) -> str:
    """Return the subject `net/NAME` of a network interface by its name, such as eth0."""
    return f"{NET}/{name}"


def parse_pair(subject: str, kind: str) -> tuple[str, str] | None:
    """Return N and X, as text, of a subject `gpu/N/KIND/X`, such as `gpu/0/p2p/1` if `kind` is p2p.

    X is the other GPU's index, or the link's number if `kind` is nvlink. Return None for any other
    subject.
    """
    parts = subject.split("/")
    return (parts[1], parts[3]) if len(parts) == 4 and (parts[0], parts[2]) == (GPU, kind) else None


# -- the driver's library

NVML_LIBRARY = Key[str]("nvml", "library", "name of the library, missing where it does not answer")
NVML_DRIVER = Key[str]("nvml", "driver", "version of the driver")
NVML_VERSION = Key[str]("nvml", "version", "version of NVML")
NVML_CUDA_VERSION = Key[str]("nvml", "cuda_version", "CUDA version of the driver, such as 12.4")
NVML_COUNT = Key[int]("nvml", "count", "number of GPUs")
NVML_CONFIDENTIAL = Key[str]("nvml", "confidential_computing", "on, off")

# -- a GPU

GPU_BUS_ID = Key[str]("gpu/N", "bus_id", "PCI address, as Linux writes it")
GPU_UUID = Key[str]("gpu/N", "uuid", "UUID, as its driver writes it")
GPU_NAME = Key[str]("gpu/N", "name", "model")
GPU_SM = Key[int]("gpu/N", "sm", "compute capability times ten: 90")
GPU_GCN = Key[str]("gpu/N", "gcn", "AMD's architecture: gfx942")
GPU_PCIE_MAX_GENERATION = Key[int](
    "gpu/N", "pcie_max_generation", "PCIe generation that the GPU is made for"
)
GPU_PCIE_MAX_WIDTH = Key[int]("gpu/N", "pcie_max_width", "PCIe lanes that the GPU is made for")
GPU_PCIE_CURRENT_GENERATION = Key[int]("gpu/N", "pcie_current_generation", "PCIe generation now")
GPU_PCIE_CURRENT_WIDTH = Key[int]("gpu/N", "pcie_current_width", "PCIe lanes now")
GPU_UTILIZATION = Key[int](
    "gpu/N", "utilization", "percent of the last second or so in which a kernel ran"
)
GPU_NUMA_NODE = Key[int](
    "gpu/N", "numa_node", "nearest NUMA node (a text such as 0-1 where several are given)"
)
GPU_OWN_NUMA_NODE = Key[int]("gpu/N", "gpu_numa_id", "NUMA node that the GPU's own memory is")
GPU_CPU_AFFINITY = Key[str]("gpu/N", "cpu_affinity", "nearest CPUs: 0-19,40-59")
GPU_MIG = Key[str]("gpu/N", "mig", "on, off")
GPU_MIG_DEVICES = Key[tuple[str, ...]]("gpu/N", "mig_devices", "UUIDs of its MIG devices")
GPU_NVLINK_COUNT = Key[int]("gpu/N", "nvlink_count", "NVLinks that the GPU says it has")
GPU_C2C_COUNT = Key[int]("gpu/N", "c2c_count", "active NVLink-C2C links")
GPU_C2C_MBps = Key[int](
    "gpu/N", "c2c_MBps", "MB/s of all NVLink-C2C links together in one direction"
)
GPU_FABRIC_STATE = Key[str](
    "gpu/N", "fabric_state", "completed, not started, in progress, not supported"
)
GPU_FABRIC_CLUSTER = Key[str]("gpu/N", "fabric_cluster", "UUID of the cluster")
GPU_FABRIC_CLIQUE = Key[int]("gpu/N", "fabric_clique", "number of the clique")
GPU_FABRIC_HEALTH = Key[str](
    "gpu/N", "fabric_health", "healthy, or what is wrong: degraded bandwidth, unhealthy routes ..."
)
# How the reason begins why a fabric whose registration ended with an error has no state.
FABRIC_FAILED = "registration with the fabric failed"
GPU_LOST = Key[str]("gpu/N", "lost", "why the GPU does not answer; known only where it does not")
GPU_DENIED = Key[str](
    "gpu/N", "denied", "why this process may not use the GPU; known only where it may not"
)

NVLINK_STATE = Key[str]("gpu/N/nvlink/L", "state", "active, inactive")
NVLINK_REMOTE_KIND = Key[str]("gpu/N/nvlink/L", "remote_kind", "gpu, cpu, switch")
NVLINK_REMOTE_BUS_ID = Key[str]("gpu/N/nvlink/L", "remote_bus_id", "PCI address of the other end")
NVLINK_VERSION = Key[int](
    "gpu/N/nvlink/L", "version", "NVML's number of the version (nvmlNvlinkVersion_t)"
)
NVLINK_SPEED_MBps = Key[int]("gpu/N/nvlink/L", "speed_MBps", "MB/s in one direction")

XGMI_COUNT = Key[int]("gpu/N/xgmi/M", "count", "number of links")
XGMI_SPEED_MBps = Key[int]("gpu/N/xgmi/M", "speed_MBps", "MB/s of one link in one direction")

P2P_READ = Key[str]("gpu/N/p2p/M", "read", "ok, or why GPU N may not read GPU M's memory")
P2P_WRITE = Key[str]("gpu/N/p2p/M", "write", "ok, or why GPU N may not write GPU M's memory")
P2P_ATOMICS = Key[str]("gpu/N/p2p/M", "atomics", "ok, or why there are no atomics")
P2P_NVLINK = Key[str]("gpu/N/p2p/M", "nvlink", "ok, or why there is no P2P over NVLink")
P2P_PCIE = Key[str]("gpu/N/p2p/M", "pcie", "ok, or why there is no P2P over PCI Express")
P2P_ANCESTOR = Key[str](
    "gpu/N/p2p/M", "ancestor", "where their paths meet, in the words of NVML or nvidia-smi"
)

# -- PCI functions

PCI_CLASS = Key[str]("pci/BUS", "class", "hexadecimal, as Linux writes it: 0x030200")
PCI_VENDOR = Key[str]("pci/BUS", "vendor", "hexadecimal: 0x10de")
PCI_DEVICE = Key[str]("pci/BUS", "device", "hexadecimal")
PCI_SUBSYSTEM_VENDOR = Key[str]("pci/BUS", "subsystem_vendor", "hexadecimal")
PCI_SUBSYSTEM_DEVICE = Key[str]("pci/BUS", "subsystem_device", "hexadecimal")
PCI_MAX_LINK_SPEED = Key[str](
    "pci/BUS", "max_link_speed", "transfer rate that the link is made for: 16.0 GT/s PCIe"
)
PCI_MAX_LINK_WIDTH = Key[int]("pci/BUS", "max_link_width", "lanes that the link is made for")
PCI_CURRENT_LINK_SPEED = Key[str]("pci/BUS", "current_link_speed", "transfer rate now")
PCI_CURRENT_LINK_WIDTH = Key[int]("pci/BUS", "current_link_width", "lanes now")
PCI_NUMA_NODE = Key[int]("pci/BUS", "numa_node", "nearest NUMA node")
PCI_BRIDGES = Key[tuple[str, ...]](
    "pci/BUS", "bridges", "addresses of the bridges above, from the top"
)
PCI_ROOT = Key[str]("pci/BUS", "root", "root complex: pci0000:00")
PCI_ACS = Key[str](
    "pci/BUS", "acs", "off, or the controls that are switched on, separated by commas"
)
PCI_DRIVER = Key[str]("pci/BUS", "driver", "kernel driver bound to the function")
PCI_DEVICES = Key[str]("pci", "devices", "missing where no PCI functions, or not all, are listed")

# -- the machine

HOST_NAME = Key[str]("host", "name", "host name")
HOST_KERNEL = Key[str]("host", "kernel", "version of the kernel")
HOST_VIRTUAL = Key[str]("host", "virtual", "name of the hypervisor, `not named`, or `no`")
HOST_CONTAINER = Key[str]("host", "container", "kind of the container, or `no`")
HOST_IOMMU = Key[str]("host", "iommu", "off, passthrough, translating")
HOST_PEERMEM = Key[str](
    "host", "peermem", "version of nvidia_peermem or another memory peer, or `no`"
)
HOST_DMA_BUF = Key[str]("host", "dma_buf", "yes, no")

CPUINFO_VENDOR = Key[str]("cpuinfo", "vendor", "vendor of the CPUs: GenuineIntel")
CPUINFO_FAMILY = Key[int]("cpuinfo", "family", "family as CPUID has it")
CPUINFO_MODEL = Key[int]("cpuinfo", "model", "model as CPUID has it")
CPUINFO_MODEL_NAME = Key[str]("cpuinfo", "model_name", "name of the model")
CPUINFO_IMPLEMENTER = Key[str]("cpuinfo", "implementer", "implementer of ARM CPUs: 0x41")
CPUINFO_TEXT = Key[str]("cpuinfo", "text", "missing where /proc/cpuinfo cannot be read")

NUMA_CPUS = Key[str]("numa/N", "cpus", "CPUs of the node: 0-19,40-59")
NUMA_SOCKET = Key[int]("numa/N", "socket", "number of the socket")
NUMA_NODES = Key[str]("numa", "nodes", "missing where no NUMA nodes are listed")

# -- cards

RDMA_BUS_ID = Key[str]("rdma/NAME", "bus_id", "PCI address")
RDMA_STATE = Key[str]("rdma/NAME", "state", "state of the port, as Linux writes it: 4: ACTIVE")
RDMA_LINK_LAYER = Key[str]("rdma/NAME", "link_layer", "InfiniBand, Ethernet")
RDMA_SPEED_Mbps = Key[int](
    "rdma/NAME", "speed_Mbps", "Mb/s of the first active port, of the first otherwise"
)
RDMA_PORTS = Key[int]("rdma/NAME", "ports", "number of ports")

NET_BUS_ID = Key[str]("net/NAME", "bus_id", "PCI address")
NET_STATE = Key[str]("net/NAME", "state", "state of the interface: up, down")
NET_SPEED_Mbps = Key[int]("net/NAME", "speed_Mbps", "Mb/s")
