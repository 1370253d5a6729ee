"""Read the settings of Linux on which GPUDirect depends, as facts of the probed machine.

These are ACS, the IOMMU, peer memory and DMA-BUF. A fact has a subject (`host`, or a PCI function
as `pci/BUS`), a key, a source, and a value or the reason why it is missing.

Access Control Services (ACS) decide whether a PCI Express port sends traffic between two devices up
to the root complex. The enabled controls are in the ACS extended capability of a function's
configuration space, of which only root may read more than the first 64 bytes (PCI Express base
specification, 7.7.11; bits as in Linux's pci_regs.h).
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...facts import Fact, Facts, keys
from ...facts.keys import HOST, pci_subject
from ...probe.linux.host import read_kernel
from ...probe.linux.sysfs import (
    list_bridges,
    list_folder,
    list_gpus_and_nics,
    read_fact,
    read_start,
    show_path,
)

# The first kernel whose RDMA drivers accept DMA-BUFs (ibv_reg_dmabuf_mr); NVIDIA's GPU operator
# requires it, too.
DMA_BUF_KERNEL = (5, 12)

_PEERMEM_MODULES = ("sys/module/nvidia_peermem", "sys/module/nv_peer_mem")
_PEERMEM_FOLDERS = ("sys/kernel/mm/memory_peers", "sys/kernel/memory_peers", "sys/memory_peers")
_AMD_OPTIONS = ("CONFIG_DMABUF_MOVE_NOTIFY=y", "CONFIG_PCI_P2PDMA=y")
_BACKPORTING = re.compile(r"\.el\d")

# Names of the bits of the ACS control register, from bit 0.
CONTROLS = (
    "source validation",
    "translation blocking",
    "request redirect",
    "completion redirect",
    "upstream forwarding",
    "egress control",
    "direct translated",
)
# From the PCI Express specification: the id of the ACS capability, and in bytes the offset of its
# control register, the length of a capability's header, and the bounds of the extended space.
_ACS, _CONTROL, _HEADER, _FIRST, _END = 0x000D, 6, 4, 0x100, 0x1000
# Bytes of configuration space that Linux shows to users without privileges.
_UNPRIVILEGED = 64
_BY_TYPE = {"DMA": "translating", "DMA-FQ": "translating", "identity": "passthrough"}
_OFF = ("iommu=off", "intel_iommu=off", "amd_iommu=off")
_PASSTHROUGH = ("iommu=pt", "iommu.passthrough=1", "iommu.passthrough=y", "iommu.passthrough=on")
_TRANSLATING = (
    "intel_iommu=on",
    "amd_iommu=on",
    "iommu=force",
    "iommu=nopt",
    "iommu.passthrough=0",
)


def read_gpudirect(root: Path) -> Facts:
    """Return the facts on which GPUDirect depends.

    They are `pci/BUS acs` for GPUs, NICs and the bridges above them, and the host's iommu, peermem
    and dma_buf. `root` is the folder with the machine's `/sys`, `/proc` and `/boot`.
    """
    return Facts(
        (
            read_iommu(root),
            _read_peermem(root),
            _read_dma_buf(root, read_kernel(root)),
            *read_acs(root),
        )
    )


# -- requirements of RDMA devices


def _read_peermem(root: Path) -> Fact:
    """Return the fact `host peermem`: the version of the peer memory module, or `no`.

    RDMA drivers reach GPU memory through that module. NCCL looks for nvidia_peermem, nv_mem and
    nv_mem_nc (transport/net_ib), RCCL for amdkfd among the memory peers.
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

    The kernel must be 5.12 or later, and the GPU's driver must export DMA-BUFs. NVIDIA's open
    kernel modules do (GPU operator documentation, which also requires CUDA 11.7 and Turing); amdgpu
    does if the kernel is built with DMABUF_MOVE_NOTIFY and PCI_P2PDMA (RCCL, misc/rocmwrap.cc). Red
    Hat backports later work to earlier versions of the kernel.
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
    is_old = (int(match[1]), int(match[2])) < DMA_BUF_KERNEL
    if is_old and _BACKPORTING.search(str(kernel.value)):
        return Fact(
            HOST,
            keys.HOST_DMA_BUF,
            None,
            kernel.source,
            f"kernel {kernel.value} is before 5.12, but its maker may have taken DMA-BUF for "
            "RDMA into it",
        )
    if is_old:
        return Fact(HOST, keys.HOST_DMA_BUF, "no", f"{kernel.source}: before 5.12")
    return _ask_driver(root, str(kernel.value))


def _ask_driver(root: Path, kernel: str) -> Fact:
    """Return the fact `host dma_buf` as the GPU's driver implies it."""
    version = read_fact(root, root / "proc/driver/nvidia/version", HOST, keys.HOST_DMA_BUF)
    if version.value is not None:
        return replace(version, value="yes" if "Open Kernel Module" in str(version.value) else "no")
    if (root / "sys/module/nvidia").is_dir():
        taint = read_fact(root, root / "sys/module/nvidia/taint", HOST, keys.HOST_DMA_BUF)
        if taint.value is not None:
            return replace(taint, value="no" if "P" in str(taint.value) else "yes")
        return Fact(
            HOST,
            keys.HOST_DMA_BUF,
            None,
            f"{version.source}, {taint.source}",
            "nvidia is loaded, but neither file says whether its modules are the open ones",
        )
    if (root / "sys/module/amdgpu").is_dir():
        options = read_fact(
            root, root / f"boot/config-{Path(kernel).name}", HOST, keys.HOST_DMA_BUF
        )
        can = set(str(options.value).splitlines()).issuperset(_AMD_OPTIONS)
        return options if options.value is None else replace(options, value="yes" if can else "no")
    return replace(version, missing="no GPU driver is loaded that could be asked")


