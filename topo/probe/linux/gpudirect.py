"""Read what GPUDirect depends on from Linux: ACS, the IOMMU, peer memory, DMA-BUF, and whether this
is a guest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, Facts, keys
from ...facts.keys import HOST
from .acs import read_acs
from .files import list_folder, read_fact, show_path
from .iommu import read_iommu

# The first kernel whose RDMA drivers take DMA-BUFs (ibv_reg_dmabuf_mr); NVIDIA's GPU operator asks
# for it, too.
DMA_BUF_KERNEL = (5, 12)

_PEERMEM_MODULES = ("sys/module/nvidia_peermem", "sys/module/nv_peer_mem")
_PEERMEM_FOLDERS = ("sys/kernel/mm/memory_peers", "sys/kernel/memory_peers", "sys/memory_peers")
_AMD_OPTIONS = ("CONFIG_DMABUF_MOVE_NOTIFY=y", "CONFIG_PCI_P2PDMA=y")
_BACKPORTING = re.compile(r"\.el\d")

# Words in the vendor and product names of a guest's firmware, and the hypervisor that they stand
# for.
_HYPERVISORS = (
    ("VMware", "VMware"),
    ("VirtualBox", "VirtualBox"),
    ("Microsoft Corporation Virtual Machine", "Hyper-V"),
    ("Amazon EC2", "Amazon EC2"),
    ("Google Compute Engine", "Google Compute Engine"),
    ("Alibaba Cloud", "Alibaba Cloud"),
    ("OpenStack", "OpenStack"),
    ("Xen", "Xen"),
    ("KVM", "KVM"),
    ("QEMU", "QEMU"),
)


def read_gpudirect(root: Path) -> Facts:
    """Return `pci/BUS acs` of GPUs, NICs and the bridges above them; kernel, virtual, iommu,
    peermem, dma_buf of the host.

    `root` is the folder where the machine's `/sys`, `/proc` and `/boot` are found.
    """
    kernel = read_fact(root, root / "proc/sys/kernel/osrelease", HOST, keys.HOST_KERNEL)
    host = (
        kernel,
        _read_virtual(root),
        read_iommu(root),
        _read_peermem(root),
        _read_dma_buf(root, kernel),
    )
    return Facts((*host, *read_acs(root)))


# -- guest or not
# ----------------------------------------------------------------------------------------------------


def _read_virtual(root: Path) -> Fact:
    """Return the fact `host virtual`: the hypervisor, or `no`.

    A guest of Xen says so in `/sys/hypervisor/type`. On x86 the CPU flag `hypervisor` decides, and
    the firmware's maker and product give the name (bare-metal machines of Amazon and Google bear
    the same names); elsewhere the names alone.
    """
    xen = read_fact(root, root / "sys/hypervisor/type", HOST, keys.HOST_VIRTUAL)
    if xen.value is not None:
        return xen
    names = [
        read_fact(root, root / "sys/class/dmi/id" / name, HOST, keys.HOST_VIRTUAL)
        for name in ("sys_vendor", "product_name")
    ]
    maker = " ".join(str(fact.value) for fact in names if fact.value is not None)
    known = next((name for sign, name in _HYPERVISORS if sign in maker), None)
    cpuinfo = read_fact(root, root / "proc/cpuinfo", HOST, keys.HOST_VIRTUAL)
    flags = re.search(r"^flags\s*:(.*)$", str(cpuinfo.value), re.MULTILINE)
    if flags is not None:
        guest = "hypervisor" in flags.group(1).split()
        return Fact(
            HOST, keys.HOST_VIRTUAL, (known or "not named") if guest else "no", cpuinfo.source
        )
    if maker:
        return Fact(HOST, keys.HOST_VIRTUAL, known or "no", names[0].source)
    return Fact(
        HOST, keys.HOST_VIRTUAL, None, names[0].source, f"{names[0].missing}, and no CPU flags tell"
    )


# -- what RDMA devices need
# ------------------------------------------------------------------------------------------


def _read_peermem(root: Path) -> Fact:
    """Return the fact `host peermem`: the version of the module through which RDMA drivers reach
    GPU memory, or `no`.

    NCCL asks for nvidia_peermem, nv_mem and nv_mem_nc (transport/net_ib), RCCL for amdkfd among the
    memory peers.
    """
    folders = [root / name for name in _PEERMEM_MODULES]
    folders += [peer for name in _PEERMEM_FOLDERS for peer in list_folder(root / name)]
    for folder in folders:
        fact = read_fact(root, folder / "version", HOST, keys.HOST_PEERMEM)
        if fact.value is not None:
            return fact
        if folder.is_dir():
            return Fact(HOST, keys.HOST_PEERMEM, "of unknown version", show_path(root, folder))
    modules = root / "sys/module"
    if list_folder(modules):
        return Fact(
            HOST,
            keys.HOST_PEERMEM,
            "no",
            f"{show_path(root, modules)}: nvidia_peermem is not among the modules",
        )
    return Fact(HOST, keys.HOST_PEERMEM, None, show_path(root, modules), "no modules are listed")


def _read_dma_buf(root: Path, kernel: Fact) -> Fact:
    """Return the fact `host dma_buf`: whether RDMA drivers can reach GPU memory through DMA-BUF.

    The kernel must be 5.12 or later, and the GPU's driver must export DMA-BUFs: of NVIDIA's, the
    open kernel modules do (GPU operator documentation; CUDA 11.7 and Turing go with them), of
    AMD's, amdgpu where the kernel is built with DMABUF_MOVE_NOTIFY and PCI_P2PDMA (RCCL,
    misc/rocmwrap.cc). Red Hat's kernels take later work into earlier versions.
    """
    match = re.match(r"(\d{1,4})\.(\d{1,4})", str(kernel.value or ""))
    if match is None:
        return Fact(
            HOST,
            keys.HOST_DMA_BUF,
            None,
            kernel.source,
            kernel.missing or f"{kernel.value!r} names no kernel version",
        )
    if (int(match.group(1)), int(match.group(2))) < DMA_BUF_KERNEL:
        if _BACKPORTING.search(str(kernel.value)):
            missing = f"kernel {kernel.value} is before 5.12, but its maker may have taken DMA-BUF for RDMA into it"
            return Fact(HOST, keys.HOST_DMA_BUF, None, kernel.source, missing)
        return Fact(HOST, keys.HOST_DMA_BUF, "no", f"{kernel.source}: before 5.12")
    return next(_ask_driver(root, str(kernel.value)))


def _ask_driver(root: Path, kernel: str) -> Iterator[Fact]:
    """Yield the fact `host dma_buf` by the GPU's driver, from several sources, the best first."""
    version = read_fact(root, root / "proc/driver/nvidia/version", HOST, keys.HOST_DMA_BUF)
    if version.value is not None:
        yield Fact(
            HOST,
            keys.HOST_DMA_BUF,
            "yes" if "Open Kernel Module" in str(version.value) else "no",
            version.source,
        )
    if (root / "sys/module/nvidia").is_dir():
        taint = read_fact(root, root / "sys/module/nvidia/taint", HOST, keys.HOST_DMA_BUF)
        if taint.value is not None:
            yield Fact(
                HOST, keys.HOST_DMA_BUF, "no" if "P" in str(taint.value) else "yes", taint.source
            )
        missing = "nvidia is loaded, but neither file says whether its modules are the open ones"
        yield Fact(HOST, keys.HOST_DMA_BUF, None, f"{version.source}, {taint.source}", missing)
    if (root / "sys/module/amdgpu").is_dir():
        options = read_fact(
            root, root / f"boot/config-{Path(kernel).name}", HOST, keys.HOST_DMA_BUF
        )
        if options.value is None:
            yield options
        built = set(str(options.value).splitlines())
        yield Fact(
            HOST,
            keys.HOST_DMA_BUF,
            "yes" if built.issuperset(_AMD_OPTIONS) else "no",
            options.source,
        )
    yield Fact(
        HOST, keys.HOST_DMA_BUF, None, version.source, "no GPU driver is loaded that could be asked"
    )
