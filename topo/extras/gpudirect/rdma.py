"""Judge whether a NIC reaches a GPU's memory directly, as NCCL and RCCL do (ncclTopoCheckGdr).

NCCL 2.30: both NIC and GPU support it (`gdr` in its XML), and the path is P2C or better: PCIe
switches only, or C2C to the CPU of the NIC. Before compute capability 8.0, a GPU in a host with
other GPUs only receives directly, unless it has NVLink to one. RCCL: PXB or better, or PHB if both
are below a CPU of the Rome family and their bus numbers begin with the same digit. A NIC supports
it if its RDMA driver can access GPU memory: by nvidia_peermem or another memory peer, or by
DMA-BUF.

nccl_paths.py defines the kinds of paths, such as P2C. An Answer is that of one rule, or of all
together: yes, no or unknown, with its reason, evidence and advice. PairView has the machine and its
facts.
"""

from collections.abc import Iterator

from ...facts import keys
from ...facts.keys import HOST, net_subject, rdma_subject
from .nccl_paths import PCIE_PATHS, is_within
from .pcie import HERE, judge_pcie
from .verdict import Answer, decide
from .view import AMD, NVIDIA, PairView

# Compute capability (times ten) from which NCCL also reads GPU memory through the NIC.
_READS_FROM = 80
# Families, with the lowest model, of CPUs that RCCL counts as Rome: as CPUID packs them, and as
# Linux prints them.
_ROME = ((143, 49), (23, 49), (175, 0), (25, 0))

_NO_RDMA = {
    "0x15b3": "load mlx5_ib (rdma-core), so that the card shows up in /sys/class/infiniband",
    "0x8086": "load irdma, where the card is one that can",
    "0x14e4": "load bnxt_re, where the card is one that can",
    "0x1d0f": "attach an EFA interface; ENA does no RDMA",
    "0x1af4": "pass an RDMA card through to the guest; virtio does no RDMA",
    "0x1ae0": "use Google's GPUDirect-TCPX plug-in for NCCL; gVNIC does no RDMA",
    "0x1414": "load mana_ib, or use an instance with InfiniBand",
}
_PEERMEM = (
    "modprobe nvidia-peermem, or use NVIDIA's open kernel modules on Linux 5.12 or later (DMA-BUF)"
)
_AMD_PEERMEM = (
    "use a kernel with DMABUF_MOVE_NOTIFY and PCI_P2PDMA, or the peer memory of the NIC's driver "
    "package"
)
_UNPLACED = "path through a CPU; which one has the NIC is not known"
_DUMP = "run NCCL with NCCL_TOPO_DUMP_FILE and read gdr there, or " + HERE


def judge_rdma(view: PairView, gpu: str, nic: str) -> Answer:
    """Return whether a NIC reaches the memory of a GPU of its host directly; both are ids.

    The answer includes the reason, the evidence and advice.
    """
    path, maker = view.paths.find_kind(gpu, nic), view.find_maker(gpu)
    label = view.paths.find_label(gpu, nic)
    yes = Answer(
        "yes",
        "C2C to the CPU of the NIC, and both can"
        if path == "P2C"
        else "both can, and are near each other",
    )
    if maker == NVIDIA and _can_only_receive(view, gpu):
        yes = Answer(
            "yes",
            "both can, and are near each other, but before sm 80 NCCL only receives directly and "
            "sends from host memory",
            (f"sm {view.get_gpu_number(gpu, keys.GPU_SM)}, no NVLink to another GPU",),
            "NCCL_NET_GDR_READ=1 sends directly, too; measure whether that is faster",
        )
    return decide(
        (
            _UNPLACED
            if _is_unplaced(view, gpu, nic, path)
            else f"path {label}, P2C to NCCL"
            if path == "P2C"
            else f"path {label}",
        ),
        _judge(view, gpu, nic, path, maker),
        yes,
    )


