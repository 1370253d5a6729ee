"""NVML that fails, is too old or too new, through the real pynvml on a compiled library: one fact
lost at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from fact_keys import find_key
from fake_library import serve
from fake_machine import (
    GET_SPEED,
    LINK_COUNT,
    NO_PEER,
    SPEED_COMMON,
    UNKNOWN,
    Machine,
)
from fake_nvml import (
    asked,
    asked_apart,
    hybrid_cube_mesh,
    known,
    notes,
    nvl72_tray,
    nvlinks,
    nvswitch_box,
    probed,
    states,
    two_socket_pcie,
)

from topoplan.topo.facts import Facts
from topoplan.topo.facts import keys as fact_keys
from topoplan.topo.presets import preset
from topoplan.topo.probe.nvml.questions import read_nvml

Ask = Callable[..., Facts]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """What read_nvml says of a machine: `ask(machine, without)`, in this process."""

    def served(machine: Machine, without: tuple[str, ...] = ()) -> Facts:
        serve(monkeypatch, machine, without)
        return read_nvml()

    return served


@pytest.fixture(scope="module")
def tray() -> Facts:
    """What read_nvml says of a tray on which nothing fails."""
    return asked(nvl72_tray())


ERRORS = {
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    9: "Driver Not Loaded",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    18: "RM has detected an NVML/RM version mismatch.",
    25: "Argument version mismatch",
    999: "Unknown Error",
}

# Keys of the facts that depend on each function of the library.
FACTS_OF = {
    "nvmlSystemGetDriverVersion": {"driver"},
    "nvmlSystemGetNVMLVersion": {"version"},
    "nvmlSystemGetCudaDriverVersion": {"cuda_version"},
    "nvmlSystemGetConfComputeState": {"confidential_computing"},
    "nvmlDeviceGetPciInfo_v3": {"bus_id"},
    "nvmlDeviceGetUUID": {"uuid"},
    "nvmlDeviceGetName": {"name"},
    "nvmlDeviceGetCudaComputeCapability": {"sm"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_max_generation"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"pcie_max_width"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_current_generation"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_current_width"},
    "nvmlDeviceGetMemoryAffinity": {"numa_node"},
    "nvmlDeviceGetCpuAffinity": {"cpu_affinity"},
    "nvmlDeviceGetNumaNodeId": {"gpu_numa_id"},
    "nvmlDeviceGetMigMode": {"mig"},
    "nvmlDeviceGetUtilizationRates": {"utilization"},
    "nvmlDeviceGetFieldValues": {"nvlink_count", "c2c_count", "c2c_MBps", "speed_MBps"},
    "nvmlDeviceGetNvLinkState": {"state", "remote_kind", "remote_bus_id", "version", "speed_MBps"},
    "nvmlDeviceGetNvLinkRemoteDeviceType": {"remote_kind"},
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": {"remote_bus_id"},
    "nvmlDeviceGetNvLinkVersion": {"version"},
    "nvmlDeviceGetP2PStatus": {"read", "write", "nvlink", "atomics", "pcie"},
    "nvmlDeviceGetTopologyCommonAncestor": {"ancestor"},
}


@pytest.mark.parametrize("code", [c for c in ERRORS if c not in (2, 3, 15)])
def test_an_nvml_that_does_not_start_is_one_missing_fact(ask: Ask, code: int) -> None:
    facts = ask(nvswitch_box().fail("nvmlInitWithFlags", code))
    assert [(f.subject, f.key, f.source, f.missing) for f in facts.items] == [
        ("nvml", "library", "nvmlInit", ERRORS[code])
    ]


def test_without_a_library_the_reason_is_that_it_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    facts = asked_apart(nvswitch_box(), tmp_path, env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert [(f.key, f.missing) for f in facts.items] == [
        ("library", "NVML Shared Library Not Found")
    ]


def test_a_count_that_no_machine_has_ends_at_the_first_number_without_a_gpu(ask: Ask) -> None:
    machine = hybrid_cube_mesh()
    machine.lines["count"] = 4294967295
    assert ask(machine).list_names("gpu") == tuple(map(str, range(8)))


@pytest.mark.parametrize("function", FACTS_OF)
def test_a_function_that_fails_costs_its_own_facts_only(
    ask: Ask, tray: Facts, function: str
) -> None:
    # A sixth of the codes for each function; all of them over all functions. A lost GPU (15) is
    # asked no more.
    some = [code for code in ERRORS if code != 15][list(FACTS_OF).index(function) % 6 :: 6]
    for code in some:
        reason = ERRORS[code]
        facts = ask(nvl72_tray().fail(function, code))
        assert known(facts) == {(s, k) for s, k in known(tray) if not _depends(s, k, function)}
        assert facts.list_names("gpu") == ("0", "1", "2", "3")
        no_links = function == "nvmlDeviceGetNvLinkState" and code in (
            2,
            3,
        )  # so it says that there are none
        assert {f.missing for f in facts.missing} == (set() if no_links else {reason})


def _depends(subject: str, key: str, function: str) -> bool:
    if key == "version" and (subject == "nvml") != (function == "nvmlSystemGetNVMLVersion"):
        return False
    return key in FACTS_OF[function]


@pytest.mark.parametrize(
    "function", [f for f in FACTS_OF if "System" not in f and "P2P" not in f and "Common" not in f]
)
def test_a_function_that_fails_for_one_gpu_costs_the_others_nothing(
    ask: Ask, tray: Facts, function: str
) -> None:
    # One of the codes for each function, all of them over all functions; and a lost GPU (15).
    for code in ((4, 13, 999)[list(FACTS_OF).index(function) % 3], 15):
        facts = ask(nvl72_tray().fail(function, code, 2))
        lost = known(tray) ^ known(facts)
        assert lost
        assert all("gpu/2" in s or (code == 15 and s.endswith("p2p/2")) for s, _ in lost)


def test_both_fabric_functions_failing_leaves_the_first_ones_reason(ask: Ask) -> None:
    machine = (
        nvl72_tray().fail("nvmlDeviceGetGpuFabricInfoV", 4).fail("nvmlDeviceGetGpuFabricInfo", 3)
    )
    facts = ask(machine)
    assert facts.get_reason("gpu/0", fact_keys.GPU_FABRIC_STATE) == "Insufficient Permissions"


def test_one_link_that_fails_costs_one_link(ask: Ask) -> None:
    facts = ask(nvswitch_box().fail("nvmlDeviceGetNvLinkState", 999, 1, 5))
    assert states(facts, 1) == {**dict.fromkeys(range(12), "active"), 5: None}
    assert facts.get_reason("gpu/1/nvlink/5", fact_keys.NVLINK_STATE) == "Unknown Error"


def test_errors_past_the_links_that_a_gpu_has_are_no_links(ask: Ask) -> None:
    machine = nvswitch_box()
    for link in range(12, 36):
        machine.fail("nvmlDeviceGetNvLinkState", 999, 1, link)
    assert states(ask(machine), 1) == dict.fromkeys(range(12), "active")


def test_an_unknown_p2p_status_is_a_missing_fact(ask: Ask) -> None:
    machine = nvswitch_box()
    machine.p2p(0, 1, read=UNKNOWN, nvlink=UNKNOWN, write=17)
    facts = ask(machine)
    assert facts.get_reason("gpu/0/p2p/1", fact_keys.P2P_READ) == "the driver says unknown"
    assert facts.get_reason("gpu/0/p2p/1", fact_keys.P2P_NVLINK) == "the driver says unknown"
    assert (
        facts.get_reason("gpu/0/p2p/1", fact_keys.P2P_WRITE)
        == "the driver says 17, which is not known here"
    )
    assert facts.get_text("gpu/1/p2p/0", fact_keys.P2P_READ) == "ok"


def test_an_unknown_remote_end_is_missing_and_the_link_still_active(ask: Ask) -> None:
    machine = nvswitch_box()
    machine.link(0, 3, "unknown", NO_PEER, 4)
    facts = ask(machine)
    assert (
        facts.get_reason("gpu/0/nvlink/3", fact_keys.NVLINK_REMOTE_KIND)
        == "remote device type is 255: unknown"
    )
    assert facts.get_text("gpu/0/nvlink/3", fact_keys.NVLINK_STATE) == "active"


@pytest.mark.parametrize(
    ("key", "value", "fact", "reason"),
    [
        (
            "ancestor.0.1",
            35,
            ("gpu/1/p2p/0", "ancestor"),
            "common ancestor is 35, which is not known here",
        ),
        ("gpu.0.mig", 7, ("gpu/0", "mig"), "MIG mode is 7, which is not known here"),
        ("gpu.0.numa_id", -1, ("gpu/0", "gpu_numa_id"), "the driver says -1: not known"),
        (
            "gpu.0.nodes",
            "0,1",
            ("gpu/0", "numa_node"),
            "memory affinity names 2 NUMA nodes, not one",
        ),
        ("gpu.0.cpus", "-", ("gpu/0", "cpu_affinity"), "CPU affinity names no CPU"),
        (
            f"gpu.0.field.{LINK_COUNT}.0",
            0xFFFFFFFF,
            ("gpu/0", "nvlink_count"),
            "the driver says 4294967295: not known",
        ),
        (
            f"gpu.0.field.{GET_SPEED}.2",
            0,
            ("gpu/0/nvlink/2", "speed_MBps"),
            "the driver says 0: not known",
        ),
        (
            f"gpu.0.field_type.{LINK_COUNT}",
            9,
            ("gpu/0", "nvlink_count"),
            "a value of type 9, which is not known here",
        ),
    ],
)
def test_values_of_a_newer_library_are_missing_with_the_value(
    ask: Ask, key: str, value: object, fact: tuple[str, str], reason: str
) -> None:
    facts = ask(nvswitch_box().set(key, value))
    assert facts.get_reason(fact[0], find_key(*fact)) == reason


@pytest.mark.parametrize(
    ("kind", "value", "expected"), [(0, "25000.0", 25000), (3, 25000, 25000), (6, 25000, 25000)]
)
def test_field_values_are_read_by_their_type(
    ask: Ask, kind: int, value: object, expected: int
) -> None:
    machine = nvswitch_box().set(f"gpu.0.field_type.{GET_SPEED}", kind)
    for link in range(12):
        machine.set(f"gpu.0.field.{GET_SPEED}.{link}", value)
    assert ask(machine).get_number("gpu/0/nvlink/0", fact_keys.NVLINK_SPEED_MBps) == expected


def test_the_common_speed_stands_in_for_that_of_a_link(ask: Ask) -> None:
    machine = (
        nvswitch_box()
        .set(f"gpu.0.field.{GET_SPEED}.2", "!3")
        .set(f"gpu.0.field.{SPEED_COMMON}.0", 24000)
    )
    facts = ask(machine)
    assert [
        facts.get_number(f"gpu/0/nvlink/{i}", fact_keys.NVLINK_SPEED_MBps) for i in (1, 2, 3)
    ] == [
        25000,
        24000,
        25000,
    ]
    assert (
        facts.get_source("gpu/0/nvlink/2", fact_keys.NVLINK_SPEED_MBps)
        == "nvmlDeviceGetFieldValues NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON"
    )


def test_cpu_affinity_is_written_as_linux_lists_cpus(ask: Ask) -> None:
    cpus = [*range(20), *range(40, 60), 63, 64, 8191]
    facts = ask(nvswitch_box().set("gpu.0.cpus", ",".join(map(str, cpus))))
    assert facts.get_text("gpu/0", fact_keys.GPU_CPU_AFFINITY) == "0-19,40-59,63-64,8191"


OLD = (
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetP2PStatus",
)


def test_a_library_too_old_for_half_the_questions_answers_the_others(
    ask: Ask, tmp_path: Path
) -> None:
    machine = hybrid_cube_mesh()
    facts = ask(machine, OLD)
    told = {f.missing for f in facts.missing}
    assert told == {"Function Not Found"}
    assert {f.key for f in facts.missing if f.subject == "gpu/0"} == {
        "numa_node",
        "gpu_numa_id",
        "mig",
        "fabric_state",
        "nvlink_count",
        "c2c_count",
    }
    assert nvlinks(probed(machine, tmp_path, without=OLD)) == nvlinks(preset("dgx1"))


def test_a_library_without_nvlink_functions_is_one_missing_fact_a_gpu(ask: Ask) -> None:
    facts = ask(hybrid_cube_mesh(), ("nvmlDeviceGetNvLinkState",))
    assert [f.subject for f in facts.missing if "nvlink" in f.subject] == [
        f"gpu/{i}/nvlink/0" for i in range(8)
    ]


def test_an_error_has_a_text_even_without_nvmlErrorString(tmp_path: Path) -> None:
    facts = asked_apart(
        nvswitch_box().fail("nvmlDeviceGetName", 25), tmp_path, ("nvmlErrorString",)
    )
    assert facts.get_reason("gpu/0", fact_keys.GPU_NAME) == "NVML Error with code 25"


@pytest.mark.parametrize(
    ("without", "note"),
    [
        ("nvmlInitWithFlags", "NVML does not answer: function not found; NVLinks are not known"),
        ("nvmlDeviceGetCount_v2", "nvml: count not known: nvmlDeviceGetCount: Function Not Found"),
        ("nvmlShutdown", None),
    ],
)
def test_a_library_that_lacks_what_every_program_needs_is_survived(
    tmp_path: Path, without: str, note: str | None
) -> None:
    topology = probed(two_socket_pcie(), tmp_path, without=(without,))
    assert len(topology.ranks) == 4
    assert notes(topology) == ([] if note is None else [note])


def test_an_older_pynvml_asks_what_it_can(monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    whole = known(ask(nvl72_tray()))
    for name in (
        "NVML_NVLINK_MAX_LINKS",
        "c_nvmlGpuFabricInfoV_t",
        "nvmlDeviceGetNumaNodeId",
        "NVMLError_GpuIsLost",
    ):
        monkeypatch.delattr(pynvml, name)
    facts = ask(nvl72_tray())
    assert whole - known(facts) == {(f"gpu/{i}", "gpu_numa_id") for i in range(4)}
    assert facts.get_source("gpu/0", fact_keys.GPU_FABRIC_STATE) == "nvmlDeviceGetGpuFabricInfo"
    monkeypatch.delattr(pynvml, "c_nvmlGpuFabricInfo_t")
    assert (
        ask(nvl72_tray()).get_reason("gpu/0", fact_keys.GPU_FABRIC_STATE)
        == "this version of pynvml has no c_nvmlGpuFabricInfoV_t"
    )


def test_a_python_without_pynvml_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert [f.missing for f in read_nvml().items] == [
        "the Python package nvidia-ml-py is not installed"
    ]
