"""Machines on which NVLink and P2P are missing for a reason of their own: the reason is named, and
nothing that follows from it; through the real pynvml on a compiled library, in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from captures import NIC_ETH, Tree, link_to, write
from fake_library import serve
from fake_machine import CAPABILITIES, GPU_CANNOT, NOT_SUPPORTED, Machine
from fake_nvml import (
    captured,
    grace,
    hybrid_cube_mesh,
    nvl72_tray,
    nvswitch_box,
    show_tree,
    two_socket_pcie,
)
from verdicts import judge_pairs, list_findings

from topoplan.topo.graph import Topology
from topoplan.topo.probe.join import probe_local

if TYPE_CHECKING:
    from topoplan.topo.extras.gpudirect import Verdict

NO_PERMISSION, UNSUPPORTED, LOST, UNKNOWN_ERROR = 4, 3, 15, 999
STATE = "nvmlDeviceGetNvLinkState"
Probe = Callable[..., Topology]


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """What the probe finds on a machine: `probe(machine, environment)`."""

    def probed(machine: Machine, environment: Mapping[str, str] | None = None) -> Topology:
        serve(monkeypatch, machine)
        return probe_local(show_tree(machine, tmp_path), environment or {})

    return probed


def alarms(topology: Topology) -> list[tuple[str, str]]:
    """Severity and kind of the errors and warnings."""
    return [(f.severity, f.what) for f in list_findings(topology) if f.severity != "note"]


def kinds(topology: Topology) -> set[str]:
    """Kinds of all findings, without that of idle GPUs, which the stand-ins are."""
    return {f.what for f in list_findings(topology)} - {"slow-pcie-now"}


def p2p(topology: Topology) -> list[Verdict]:
    return [v for v in judge_pairs(topology) if v.kind == "p2p"]


def refuse(
    machine: Machine, gpus: Iterable[int] | None = None, status: int = NOT_SUPPORTED
) -> Machine:
    """No P2P from and to these GPUs, all by default."""
    own = set(range(machine.count)) if gpus is None else set(gpus)
    for a, b in permutations(range(machine.count), 2):
        if {a, b} & own:
            machine.p2p(a, b, **dict.fromkeys(CAPABILITIES, status))
    return machine


def without_links(machine: Machine, gpus: Iterable[int] | None = None) -> Machine:
    for gpu in range(machine.count) if gpus is None else gpus:
        machine.inactive(gpu, *range(12))
    return machine


def with_fabric(
    machine: Machine, state: int, status: int = 0, gpus: Iterable[int] = range(8)
) -> Machine:
    for gpu in gpus:
        machine.lines |= {f"gpu.{gpu}.fabric.state": state, f"gpu.{gpu}.fabric.status": status}
    return machine


def named(machine: Machine, name: str) -> Machine:
    for gpu in range(machine.count):
        machine.set(f"gpu.{gpu}.name", name)
    return machine


def test_a_gpu_in_mig_mode_is_not_told_that_it_misses_links(probe: Probe) -> None:
    machine = refuse(without_links(nvswitch_box().set("gpu.0.mig", 1), [0]), [0])
    assert alarms(probe(machine)) == [("error", "mig-on")]


def test_the_nvlinks_of_a_gpu_in_mig_mode_are_not_unknown(probe: Probe) -> None:
    machine = refuse(nvswitch_box()).fail(STATE, NO_PERMISSION)
    for gpu in range(8):
        machine.set(f"gpu.{gpu}.mig", 1)
    assert alarms(probe(machine)) == [("error", "mig-on")]


def test_where_mig_mode_is_not_told_a_refusal_is_no_error(probe: Probe) -> None:
    machine = refuse(nvswitch_box().fail("nvmlDeviceGetMigMode", NO_PERMISSION))
    found = [f for f in list_findings(probe(machine)) if f.what == "p2p-refused"]
    assert [f.severity for f in found] == ["warning"]
    assert "whether MIG is on is not told" in found[0].message


def test_confidential_computing_is_the_cause_of_inactive_nvlinks(probe: Probe) -> None:
    machine = refuse(without_links(nvswitch_box().set("confidential", 1)))
    assert alarms(probe(machine)) == [("warning", "confidential-computing")]


@pytest.mark.parametrize(("state", "status"), [(1, 0), (2, 0), (3, UNKNOWN_ERROR)])
@pytest.mark.parametrize("active", [True, False])
def test_a_fabric_that_is_not_ready_is_the_cause_of_refused_p2p(
    probe: Probe, state: int, status: int, active: bool
) -> None:
    machine = refuse(with_fabric(nvswitch_box(), state, status))
    topology = probe(machine if active else without_links(machine))
    assert alarms(topology) == [("error", "fabric-not-completed")]
    rules = {(v.answer, v.rule) for v in p2p(topology)}
    assert rules == {("no", "the fabric of the NVSwitches is not ready")}


def test_one_gpu_whose_registration_failed_is_cut_off_whatever_nvml_says_of_p2p(
    probe: Probe,
) -> None:
    topology = probe(with_fabric(with_fabric(nvswitch_box(), 3), 3, UNKNOWN_ERROR, [5]))
    assert alarms(topology) == [("error", "fabric-not-completed")]
    assert {v.answer for v in p2p(topology) if "gpu5" in (v.a, v.b)} == {"no"}
    assert {v.answer for v in p2p(topology) if "gpu5" not in (v.a, v.b)} == {"yes"}


@pytest.mark.parametrize("make", [nvswitch_box, hybrid_cube_mesh, nvl72_tray])
def test_a_driver_that_supports_no_question_about_nvlinks_of_a_board_that_has_them_is_silent(
    probe: Probe, make: Callable[[], Machine]
) -> None:
    topology = probe(make().fail(STATE, UNSUPPORTED))
    assert alarms(topology) == [("warning", "nvlink-unknown")]
    far = {v.answer for v in p2p(topology) if "too far" in v.rule}
    assert far == {"unknown"}
    assert not any("through a CPU" in v.rule or "between CPUs" in v.rule for v in p2p(topology))


def test_no_nvlink_by_states_and_by_p2p_is_no_active_nvlink(probe: Probe) -> None:
    machine = nvswitch_box().fail(STATE, UNSUPPORTED)
    for a, b in permutations(range(8), 2):
        machine.p2p(a, b, nvlink=NOT_SUPPORTED)
    assert alarms(probe(machine)) == [("error", "no-active-nvlink")]


def test_a_gpu_beside_an_nvswitch_whose_links_are_not_told_is_unknown(probe: Probe) -> None:
    machine = nvswitch_box()
    for link in range(12):
        machine.fail(STATE, NO_PERMISSION, 6, link)
    verdicts = [v for v in p2p(probe(machine)) if "gpu6" in (v.a, v.b) and "gpu7" not in (v.a, v.b)]
    assert {v.answer for v in verdicts} == {"unknown"}


def test_advice_for_a_gpu_without_its_nvlinks_is_no_variable(probe: Probe) -> None:
    topology = probe(without_links(nvswitch_box(), [5]))
    assert alarms(topology) == [("error", "fewer-links")]
    advice = {v.advice for v in p2p(topology) if "gpu5" in (v.a, v.b) and v.answer == "no"}
    assert len(advice) == 1 and "NCCL_P2P_LEVEL" not in str(advice)


@pytest.mark.parametrize("name", ["GRID A100-40C", "NVIDIA H100XM-80C", "GRID V100DX-32Q"])
def test_virtual_gpus_are_no_boards_with_dead_nvlinks(probe: Probe, name: str) -> None:
    topology = probe(refuse(without_links(named(nvswitch_box(), name))))
    assert alarms(topology) == []
    assert all(v.answer == "no" and "vGPU" in v.rule for v in p2p(topology))


def test_a_model_without_p2p_is_still_a_warning(probe: Probe) -> None:
    machine = refuse(nvswitch_box().fail(STATE, UNSUPPORTED), status=GPU_CANNOT)
    assert ("warning", "p2p-refused") in alarms(probe(named(machine, "NVIDIA L40S")))


def test_gpus_without_nvlink_are_asked_for_none(probe: Probe) -> None:
    assert kinds(probe(two_socket_pcie())) == {"p2p-refused"}


def in_mig_mode(gpu: int, *devices: str) -> Machine:
    """The box with one GPU in MIG mode, and the UUIDs of its MIG devices."""
    machine = refuse(nvswitch_box().set(f"gpu.{gpu}.mig", 1), [gpu])
    machine.set(f"gpu.{gpu}.mig_devices", 7)
    for number, uuid in enumerate(devices, 1):
        machine.set(f"gpu.{64 + 8 * gpu + number}.uuid", uuid)
    return machine


@pytest.mark.parametrize(
    ("listed", "ranks"),
    [
        ("MIG-aaaa", ("gpu3",)),
        ("MIG-bbbb-2", ("gpu3",)),
        ("MIG-GPU-00000003-0000-0000-0000-000000000000/1/0", ("gpu3",)),
        ("MIG-cccc", ()),
    ],
)
def test_a_mig_device_that_a_job_was_given_shows_its_gpu(
    probe: Probe, listed: str, ranks: tuple[str, ...]
) -> None:
    machine = in_mig_mode(3, "MIG-aaaa-1", "MIG-bbbb-2")
    topology = probe(machine, {"CUDA_VISIBLE_DEVICES": listed})
    assert topology.ranks == ranks
    assert alarms(topology) == [("error", "mig-on")] * len(ranks)


def test_a_gpu_in_mig_mode_that_is_hidden_is_no_error(probe: Probe) -> None:
    assert alarms(probe(in_mig_mode(3), {"CUDA_VISIBLE_DEVICES": "0,1"})) == []


def shown(machine: Machine, folder: Path, gpus: int) -> Machine:
    """The machine's /sys with all of its GPUs, and an NVML that lists the first `gpus` alone."""
    captured(machine, folder)
    return machine.set("count", gpus)