def _judge(view: PairView, gpu: str, nic: str, path: str, maker: str) -> Iterator[Answer]:
    if path == "???":
        yield Answer("unknown", "the topology does not say enough of what joins them")
    # missing capability before distance: no NCCL variable helps if a device lacks GPUDirect
    yield from _judge_nic(view, nic)
    yield from _judge_gpu(view, gpu, maker)
    yield from _judge_driver(view, nic, maker)
    yield from _judge_distance(view, gpu, nic, path, maker)
    if path in PCIE_PATHS:
        both_can = view.get_attribute(gpu, "gdr") == 1 and view.get_attribute(nic, "gdr") == 1
        yield from judge_pcie(view, gpu, nic, path, from_file=both_can)


def _can_only_receive(view: PairView, gpu: str) -> bool:
    sm = view.get_gpu_number(gpu, keys.GPU_SM)
    others = [other for other in view.paths.list_in_host(gpu, "gpu") if other != gpu]
    return (
        sm is not None
        and sm < _READS_FROM
        and bool(others)
        and all(view.paths.find_kind(gpu, o) != "NVL" for o in others)
    )


# -- the two devices


def _judge_nic(view: PairView, nic: str) -> Iterator[Answer]:
    state = view.facts.get_text(rdma_subject(nic), keys.RDMA_STATE)
    if rdma_subject(nic) not in view.subjects and net_subject(nic) in view.subjects:
        yield Answer(
            "no",
            "the NIC is a network interface only, no RDMA device",
            (),
            _NO_RDMA.get(
                view.get_pci_text(nic, keys.PCI_VENDOR) or "",
                "load the card's RDMA driver, where it is one that can",
            ),
        )
    elif state is not None and "ACTIVE" not in state.upper():
        yield Answer(
            "no",
            "the NIC's port is not active; NCCL leaves it out",
            (f"port: {state}",),
            "see ibstat and the cable",
        )


def _judge_gpu(view: PairView, gpu: str, maker: str) -> Iterator[Answer]:
    gdr, name, board = view.get_attribute(gpu, "gdr"), view.get_gpu_name(gpu), view.find_board(gpu)
    lost = view.facts.get_text(view.find_subject(gpu), keys.GPU_LOST)
    if lost is not None:
        yield Answer(
            "no",
            "the GPU does not answer",
            (lost,),
            "see dmesg for its Xid, reset it or restart the machine",
        )
    if board is not None and not board.has_rdma:
        yield Answer(
            "no",
            f"NICs cannot access the memory of a {board.name}, whatever its driver says: RDMA goes "
            "through host memory, which is the same memory",
            (f"GPU: {name or board.name}",),
        )
    elif gdr == 0:
        yield Answer(
            "no",
            "the GPU does not do GPUDirect RDMA",
            ("GPU: gdr 0",),
            _AMD_PEERMEM
            if maker == AMD
            else "use a GPU that can: data centre and workstation GPUs, not GeForce",
        )
    elif gdr is not None:
        yield Answer("yes", "", ("GPU: gdr 1",))
    elif name is not None and "GeForce" in name:
        yield Answer(
            "no",
            "NVIDIA's driver does no GPUDirect RDMA with GeForce GPUs",
            (f"GPU: {name}",),
            "NCCL goes through host memory; data centre and workstation GPUs can",
        )
    elif name is None:
        yield Answer(
            "unknown", "whether the GPU can is not known", ("GPU: neither gdr nor a name",), _DUMP
        )
    else:
        yield Answer("yes", "", (f"GPU: {name}",))


