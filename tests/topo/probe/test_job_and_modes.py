"""GPUs that a job may not use, modes that rule P2P out, and GPUs that are lost meanwhile: what
topo-probe --check says of them, through the real pynvml on a compiled library.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_machine import NOT_SUPPORTED, OK, Machine
from fake_nvml import asked, hybrid_cube_mesh, mig, notes, nvswitch_box, probed, two_socket_pcie
from needs import has_extra
from verdicts import judge_pairs, list_findings

from topoplan.cli.probe import main
from topoplan.topo.derived.hosts import join_hosts
from topoplan.topo.facts.keys import GPU_DENIED, GPU_LOST
from topoplan.topo.loader.resolve import resolve

if TYPE_CHECKING:
    from topoplan.topo.extras.doctor import Finding

HANDLE = "nvmlDeviceGetHandleByIndex_v2"
NO_PERMISSION, LOST, RESET_REQUIRED, UNKNOWN_ERROR = 4, 15, 16, 999
BAD = ("error", "warning")


def bad(machine: Machine, folder: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Kinds and devices of the errors and warnings on a machine."""
    return [(f.what, f.about) for f in findings(machine, folder) if f.severity in BAD]


def findings(machine: Machine, folder: Path) -> tuple[Finding, ...]:
    return list_findings(probed(machine, folder))


@pytest.mark.parametrize("function", [HANDLE, "*"])
def test_gpus_outside_the_job_are_neither_lost_nor_ranks_nor_an_alarm(
    tmp_path: Path, function: str
) -> None:
    machine = hybrid_cube_mesh()
    for gpu in (2, 3, 4, 5, 7):
        machine.fail(function, NO_PERMISSION, gpu)
        if function == "*":
            machine.fail(HANDLE, 0, gpu)
    topology = probed(machine, tmp_path)
    assert topology.ranks == ("gpu0", "gpu1", "gpu6")
    assert not any("does not answer" in note or "does not list" in note for note in notes(topology))
    found = list_findings(topology)
    assert [(f.what, len(f.about)) for f in found if "gpu" in f.what] == [("gpu-not-permitted", 5)]
    assert not any(f.severity in BAD for f in found)


def test_a_job_without_any_gpu_says_so(tmp_path: Path) -> None:
    topology = probed(nvswitch_box().fail(HANDLE, NO_PERMISSION), tmp_path)
    assert topology.ranks == ()
    assert [(f.severity, f.what) for f in list_findings(topology) if f.severity in BAD] == [
        ("warning", "gpu-not-permitted")
    ]


def test_nvlinks_that_may_not_be_asked_for_are_unknown_and_not_inactive(tmp_path: Path) -> None:
    machine = nvswitch_box().fail("nvmlDeviceGetNvLinkState", NO_PERMISSION)
    assert bad(machine, tmp_path) == [("nvlink-unknown", tuple(f"gpu{i}" for i in range(8)))]
    verdicts = [v for v in judge_pairs(probed(machine, tmp_path)) if v.kind == "p2p"]
    far = {v.answer for v in verdicts if "too far" in v.rule}
    assert far == {"unknown"}
    assert not any("through a CPU" in v.rule for v in verdicts)


def test_gpus_of_a_generation_without_nvlink_are_not_unknown(tmp_path: Path) -> None:
    machine = two_socket_pcie().fail("nvmlDeviceGetNvLinkState", UNKNOWN_ERROR)
    assert "nvlink-unknown" not in dict(bad(machine, tmp_path))


def test_mig_is_the_cause_and_p2p_no_error_of_its_own(tmp_path: Path) -> None:
    assert bad(mig(), tmp_path) == [("mig-on", ("gpu0",))]


@pytest.mark.parametrize(("p2p", "severity"), [(NOT_SUPPORTED, "warning"), (OK, "note")])
def test_confidential_computing_is_named_before_p2p(
    tmp_path: Path, p2p: int, severity: str
) -> None:
    machine = nvswitch_box().set("confidential", 1)
    for a, b in permutations(range(8), 2):
        machine.p2p(a, b, read=p2p, write=p2p)
    found = findings(machine, tmp_path)
    assert [(f.severity, f.what) for f in found if f.what != "slow-pcie-now"] == [
        (severity, "confidential-computing")
    ]