def bind(folder: Path, driver: str) -> None:
    """Binds all GPUs of a captured machine to a driver."""
    target = folder / "root/sys/bus/pci/drivers" / driver
    target.mkdir(parents=True)
    for function in (folder / "root/sys/bus/pci/devices").iterdir():
        if (function / "class").read_text().startswith("0x0302"):
            link_to(function.resolve() / "driver", target)


@pytest.mark.parametrize("make", [nvswitch_box, hybrid_cube_mesh])
def test_gpus_that_a_container_was_not_given_are_no_alarm(
    probe: Probe, tmp_path: Path, make: Callable[[], Machine]
) -> None:
    machine = shown(make(), tmp_path, 3)
    bare = alarms(probe(machine))
    assert bare == [("warning", "gpu-not-listed")]
    write(tmp_path / "root/.dockerenv", "")
    assert alarms(probe(machine)) == []


@pytest.mark.parametrize(
    ("driver", "severity"), [("nvidia", "error"), ("nouveau", "error"), ("vfio-pci", "note")]
)
def test_gpus_that_the_driver_lists_none_of_are_an_error_unless_given_away(
    probe: Probe, tmp_path: Path, driver: str, severity: str
) -> None:
    machine = shown(nvswitch_box(), tmp_path, 0)
    bind(tmp_path, driver)
    found = [f for f in list_findings(probe(machine)) if f.what == "gpu-not-listed"]
    assert [(f.severity, len(f.about)) for f in found] == [(severity, 8)]