def _judge_distance(view: PairView, gpu: str, nic: str, path: str, maker: str) -> Iterator[Answer]:
    if path == "DIS":
        yield Answer("no", "nothing in their host joins them but other GPUs")
    elif _is_unplaced(view, gpu, nic, path) and view.paths.starts_with_c2c(gpu, nic):
        yield Answer(
            "unknown", "NCCL would need the NIC on the GPU's own CPU, and where it is, is not known"
        )
    elif path == "PHB" and maker == AMD and _shares_rome_cpu(view, gpu, nic):
        yield Answer("yes", "", ("one CPU of the Rome sort has both",))
    elif path != "???" and not is_within(path, "P2C"):
        ends = "PXB" if maker == AMD else "PXB, or P2C with C2C"
        level = "SYS" if _is_unplaced(view, gpu, nic, path) else path
        yield Answer(
            "no",
            f"too far from each other: GPUDirect RDMA ends at {ends} by default",
            (),
            f"NCCL_NET_GDR_LEVEL={level} switches it on; measure whether that is faster",
        )


def _is_unplaced(view: PairView, gpu: str, nic: str, path: str) -> bool:
    """Return whether the path passes a CPU that is only assumed to have the NIC or the GPU."""
    assumed = any(view.paths.has_assumed_place(ident) for ident in (gpu, nic))
    return assumed and path in ("P2C", "PHB", "SYS")


def _shares_rome_cpu(view: PairView, gpu: str, nic: str) -> bool:
    buses = [view.topology.by_id[d].bus_id or "" for d in (gpu, nic)]
    if (
        not all(buses)
        or len({bus.partition(":")[2][:1] for bus in buses}) > 1
        or view.get_cpu_text(gpu, "vendor") != "AuthenticAMD"
    ):
        return False
    try:
        family, model = (int(view.get_cpu_text(gpu, x) or "") for x in ("familyid", "modelid"))
    except ValueError:
        return False
    return any(family == known and model >= least for known, least in _ROME)


# -- the driver's access to GPU memory


def _is_socket(view: PairView, nic: str) -> bool:
    """Return whether NCCL has a NIC by sockets, whose guid is its number of the interface."""
    extra = view.topology.by_id[nic].extra
    try:
        return int(str(extra["guid"]), 0) in (0, int(str(extra.get("dev", 0))))
    except (KeyError, ValueError):
        return False


def _judge_driver(view: PairView, nic: str, maker: str) -> Iterator[Answer]:
    gdr, efa = view.get_attribute(nic, "gdr"), view.get_pci_text(nic, keys.PCI_DRIVER) == "efa"
    peermem, dma_buf = (
        view.facts.get_text(HOST, key) for key in (keys.HOST_PEERMEM, keys.HOST_DMA_BUF)
    )
    advice = _AMD_PEERMEM if maker == AMD else _PEERMEM
    if gdr == 0 and _is_socket(view, nic):
        yield Answer(
            "no",
            "NCCL sends over sockets there, which do not reach GPU memory",
            ("NIC: gdr 0, no guid of its own",),
            "if the machine has RDMA cards, give NCCL their devices or its network plug-in",
        )
    elif gdr == 0:
        yield Answer("no", "the NIC's driver cannot reach GPU memory", ("NIC: gdr 0",), advice)
    elif gdr is not None:
        yield Answer("yes", "", ("NIC: gdr 1",))
    elif peermem not in (None, "no"):
        yield Answer("yes", "", (f"peer memory: {peermem}",))
    elif dma_buf == "yes":
        yield Answer("yes", "", ("DMA-BUF: yes",))
    elif efa:
        yield Answer(
            "unknown",
            "whether EFA's driver gets into GPU memory is known to its plug-in for NCCL alone",
            ("NIC: driver efa",),
            "see fi_info -p efa, and gdr in NCCL_TOPO_DUMP_FILE",
        )
    elif (peermem, dma_buf) == ("no", "no"):
        yield Answer(
            "no",
            "the NIC's driver cannot reach GPU memory",
            ("peer memory: no", "DMA-BUF: no"),
            advice,
        )
    else:
        yield Answer(
            "unknown",
            "whether the NIC's driver gets into GPU memory is not known",
            (
                f"peer memory: {peermem or view.explain_missing(HOST, keys.HOST_PEERMEM)}",
                f"DMA-BUF: {dma_buf or view.explain_missing(HOST, keys.HOST_DMA_BUF)}",
            ),
            _DUMP,
        )