def read_acs(root: Path) -> Iterator[Fact]:
    """Yield the ACS setting of every GPU, NIC and bridge above one, as the fact `pci/BUS acs`.

    `root` is the folder that is `/` on the machine.
    """
    functions: dict[str, Path] = {}
    for path in list_gpus_and_nics(root):
        functions |= {function.name: function for function in (*list_bridges(path), path)}
    for name, path in functions.items():
        yield _read_function(root, path / "config", pci_subject(name))


def find_acs_control(config: bytes) -> int | None:
    """Return the ACS control register of a PCI configuration space, None without that capability.

    Raise ValueError if the space is incomplete or its list of capabilities is broken.
    """
    if len(config) <= _UNPRIVILEGED:
        raise ValueError(f"only root may read it: the file has {len(config)} bytes")
    if len(config) < _FIRST + _HEADER:
        raise ValueError(f"no extended configuration space: the file has {len(config)} bytes")
    seen: set[int] = set()
    offset = _FIRST
    while offset:
        if offset in seen:
            raise ValueError(f"its list of capabilities comes back to {offset:#x}")
        if offset < _FIRST or offset + _HEADER > len(config):
            raise ValueError(
                f"its list of capabilities leads to {offset:#x}, outside of its {len(config)} bytes"
            )
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + _HEADER], "little")
        if header == 0xFFFF_FFFF:
            raise ValueError("the function does not answer: its capabilities read as ones")
        if header & 0xFFFF == _ACS:
            register = config[offset + _CONTROL : offset + _CONTROL + 2]
            if len(register) < 2:
                raise ValueError(
                    f"its ACS capability at {offset:#x} is cut off: the file has {len(config)} "
                    "bytes"
                )
            return int.from_bytes(register, "little")
        offset = header >> 20 & ~3
    return None


def _read_function(root: Path, path: Path, subject: str) -> Fact:
    source = show_path(root, path)
    try:
        control = find_acs_control(read_start(path, _END))
    except (OSError, ValueError) as error:
        return Fact(
            subject, keys.PCI_ACS, None, source, getattr(error, "strerror", None) or str(error)
        )
    if control is None:
        return Fact(subject, keys.PCI_ACS, "off", f"{source}: the function has no ACS")
    on = [name for bit, name in enumerate(CONTROLS) if control >> bit & 1]
    if rest := control >> len(CONTROLS) << len(CONTROLS):
        on.append(f"other controls {rest:#x}")
    return Fact(subject, keys.PCI_ACS, ", ".join(on) or "off", source)


def read_iommu(root: Path) -> Fact:
    """Return the fact `host iommu`: `off`, `passthrough` or `translating`.

    1. The types in `/sys/kernel/iommu_groups/*/type` decide: DMA and DMA-FQ translate, identity
       passes through. The groups of GPUs and NICs are read if there are any, else all groups; one
       that translates is enough. The command line is then ignored, since the kernel may decide
       otherwise.
    2. If groups are listed without a type (by old kernels), the command line decides, except that
       an `off` in it is ignored.
    3. Without a group, and with no IOMMU in `/sys/class/iommu`, the answer is off.
    4. Without a group, but with an IOMMU or an unreadable `/sys`, the command line decides.

    On the command line off wins over pt, and pt over on, as in `intel_iommu=on iommu=pt`.
    """
    folder = root / "sys/kernel/iommu_groups"
    groups = list_folder(folder)
    known = {
        path.name: _BY_TYPE[str(kind)]
        for path in groups
        if (kind := read_fact(root, path / "type", HOST, keys.HOST_IOMMU).value) in _BY_TYPE
    }
    of_cards = {
        group.readlink().name
        for path in list_gpus_and_nics(root)
        if (group := path / "iommu_group").is_symlink()
    }
    asked = [known[name] for name in of_cards & known.keys()] or list(known.values())
    if asked:
        return Fact(
            HOST,
            keys.HOST_IOMMU,
            "translating" if "translating" in asked else "passthrough",
            f"{show_path(root, folder)}/*/type",
        )
    if not groups and folder.parent.is_dir() and not list_folder(root / "sys/class/iommu"):
        return Fact(HOST, keys.HOST_IOMMU, "off", f"{show_path(root, folder)}: there are no groups")
    return _read_command_line(root, believe_off=not groups)


def _read_command_line(root: Path, believe_off: bool) -> Fact:
    fact = read_fact(root, root / "proc/cmdline", HOST, keys.HOST_IOMMU)
    if fact.value is None:
        return fact
    words = {part for word in str(fact.value).split() for part in _split_settings(word)}
    for value, signs in (
        ("off", _OFF if believe_off else ()),
        ("passthrough", _PASSTHROUGH),
        ("translating", _TRANSLATING),
    ):
        if words.intersection(signs):
            return replace(fact, value=value)
    return Fact(
        HOST,
        keys.HOST_IOMMU,
        None,
        fact.source,
        "neither the groups nor the command line say what the IOMMU does",
    )


def _split_settings(word: str) -> list[str]:
    # `intel_iommu=on,sm_on` has two settings with one name.
    name, equals, values = word.partition("=")
    return [f"{name}{equals}{value}" for value in values.split(",")]