def test_many_gpus_on_pci_and_none_at_the_driver_is_an_error(tmp_path: Path) -> None:
    machine = nvswitch_box()
    for key in [key for key in machine.lines if key.startswith(("gpu.", "p2p.", "ancestor."))]:
        del machine.lines[key]
    found = findings(machine.set("count", 0), tmp_path)
    assert [(f.severity, f.what, len(f.about)) for f in found][:1] == [
        ("error", "gpu-not-listed", 8)
    ]


def test_a_fabric_completed_with_an_error_is_one(tmp_path: Path) -> None:
    machine = nvswitch_box()
    for gpu in range(8):
        machine.lines |= {f"gpu.{gpu}.fabric.state": 3, f"gpu.{gpu}.fabric.status": 999}
    assert [what for what, _ in bad(machine, tmp_path)] == ["fabric-not-completed"]


def test_a_gpu_that_wants_a_reset_is_lost(tmp_path: Path) -> None:
    machine = nvswitch_box().fail("*", RESET_REQUIRED, 3).fail(HANDLE, 0, 3)
    assert ("gpu-lost", ("gpu3",)) in bad(machine, tmp_path)


def test_a_gpu_lost_while_pairs_are_asked_is_found() -> None:
    """The last questions are those of pairs, whose errors do not tell which GPU it is."""
    machine = nvswitch_box().fail("nvmlDeviceGetP2PStatus", LOST, 3)
    facts = asked(machine)
    assert [i for i in map(str, range(8)) if facts.get_text(f"gpu/{i}", GPU_LOST)] == ["3"]
    assert not any(facts.get_text(f"gpu/{i}", GPU_DENIED) for i in range(8))


@pytest.mark.skipif(not has_extra("amd"), reason="no extra amd")
def test_makers_are_told_apart_across_formats_and_a_file_given_twice_is_no_error(
    more_inputs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nvidia = str(more_inputs("probe/27-vllm-issue-indented-8gpu-1nic-SYS_id17104797160.txt"))
    amd = str(more_inputs("probe/33-frontier-like-4gpu-rocm-smi-5.5-numa-format_id35984609314.txt"))
    both = join_hosts([resolve(nvidia), resolve(amd)])
    assert "mixed-makers" in {f.what for f in list_findings(both)}
    assert main([nvidia, nvidia, "--json", "-o", str(tmp_path / "two.json")]) == 0
    assert "is given 2 times" in capsys.readouterr().err
    assert len(resolve(str(tmp_path / "two.json")).ranks) == 16


@pytest.mark.parametrize(
    ("name", "cpus"),
    [
        ("18-1xH100-6nic-after-numactl_id23243314046.md", 2),
        ("27-vllm-issue-indented-8gpu-1nic-SYS_id17104797160.txt", 2),
        ("37-8gpu-all-SYS-PIX-nic-each_deepep-128-completed.txt", 2),
        ("47-gb200-numa-ids_sglang-11208-completed.txt", 2),
    ],
)
def test_nics_far_from_all_gpus_get_no_cpu_of_their_own(
    name: str, cpus: int, more_inputs: Callable[[str], Path]
) -> None:
    machine = resolve(str(more_inputs(f"probe/{name}")))
    assert sum(d.kind == "cpu" for d in machine.devices) == cpus
    assert not any(f.severity in BAD for f in list_findings(machine))


def test_numa_nodes_of_one_socket_are_not_drawn_as_sockets(tmp_path: Path) -> None:
    head = "\t".join(["", *(f"GPU{i}" for i in range(4)), "CPU Affinity", "NUMA Affinity"])
    rows = [
        "\t".join([f"GPU{i}", *("X" if i == j else "SYS" for j in range(4)), f"{i}", f"{i}"])
        for i in range(4)
    ]
    text = tmp_path / "nps4.txt"
    text.write_text("\n".join([head, *rows]) + "\n")
    for form in ("tree", *(["svg"] * has_extra("pictures"))):
        assert main([str(text), "--format", form, "-o", str(tmp_path / form)]) == 0
        drawn = (tmp_path / form).read_text()
        assert "NUMA nodes" in drawn and "socket" not in drawn
