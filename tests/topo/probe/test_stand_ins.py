"""Machines on which NVLink and P2P are missing for a reason of their own: the reason is named, and
nothing that follows from it; through the real pynvml on a compiled library, in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import permutations
from pathlib import Path

import pytest
from fake_library import serve
from fake_machine import CAPABILITIES, GPU_CANNOT, NOT_SUPPORTED, Machine
from fake_nvml import captured, hybrid_cube_mesh, nvl72_tray, nvswitch_box, two_socket_pcie

from topoplan.topo.doctor import list_findings
from topoplan.topo.gpudirect import Verdict, judge_pairs
from topoplan.topo.graph import Topology
from topoplan.topo.probe.join import probe_local

NO_PERMISSION, UNSUPPORTED, UNKNOWN_ERROR = 4, 3, 999
STATE = "nvmlDeviceGetNvLinkState"
Probe = Callable[..., Topology]


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """What the probe finds on a machine: `probe(machine, environment)`."""

    def probed(machine: Machine, environment: Mapping[str, str] | None = None) -> Topology:
        serve(monkeypatch, machine)
        return probe_local(captured(machine, tmp_path), environment or {})

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
