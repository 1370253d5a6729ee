"""Read of Linux which kernel it is, and whether the machine is a guest or a container."""

import re
from dataclasses import replace
from pathlib import Path

from ...facts import Fact, Facts, keys
from ...facts.keys import HOST
from .sysfs import read_fact

# Files that container runtimes put into their containers, and names in control groups of these.
_CONTAINER_FILES = (
    (".dockerenv", "docker"),
    ("run/.containerenv", "podman"),
    (".singularity.d", "apptainer"),
    ("run/systemd/container", "systemd"),
)
_CONTAINER_GROUP = re.compile(r"docker|kubepods|containerd|libpod|crio|lxc")

# Words in the vendor and product names of a guest's firmware, and the hypervisor they indicate.
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


def read_host(root: Path) -> Facts:
    """Return the facts of the host: its kernel, virtual and container.

    `root` is the folder with the machine's `/sys` and `/proc`.
    """
    return Facts((read_kernel(root), _read_virtual(root), _read_container(root)))


def read_kernel(root: Path) -> Fact:
    """Return the fact `host kernel`: its version."""
    return read_fact(root, root / "proc/sys/kernel/osrelease", HOST, keys.HOST_KERNEL)


def is_wsl(facts: Facts) -> bool:
    """Return whether the kernel in `facts` is that of the Windows Subsystem for Linux."""
    return "microsoft" in (facts.get_text(HOST, keys.HOST_KERNEL) or "").lower()


def _read_virtual(root: Path) -> Fact:
    """Return the fact `host virtual`: the hypervisor, or `no`.

    A guest of Xen is recognized by `/sys/hypervisor/type`. On x86 the CPU flag `hypervisor`
    decides, and the firmware's vendor and product give the name (bare-metal machines of Amazon and
    Google have the same names); on other architectures the names alone decide.
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
        return replace(
            cpuinfo, value=known or "not named" if "hypervisor" in flags[1].split() else "no"
        )
    return Fact(
        HOST,
        keys.HOST_VIRTUAL,
        (known or "no") if maker else None,
        names[0].source,
        None if maker else f"{names[0].missing}, and no CPU flags tell",
    )


def _read_container(root: Path) -> Fact:
    """Return the fact `host container`: the kind of container that this process is in, or `no`.

    Files that container runtimes write decide, then the control group of the first process, then a
    root folder that is an overlay.
    """
    for name, kind in _CONTAINER_FILES:
        if (root / name).exists():
            return Fact(HOST, keys.HOST_CONTAINER, kind, f"/{name}")
    groups = read_fact(root, root / "proc/1/cgroup", HOST, keys.HOST_CONTAINER)
    if (runtime := _CONTAINER_GROUP.search(str(groups.value or ""))) is not None:
        return replace(groups, value=runtime[0])
    mounts = read_fact(root, root / "proc/self/mountinfo", HOST, keys.HOST_CONTAINER)
    if re.search(r"^(?:\S+ ){4}/ .* - overlay ", str(mounts.value or ""), re.MULTILINE):
        return replace(mounts, value="overlay")
    known = mounts if groups.value is None else groups
    return known if known.value is None else replace(known, value="no")
