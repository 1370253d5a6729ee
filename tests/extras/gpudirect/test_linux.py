"""Facts for GPUDirect from invented Linux trees, with PCI configuration spaces built by bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from fact_keys import find_key
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples

from topoplan.topo.extras.gpudirect.linux import CONTROLS, find_acs_control, read_gpudirect
from topoplan.topo.facts import keys as fact_keys


def config(
    capabilities: Mapping[int, tuple[int, int]], size: int = 4096, control: int = 0
) -> bytes:
    """A configuration space with extended capabilities: offset -> (id, offset of the next)."""
    space = bytearray(size)
    for offset, (ident, following) in capabilities.items():
        space[offset : offset + 4] = (ident | 1 << 16 | following << 20).to_bytes(4, "little")
        if ident == 0x0D:
            space[offset + 6 : offset + 8] = control.to_bytes(2, "little")
    return bytes(space[:size])


def test_the_acs_control_register_is_found_at_the_end_of_the_list() -> None:
    space = config({0x100: (0x01, 0x148), 0x148: (0x03, 0x200), 0x200: (0x0D, 0)}, control=0x1D)
    assert find_acs_control(space) == 0x1D


@pytest.mark.parametrize("space", [config({0x100: (0x01, 0x148), 0x148: (0x03, 0)}), config({})])
def test_a_function_without_acs_is_told_from_one_that_cannot_be_read(space: bytes) -> None:
    assert find_acs_control(space) is None


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (bytes(64), "only root may read it: the file has 64 bytes"),
        (b"", "only root may read it: the file has 0 bytes"),
        (bytes(256), "no extended configuration space: the file has 256 bytes"),
        (config({0x100: (0x01, 0x148), 0x148: (0x03, 0x100)}), "comes back to 0x100"),
        (config({0x100: (0x01, 0x040)}), "leads to 0x40, outside"),
        (config({0x100: (0x01, 0x800)}, size=1024), "leads to 0x800, outside of its 1024 bytes"),
        (config({0x100: (0x0D, 0)}, size=0x104), "ACS capability at 0x100 is cut off"),
        (b"\xff" * 4096, "does not answer"),
    ],
)
def test_a_space_that_is_not_whole_or_broken_says_why(space: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        find_acs_control(space)


@settings(max_examples=count_examples(25))
@given(st.binary(max_size=1200))
def test_any_bytes_give_a_register_or_a_reason(space: bytes) -> None:
    try:
        control = find_acs_control(space)
    except ValueError as error:
        assert str(error)
    else:
        assert control is None or 0 <= control < 1 << 16


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    return path


def function(root: Path, chain: str, kind: str, space: bytes = b"") -> Path:
    """A PCI function at the end of `chain`, such as "00:01.0 01:00.0"."""
    ids = [f"0000:{part}" for part in chain.split()]
    folder = root / "sys/devices/pci0000:00" / "/".join(ids)
    write(folder / "class", kind)
    (folder / "config").write_bytes(space)
    link = root / "sys/bus/pci/devices" / ids[-1]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


def host(root: Path, key: str) -> str | None:
    return read_gpudirect(root).get_text("host", find_key("host", key))


def test_acs_is_read_of_gpus_and_nics_and_the_bridges_above_them_only(tmp_path: Path) -> None:
    acs = {0x100: (0x0D, 0)}
    function(tmp_path, "00:01.0", "0x060400", config(acs, control=0x1D))
    function(tmp_path, "00:01.0 01:00.0", "0x030200", config({}))
    function(tmp_path, "00:02.0", "0x020700", bytes(64))
    function(tmp_path, "00:03.0", "0x010802", config(acs, control=0x1D))  # a disk
    facts = read_gpudirect(tmp_path)
    assert facts.get_text("pci/0000:00:01.0", fact_keys.PCI_ACS) == (
        "source validation, request redirect, completion redirect, upstream forwarding"
    )
    assert facts.get_text("pci/0000:01:00.0", fact_keys.PCI_ACS) == "off"
    assert "has no ACS" in str(facts.get_source("pci/0000:01:00.0", fact_keys.PCI_ACS))
    assert (
        facts.get_reason("pci/0000:00:02.0", fact_keys.PCI_ACS)
        == "only root may read it: the file has 64 bytes"
    )
    assert set(facts.list_names("pci")) == {"0000:00:01.0", "0000:01:00.0", "0000:00:02.0"}


@pytest.mark.parametrize(
    ("control", "value"), [(0, "off"), (0x7F, ", ".join(CONTROLS)), (0x80, "other controls 0x80")]
)
def test_every_acs_control_has_its_name(tmp_path: Path, control: int, value: str) -> None:
    function(tmp_path, "00:01.0", "0x030200", config({0x100: (0x0D, 0)}, control=control))
    assert read_gpudirect(tmp_path).get_text("pci/0000:00:01.0", fact_keys.PCI_ACS) == value


@pytest.mark.parametrize(
    ("groups", "command_line", "iommus", "value"),
    [
        (("DMA-FQ", "DMA"), "quiet", ("dmar0",), "translating"),
        (("identity", "identity"), "intel_iommu=on iommu=pt", ("dmar0",), "passthrough"),
        (("identity", "DMA"), "iommu=pt", ("dmar0",), "translating"),
        (("DMA",), "intel_iommu=off", (), "translating"),  # the groups are believed
        ((None,), "intel_iommu=on,sm_on iommu=pt", ("dmar0",), "passthrough"),
        ((None,), "amd_iommu=on", ("ivhd0",), "translating"),
        ((None,), "amd_iommu=off", ("ivhd0",), None),  # groups without a type: there is an IOMMU
        ((), "quiet", (), "off"),
        ((), "intel_iommu=on", (), "off"),
        ((), "iommu=off iommu=pt", ("dmar0",), "off"),
        ((), "quiet", ("dmar0",), None),
    ],
)
def test_the_groups_decide_what_the_iommu_does_then_the_command_line(
    tmp_path: Path,
    groups: tuple[str | None, ...],
    command_line: str,
    iommus: tuple[str, ...],
    value: str | None,
) -> None:
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    for i, kind in enumerate(groups):
        (tmp_path / f"sys/kernel/iommu_groups/{i}").mkdir()
        if kind is not None:
            write(tmp_path / f"sys/kernel/iommu_groups/{i}/type", kind)
    for name in iommus:
        (tmp_path / "sys/class/iommu" / name).mkdir(parents=True)
    write(tmp_path / "proc/cmdline", command_line)
    assert host(tmp_path, "iommu") == value


def test_groups_of_gpus_and_nics_count_before_those_of_other_devices(tmp_path: Path) -> None:
    for i, kind in enumerate(("DMA", "identity")):
        write(tmp_path / f"sys/kernel/iommu_groups/{i}/type", kind)
    gpu = function(tmp_path, "00:01.0", "0x030200")
    (gpu / "iommu_group").symlink_to(tmp_path / "sys/kernel/iommu_groups/1")
    assert host(tmp_path, "iommu") == "passthrough"


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("sys/module/nvidia_peermem/version", "550.54"),
        ("sys/module/nv_peer_mem/version", "550.54"),
        ("sys/kernel/mm/memory_peers/nv_mem/version", "550.54"),
        ("sys/memory_peers/amdkfd/version", "550.54"),
        ("sys/module/ib_core/version", "no"),
        ("sys/class/x", None),
    ],
)
def test_peer_memory_is_found_missed_or_not_known(
    tmp_path: Path, file: str, value: str | None
) -> None:
    write(tmp_path / file, "550.54")
    assert host(tmp_path, "peermem") == value


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15"


@pytest.mark.parametrize(
    ("kernel", "files", "value"),
    [
        ("5.15.0-1", {"proc/driver/nvidia/version": OPEN}, "yes"),
        ("5.12", {"proc/driver/nvidia/version": OPEN}, "yes"),
        ("5.11.9", {"proc/driver/nvidia/version": OPEN}, "no"),
        ("4.18.0-513.el8_9.x86_64", {"proc/driver/nvidia/version": OPEN}, None),
        ("6.8.0", {"proc/driver/nvidia/version": CLOSED}, "no"),
        ("6.8.0", {"sys/module/nvidia/taint": "OE"}, "yes"),
        ("6.8.0", {"sys/module/nvidia/taint": "POE"}, "no"),
        ("6.8.0", {"sys/module/nvidia/version": "550"}, None),
        (
            "6.8.0",
            {
                "sys/module/amdgpu/x": "",
                "boot/config-6.8.0": "CONFIG_DMABUF_MOVE_NOTIFY=y\nCONFIG_PCI_P2PDMA=y",
            },
            "yes",
        ),
        ("6.8.0", {"sys/module/amdgpu/x": "", "boot/config-6.8.0": "CONFIG_PCI_P2PDMA=y"}, "no"),
        ("6.8.0", {"sys/module/amdgpu/x": ""}, None),
        ("6.8.0", {}, None),
        ("strange", {}, None),
    ],
)
def test_dma_buf_needs_the_kernel_and_the_driver(
    tmp_path: Path, kernel: str, files: Mapping[str, str], value: str | None
) -> None:
    for name, text in {"proc/sys/kernel/osrelease": kernel, **files}.items():
        write(tmp_path / name, text)
    assert host(tmp_path, "dma_buf") == value
    if value is None:
        assert read_gpudirect(tmp_path).get_reason("host", fact_keys.HOST_DMA_BUF)


def test_an_empty_root_gives_reasons_only(tmp_path: Path) -> None:
    facts = read_gpudirect(tmp_path)
    assert {fact.key for fact in facts.items} == {
        "iommu",
        "peermem",
        "dma_buf",
    }
    assert all(fact.value is None and fact.missing for fact in facts.items)
