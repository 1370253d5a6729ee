"""Fabrics of several machines and NVLink-C2C, through the real pynvml on a compiled library."""

from __future__ import annotations

import pytest
from fact_keys import find_key
from fake_machine import (
    C2C_COUNT,
    C2C_MAX_BW,
    C2C_STATUS,
)
from fake_nvml import (
    asked,
    grace,
    nvl72_tray,
)

from topoplan.topo.facts import keys as fact_keys


def test_a_tray_of_an_nvl72_knows_its_cluster_and_clique() -> None:
    facts = asked(nvl72_tray())
    told = {
        key: facts.get_text("gpu/2", find_key("gpu/2", key))
        for key in ("fabric_state", "fabric_cluster", "fabric_clique")
    }
    cluster = "01234567-89ab-cdef-0123-456789abcdef"
    assert told == {
        "fabric_state": "completed",
        "fabric_cluster": cluster,
        "fabric_clique": "32766",
    }
    assert [facts.get_number(f"gpu/{i}", fact_keys.GPU_OWN_NUMA_NODE) for i in range(4)] == [
        2,
        10,
        18,
        26,
    ]
    assert facts.get_text("gpu/2", fact_keys.GPU_BUS_ID) == "0018:01:00.0"


def test_the_health_of_the_fabric_is_told_in_words() -> None:
    machine = nvl72_tray()
    for gpu, mask in enumerate((0, 0x1AA, 0x1A9, 0x59A)):
        machine.set(f"gpu.{gpu}.fabric.health", mask)
    facts = asked(machine)
    told = [facts.get_text(f"gpu/{i}", fact_keys.GPU_FABRIC_HEALTH) for i in range(4)]
    wrong = "unhealthy routes, incorrect configuration"
    assert told == [None, "healthy", "degraded bandwidth", wrong]


@pytest.mark.parametrize(
    ("changes", "without"),
    [({"fabric.version": 3}, ()), ({}, ("nvmlDeviceGetGpuFabricInfoV",))],
    ids=["another version of the structure", "an older library"],
)
def test_the_older_function_tells_of_the_fabric_where_the_newer_does_not(
    changes: dict[str, int], without: tuple[str, ...]
) -> None:
    machine = nvl72_tray()
    for key, value in changes.items():
        machine.set(f"gpu.1.{key}", value)
    facts = asked(machine, without)
    assert facts.get_number("gpu/1", fact_keys.GPU_FABRIC_CLIQUE) == 32766
    assert facts.get_source("gpu/1", fact_keys.GPU_FABRIC_STATE) == "nvmlDeviceGetGpuFabricInfo"


@pytest.mark.parametrize(
    ("changes", "value", "reason"),
    [
        ({"state": 0}, "not supported", None),
        ({"state": 1}, "not started", None),
        ({"state": 2}, "in progress", None),
        ({"state": 9}, None, "fabric state is 9, which is not known here"),
        ({"state": 3, "status": 999}, None, "registration with the fabric failed: Unknown Error"),
    ],
)
def test_a_fabric_that_is_not_there_yet_has_no_cluster(
    changes: dict[str, int], value: str | None, reason: str | None
) -> None:
    machine = nvl72_tray()
    for key, number in changes.items():
        machine.set(f"gpu.1.fabric.{key}", number)
    facts = asked(machine)
    assert (
        facts.get_text("gpu/1", fact_keys.GPU_FABRIC_STATE),
        facts.get_reason("gpu/1", fact_keys.GPU_FABRIC_STATE),
    ) == (
        value,
        reason,
    )
    assert {f.key for f in facts.items if f.subject == "gpu/1" and "fabric" in f.key} == {
        "fabric_state"
    }


def test_c2c_links_and_the_memory_of_the_gpu_as_a_numa_node_are_told() -> None:
    facts = asked(grace())
    told = {
        key: facts.get_number("gpu/0", find_key("gpu/0", key))
        for key in ("c2c_count", "c2c_MBps", "gpu_numa_id", "numa_node")
    }
    assert told == {"c2c_count": 10, "c2c_MBps": 450_000, "gpu_numa_id": 1, "numa_node": 0}


def test_only_active_c2c_links_count() -> None:
    machine = (
        grace().set(f"gpu.0.field.{C2C_STATUS}.3", 0).set(f"gpu.0.field.{C2C_STATUS}.4", "!999")
    )
    facts = asked(machine)
    assert (
        facts.get_number("gpu/0", fact_keys.GPU_C2C_COUNT),
        facts.get_number("gpu/0", fact_keys.GPU_C2C_MBps),
    ) == (
        8,
        360_000,
    )
    facts = asked(machine.set(f"gpu.0.field.{C2C_MAX_BW}.5", "!4"))
    assert facts.get_reason("gpu/0", fact_keys.GPU_C2C_MBps) == "Insufficient Permissions"
    facts = asked(machine.set(f"gpu.0.field.{C2C_COUNT}.0", 0))
    assert facts.get_number("gpu/0", fact_keys.GPU_C2C_COUNT) == 0
    assert ("gpu/0", "c2c_MBps") not in {(f.subject, f.key) for f in facts.items}
