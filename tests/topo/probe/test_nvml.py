"""NVML's facts through the real pynvml, on a compiled library that answers as described machines
would.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import pytest
from fake_library import HIDDEN, environment, serve
from fake_machine import (
    LINK_COUNT,
    Machine,
)
from fake_nvml import (
    asked,
    b200,
    bridged_pairs,
    grace,
    hybrid_cube_mesh,
    known,
    lost_gpu,
    mig,
    notes,
    nvl72_tray,
    nvlinks,
    nvswitch_box,
    probed,
    probed_apart,
    show_tree,
    states,
    two_socket_pcie,
)
from launch import run_command
from needs import long_cases

from topoplan.topo.facts import keys as fact_keys
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset
from topoplan.topo.probe.join import probe_local

MACHINES: tuple[Callable[[], Machine], ...] = (
    hybrid_cube_mesh,
    nvswitch_box,
    bridged_pairs,
    two_socket_pcie,
    mig,
    lost_gpu,
    b200,
    nvl72_tray,
    grace,
)


def test_the_nvlinks_of_a_hybrid_cube_mesh_are_those_of_the_preset(tmp_path: Path) -> None:
    topology = probed(hybrid_cube_mesh(), tmp_path)
    assert nvlinks(topology) == nvlinks(preset("dgx1"))
    assert notes(topology) == []


def test_every_fact_of_a_gpu_of_a_hybrid_cube_mesh_is_read() -> None:
    facts = asked(hybrid_cube_mesh())
    of_gpu = {f.key: f.value for f in facts.items if f.subject == "gpu/5"}
    assert of_gpu == {
        "bus_id": "0000:86:00.0",
        "uuid": "GPU-00000005-0000-0000-0000-000000000000",
        "name": "Tesla V100-SXM2-32GB",
        "sm": 70,
        "pcie_max_generation": 3,
        "pcie_max_width": 16,
        "pcie_current_generation": 1,
        "pcie_current_width": 16,
        "numa_node": 1,
        "gpu_numa_id": None,
        "cpu_affinity": "20-39",
        "mig": None,
        "utilization": 0,
        "nvlink_count": 6,
        "c2c_count": None,
        "fabric_state": None,
    }
    assert {f.key: f.value for f in facts.items if f.subject == "nvml"} == {
        "library": "libnvidia-ml.so.1",
        "driver": "570.86.15",
        "version": "12.570.86.15",
        "cuda_version": "12.8",
        "confidential_computing": "off",
        "count": 8,
    }
    link = {f.key: f.value for f in facts.items if f.subject == "gpu/0/nvlink/5"}
    peer = link.pop("remote_bus_id")
    assert link == {"state": "active", "remote_kind": "gpu", "version": 3, "speed_MBps": 25781}
    assert peer in {facts.get_text(f"gpu/{i}", fact_keys.GPU_BUS_ID) for i in range(1, 8)}


def test_p2p_is_told_for_every_ordered_pair() -> None:
    facts = asked(hybrid_cube_mesh())
    pairs = {f.subject for f in facts.items if "/p2p/" in f.subject}
    assert pairs == {f"gpu/{a}/p2p/{b}" for a, b in permutations(range(8), 2)}
    reads = Counter(facts.get_text(pair, fact_keys.P2P_READ) for pair in pairs)
    assert reads == {"ok": 32, "topology not supported": 24}
    told = {f.key: f.value for f in facts.items if f.subject == "gpu/0/p2p/5"}
    assert told == {
        "read": "topology not supported",
        "write": "topology not supported",
        "nvlink": "not supported",
        "atomics": "not supported",
        "pcie": "topology not supported",
        "ancestor": "system",
    }
    assert [facts.get_text(f"gpu/{b}/p2p/0", fact_keys.P2P_ANCESTOR) for b in (1, 2, 4)] == [
        "single",
        "node",
        "system",
    ]


def test_gpus_of_an_nvswitch_box_hang_on_one_nvswitch(tmp_path: Path) -> None:
    topology = probed(nvswitch_box(), tmp_path)
    assert {pair: rate for pair, rate in nvlinks(topology).items() if pair[1] == "nvswitch0"} == {
        (f"gpu{i}", "nvswitch0"): (Fraction(300), 12) for i in range(8)
    }
    assert notes(topology) == []


@pytest.mark.parametrize(("missing", "links"), [(True, 8), (False, 12)])
def test_a_missing_bridge_leaves_inactive_links(tmp_path: Path, missing: bool, links: int) -> None:
    machine = bridged_pairs(missing)
    facts = asked(machine)
    active = [number for number, state in states(facts, 3).items() if state == "active"]
    assert active == [0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15][:links]
    assert Counter(states(facts, 3).values()) == {"active": links, "inactive": 18 - links}
    assert facts.get_number("gpu/3", fact_keys.GPU_NVLINK_COUNT) == 18
    topology = probed(machine, tmp_path)
    assert nvlinks(topology)["gpu0", "gpu1"] == (Fraction(300), 12)
    assert nvlinks(topology)["gpu3", "gpu2"] == (Fraction(25 * links), links)
    assert any("gpu2, gpu3: 8 active NVLinks" in note for note in notes(topology)) == missing


def test_inactive_links_have_a_state_and_nothing_else() -> None:
    facts = asked(bridged_pairs())
    assert {f.key for f in facts.items if f.subject == "gpu/0/nvlink/4"} == {"state"}


def test_gpus_without_nvlink_have_no_links_and_cannot_reach_the_other_socket(
    tmp_path: Path,
) -> None:
    facts = asked(two_socket_pcie())
    assert states(facts, 0) == {}
    assert facts.get_reason("gpu/0", fact_keys.GPU_NVLINK_COUNT) == "Not Supported"
    assert facts.get_text("gpu/0/p2p/1", fact_keys.P2P_READ) == "ok"
    assert facts.get_text("gpu/0/p2p/2", fact_keys.P2P_READ) == "chipset not supported"
    assert nvlinks(probed(two_socket_pcie(), tmp_path)) == {}


def test_mig_is_told_gpu_by_gpu() -> None:
    facts = asked(mig())
    assert [facts.get_text(f"gpu/{i}", fact_keys.GPU_MIG) for i in (0, 1)] == ["on", "off"]
    assert facts.get_text("gpu/1/p2p/0", fact_keys.P2P_READ) == "not supported"


@pytest.mark.parametrize("at_handle", [True, False])
def test_a_lost_gpu_says_so_and_costs_the_others_nothing(tmp_path: Path, at_handle: bool) -> None:
    whole, facts = asked(nvswitch_box()), asked(lost_gpu(3, at_handle))
    assert [facts.get_text(f"gpu/{i}", fact_keys.GPU_LOST) for i in range(8)] == [None] * 3 + [
        "GPU is lost"
    ] + [None] * 4
    gone = {(s, k) for s, k in known(whole) if "gpu/3" in s or s.endswith("p2p/3")}
    assert known(facts) == known(whole) - gone | {("gpu/3", "lost")}
    topology = probed(lost_gpu(3, at_handle), tmp_path)
    assert topology.ranks == tuple(f"gpu{i}" for i in range(8) if i != 3)
    assert "gpu3 does not answer (GPU is lost); it is no rank" in notes(topology)


def test_a_gpu_lost_on_the_way_keeps_who_it_is() -> None:
    facts = asked(nvswitch_box().fail("nvmlDeviceGetNvLinkRemotePciInfo_v2", 15, 2, 7))
    assert facts.get_text("gpu/2", fact_keys.GPU_LOST) == "GPU is lost"
    assert facts.get_source("gpu/2", fact_keys.GPU_LOST) == "nvmlDeviceGetNvLinkRemotePciInfo"
    assert facts.get_text("gpu/2", fact_keys.GPU_BUS_ID) == "0000:22:00.0"
    assert not any(f.subject.endswith("p2p/2") for f in facts.items)


def test_a_gpu_that_may_not_be_opened_is_not_for_this_process(tmp_path: Path) -> None:
    topology = probed(nvswitch_box().fail("nvmlDeviceGetHandleByIndex_v2", 4, 0), tmp_path)
    assert topology.ranks == tuple(f"gpu{i}" for i in range(1, 8))
    assert any(note.startswith("gpu0: not for this process") for note in notes(topology))


def test_b200_has_the_links_whose_state_is_answered(tmp_path: Path) -> None:
    facts = asked(b200())
    assert states(facts, 0) == dict.fromkeys(range(18), "active")
    assert {f.subject for f in facts.missing if "nvlink" in f.subject} == set()
    assert facts.get_text("gpu/0", fact_keys.GPU_FABRIC_STATE) == "completed"
    assert "all zeros" in str(facts.get_reason("gpu/0", fact_keys.GPU_FABRIC_CLUSTER))
    topology = probed(b200(), tmp_path)
    assert nvlinks(topology)["gpu0", "nvswitch0"] == (Fraction(900), 18)
    adding = topology.by_id["nvswitch0"].in_network
    assert adding is not None and adding.reduce == "possible"


@pytest.mark.parametrize("links", [36, 72])
def test_gpus_may_have_more_links_than_any_has_today(tmp_path: Path, links: int) -> None:
    machine = b200()
    machine.set(f"gpu.0.field.{LINK_COUNT}.0", links)
    for link in range(18, links):
        machine.link(0, link, "switch", "00000000:C0:00.0", 9, 60000)
    facts = asked(machine)
    assert states(facts, 0) == dict.fromkeys(range(links), "active")
    assert facts.get_number(f"gpu/0/nvlink/{links - 1}", fact_keys.NVLINK_VERSION) == 9
    assert nvlinks(probed(machine, tmp_path))["gpu0", "nvswitch0"][1] == links


def calls(machine: Machine, folder: Path) -> list[tuple[str, ...]]:
    """Every call of the library: function, GPU, and link, peer or field (-1: none)."""
    log = folder / "calls.txt"
    asked(machine, env={"FAKE_NVML_CALLS": str(log)})
    lines = log.read_text().splitlines()
    log.unlink()
    return [tuple(line.split()) for line in lines]


def test_the_library_is_closed_after_the_last_question(tmp_path: Path) -> None:
    told = [function for function, _, _ in calls(nvswitch_box(), tmp_path)]
    assert told.count("nvmlInitWithFlags") == told.count("nvmlShutdown") == 1
    assert (told[0], told[-1]) == ("nvmlInitWithFlags", "nvmlShutdown")


def test_the_library_is_closed_where_every_question_fails(tmp_path: Path) -> None:
    machine = nvswitch_box().fail("*", 999).fail("nvmlInitWithFlags", 0)
    assert calls(machine, tmp_path)[-1][0] == "nvmlShutdown"


def test_pairs_are_asked_for_once(tmp_path: Path) -> None:
    told = calls(nvswitch_box(), tmp_path)
    assert (
        max(Counter(call for call in told if "P2P" in call[0] or "Ancestor" in call[0]).values())
        == 5
    )
    count = Counter(function for function, _, _ in told)
    assert count["nvmlDeviceGetTopologyCommonAncestor"] == 28
    assert count["nvmlDeviceGetP2PStatus"] == 56 * 5
    assert count["nvmlDeviceGetNvLinkState"] == 8 * 36
    assert count["nvmlDeviceGetNvLinkRemotePciInfo_v2"] == 8 * 12


def test_a_lost_gpu_is_asked_who_it_is_and_no_more(tmp_path: Path) -> None:
    told = calls(lost_gpu(3, at_handle=False), tmp_path)
    of_pairs = {"nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor"}
    about = {
        function
        for function, gpu, other in told
        if gpu == "3" or (other == "3" and function in of_pairs)
    }
    assert about == {
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
        "nvmlDeviceGetCudaComputeCapability",
    }


@pytest.mark.parametrize("machine", long_cases(MACHINES, *MACHINES[1:]), ids=lambda m: m.__name__)
def test_every_machine_is_probed_alike_by_the_command_and_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Callable[[], Machine]
) -> None:
    topology = probed_apart(machine(), tmp_path)
    serve(monkeypatch, machine())
    here = probe_local(show_tree(machine(), tmp_path), {})
    assert Topology.loads(topology.dumps()) == topology
    assert (here.devices, here.links) == (topology.devices, topology.links)
    assert len(topology.ranks) == machine().count - (machine is lost_gpu)


def test_the_command_finds_the_library_by_itself(tmp_path: Path) -> None:
    done = run_command(
        *(sys.executable, "-m", "topoplan.cli.probe", "--json"),
        env={**dict.fromkeys(HIDDEN), **environment(nvswitch_box(), tmp_path)},
    )
    gpus = [d for d in json.loads(done.stdout)["devices"] if d["kind"] == "gpu"]
    assert [d["bus_id"] for d in gpus[:2]] == ["0000:12:00.0", "0000:13:00.0"]
    assert len(gpus) == 8