@pytest.mark.parametrize(
    ("function", "code", "severity"),
    [
        ("nvmlDeviceGetCount_v2", UNKNOWN_ERROR, "error"),
        ("nvmlInitWithFlags", UNKNOWN_ERROR, "error"),
        ("nvmlInitWithFlags", NO_PERMISSION, "warning"),
    ],
)
def test_a_driver_that_counts_no_gpus_is_reported(
    probe: Probe, function: str, code: int, severity: str
) -> None:
    assert alarms(probe(nvswitch_box().fail(function, code))) == [(severity, "no-driver")]


@pytest.mark.parametrize("lost", [(3,), (3, 4)])
def test_gpus_lost_while_pairs_are_asked_are_those_of_the_most_failures(
    probe: Probe, lost: tuple[int, ...]
) -> None:
    machine = nvswitch_box()
    for a, b in permutations(range(8), 2):
        if {a, b} & {*lost}:
            machine.fail("nvmlDeviceGetP2PStatus", LOST, a, b)
    topology = probe(machine)
    assert [(f.what, f.about) for f in list_findings(topology) if f.severity == "error"] == [
        ("gpu-lost", tuple(f"gpu{i}" for i in lost))
    ]


def test_of_two_gpus_one_of_which_is_lost_both_are_named(probe: Probe) -> None:
    machine = two_socket_pcie()
    captured_of_two = Machine(machine.lines, machine.slots[:2]).set("count", 2)
    captured_of_two.fail("nvmlDeviceGetP2PStatus", LOST)
    found = [f for f in list_findings(probe(captured_of_two)) if f.severity == "error"]
    assert [(f.what, f.about) for f in found] == [("gpu-lost", ("gpu0", "gpu1"))]


