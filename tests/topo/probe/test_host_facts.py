"""Facts about a host and its PCI functions from invented Linux trees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from fact_keys import find_key

from topoplan.topo.facts import keys as fact_keys
from topoplan.topo.probe.linux.host import read_host
from topoplan.topo.probe.linux.sysfs import read_sysfs


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    return path


def function(root: Path, chain: str, kind: str) -> Path:
    """A PCI function at the end of `chain`, such as "00:01.0 01:00.0"."""
    ids = [f"0000:{part}" for part in chain.split()]
    folder = root / "sys/devices/pci0000:00" / "/".join(ids)
    write(folder / "class", kind)
    link = root / "sys/bus/pci/devices" / ids[-1]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


def test_root_complex_driver_and_subsystem_are_facts(tmp_path: Path) -> None:
    folder = function(tmp_path, "00:01.0", "0x020000")
    write(folder / "subsystem_vendor", "0x15b3")
    write(folder / "subsystem_device", "0x0038")
    driver = tmp_path / "sys/bus/pci/drivers/mlx5_core"
    driver.mkdir(parents=True)
    (folder / "driver").symlink_to(driver)
    function(tmp_path, "00:02.0", "0x030200")
    facts = read_sysfs(tmp_path)
    keys = ("root", "driver", "subsystem_vendor", "subsystem_device")
    told = [facts.get_text("pci/0000:00:01.0", find_key("pci/0000:00:01.0", key)) for key in keys]
    assert told == ["pci0000:00", "mlx5_core", "0x15b3", "0x0038"]
    assert facts.get_reason("pci/0000:00:02.0", fact_keys.PCI_DRIVER) == "no driver is bound to it"


@pytest.mark.parametrize(
    ("files", "value"),
    [
        ({"proc/cpuinfo": "flags : fpu hypervisor", "sys/class/dmi/id/sys_vendor": "QEMU"}, "QEMU"),
        ({"proc/cpuinfo": "flags : fpu hypervisor"}, "not named"),
        ({"proc/cpuinfo": "flags : fpu", "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "no"),
        (
            {
                "proc/cpuinfo": "flags : hypervisor",
                "sys/class/dmi/id/sys_vendor": "Microsoft Corporation",
                "sys/class/dmi/id/product_name": "Virtual Machine",
            },
            "Hyper-V",
        ),
        (
            {
                "proc/cpuinfo": "Features : fp",
                "sys/class/dmi/id/product_name": "KVM Virtual Machine",
            },
            "KVM",
        ),
        ({"proc/cpuinfo": "Features : fp", "sys/class/dmi/id/sys_vendor": "Ampere"}, "no"),
        ({"sys/hypervisor/type": "xen"}, "xen"),
        ({}, None),
    ],
)
def test_a_guest_is_told_from_bare_metal(
    tmp_path: Path, files: Mapping[str, str], value: str | None
) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)
    assert read_host(tmp_path).get_text("host", fact_keys.HOST_VIRTUAL) == value


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("proc/1/cgroup", "12:devices:/kubepods/burstable/pod1/abc", "kubepods"),
        ("proc/1/cgroup", "0::/init.scope", "no"),
        ("proc/self/mountinfo", "521 520 0:50 / / rw,relatime - overlay overlay rw", "overlay"),
        ("proc/self/mountinfo", "29 1 8:2 / / rw shared:1 - ext4 /dev/sda2 rw", "no"),
    ],
)
def test_a_container_is_known_by_its_files_groups_and_mounts(
    tmp_path: Path, path: str, text: str, kind: str
) -> None:
    write(tmp_path / path, text)
    assert read_host(tmp_path).get_text("host", fact_keys.HOST_CONTAINER) == kind


def test_an_empty_root_gives_reasons_only(tmp_path: Path) -> None:
    facts = read_host(tmp_path)
    assert [fact.key for fact in facts.items] == ["kernel", "virtual", "container"]
    assert all(fact.value is None and fact.missing for fact in facts.items)