def test_under_wsl_the_gpus_are_those_of_the_driver(probe: Probe, tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree = Tree(root).cpus(1)
    tree.pci("5582:00:00.0", "0x030200", -1, root="pci5582:00", vendor="0x1414")
    write(root / "proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2")
    machine = two_socket_pcie().fail(STATE, UNKNOWN_ERROR)
    machine.fail("nvmlDeviceGetP2PStatus", UNKNOWN_ERROR)
    topology = probe(machine)
    assert len(topology.ranks) == 4
    assert alarms(topology) == []


def add_nic(machine: Machine, name: str, bus: str, node: int) -> None:
    machine.nic(name, bus, node, 100, "80:09.0" if node else "00:09.0")


def test_nics_whose_numa_node_nobody_knows_are_far_from_no_gpu(
    probe: Probe, tmp_path: Path
) -> None:
    machine = two_socket_pcie()
    add_nic(machine, "mlx5_0", "20:00.0", 0)
    add_nic(machine, "mlx5_1", "a0:00.0", 1)
    for file in captured(machine, tmp_path).rglob("numa_node"):
        write(file, "-1")
    topology = probe(machine)
    found = [(f.what, f.about) for f in list_findings(topology) if f.severity == "warning"]
    assert found == [("numa-unknown", ("mlx5_0", "mlx5_1"))]


def with_second_port(machine: Machine, folder: Path) -> tuple[Tree, Path]:
    """A second function of the adapter of mlx5_0, below the same port of the switch."""
    root = captured(machine, folder)
    first = next(root.rglob("devices/pci0000:00/**/0000:10:00.0/**/0000:18:00.0"))
    bridges = [p.name.removeprefix("0000:") for p in (*first.parents[:3][::-1],)]
    tree = Tree(root)
    speed = {"speed": "16.0 GT/s PCIe", "vendor": "0x15b3"}
    return tree, tree.pci(f"{' '.join(bridges)} 18:00.1", NIC_ETH, 0, **speed)


def test_bonded_ports_are_the_one_device_of_the_bond(probe: Probe, tmp_path: Path) -> None:
    machine = nvswitch_box()
    tree, second = with_second_port(machine, tmp_path)
    devices = tree.root / "sys/class/infiniband"
    (devices / "mlx5_0").rename(devices / "mlx5_bond_0")
    tree.net("ens1f0np0", second.with_name("0000:18:00.0"), "200000")
    tree.net("ens1f1np1", second, "200000")
    topology = probe(machine)
    nics = [d for d in topology.devices if d.kind == "nic" and d.bus_id == "0000:18:00.0"]
    assert [(d.id, d.extra["interfaces"]) for d in nics] == [
        ("mlx5_bond_0", ["ens1f0np0", "ens1f1np1"])
    ]
    assert "ens1f1np1" not in topology.by_id


def test_two_ports_of_an_adapter_are_below_one_switch(probe: Probe, tmp_path: Path) -> None:
    machine = nvswitch_box()
    tree, second = with_second_port(machine, tmp_path)
    tree.rdma("mlx5_9", second, "200 Gb/sec (4X)")
    near = [v for v in judge_pairs(probe(machine)) if (v.a, v.b) == ("gpu0", "mlx5_9")]
    assert near[0].evidence[0] == "path PIX"


def test_a_gb10_is_on_the_c2c_of_its_module_whatever_pcie_says(probe: Probe) -> None:
    machine = named(grace(), "NVIDIA GB10")
    lines = {k: v for k, v in machine.lines.items() if ".field." not in k}
    machine.lines = lines | {"gpu.0.sm": 121, "gpu.0.max_generation": 1, "gpu.0.max_width": 1}
    topology = probe(machine)
    assert {link.kind for link in topology.links} == {"pcie", "c2c"}
    assert alarms(topology) == []


@pytest.mark.parametrize(("percent", "severity"), [(0, "note"), (97, "warning")])
def test_a_gpu_at_work_on_an_older_pcie_generation_is_a_warning(
    probe: Probe, percent: int, severity: str
) -> None:
    machine = nvswitch_box().set("gpu.2.utilization", percent)
    for gpu in range(8):
        machine.set(f"gpu.{gpu}.generation", 1 if gpu == 2 else 4)
    found = [f for f in list_findings(probe(machine)) if "gpu2" in f.about]
    assert [(f.severity, f.what) for f in found] == [(severity, "slow-pcie-now")]


def test_nvlinks_that_one_end_alone_counts_are_unknown(probe: Probe) -> None:
    machine = two_socket_pcie()
    for name in [name for name in machine.lines if name.startswith("fail.")]:
        del machine.lines[name]
    for gpu in range(4):
        machine.inactive(gpu, *range(4))
    for link in range(4):
        machine.link(0, link, "gpu", machine.bus_id(1), 5, 14062)
    topology = probe(named(machine, "NVIDIA RTX A6000"))
    assert ("warning", "link-count-mismatch") in alarms(topology)
    answers = {(v.a, v.b): v.answer for v in p2p(topology)}
    assert answers["gpu0", "gpu1"] == "unknown"


@pytest.mark.parametrize("code", [NO_PERMISSION, LOST])
def test_a_count_that_cannot_be_does_not_end_at_a_gpu_that_is_there(
    probe: Probe, code: int
) -> None:
    machine = nvswitch_box().fail("nvmlDeviceGetHandleByIndex_v2", code, 3)
    machine.lines["count"] = 2**32 - 1
    assert probe(machine).ranks == tuple(f"gpu{i}" for i in range(8) if i != 3)
