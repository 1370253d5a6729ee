"""GPUDirect verdicts: each rule with a machine that triggers it and one that just does not; any
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples

from topoplan.topo.errors import InputError
from topoplan.topo.extras.gpudirect import Verdict, format_verdicts, group_verdicts, judge_pairs
from topoplan.topo.facts import Fact, Facts, facts_to_json
from topoplan.topo.formats import nccl_xml
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.notes import Note
from topoplan.topo.presets import preset

BRIDGES = {
    "gpu0": ("r0", "u0", "d0"),
    "gpu1": ("r0", "u0", "d1"),
    "gpu2": ("r1", "u1", "d2"),
    "mlx5_0": ("r0", "u0", "d3"),
}
GOOD = {
    ("host", "virtual"): "no",
    ("host", "iommu"): "off",
    ("host", "peermem"): "550.54",
    ("host", "dma_buf"): "no",
    **{
        (f"gpu/{a}/p2p/{b}", key): "ok"
        for a in range(3)
        for b in range(3)
        if a != b
        for key in ("read", "write")
    },
    **{(f"gpu/{i}", "name"): "NVIDIA L40S" for i in range(3)},
    **{(f"pci/{port}", "acs"): "off" for chain in BRIDGES.values() for port in chain},
    **{(f"pci/bus-{name}", "bridges"): chain for name, chain in BRIDGES.items()},
    ("rdma/mlx5_0", "state"): "4: ACTIVE",
}
Changes = Mapping[tuple[str, str], Any]


def cable(a: str, b: str, kind: str = "pcie", us: str = "1/2") -> tuple[Link, Link]:
    return both_directions(Link(a, b, Fraction(12), Fraction(us), kind))


def box(
    changes: Changes | None = None,
    more: Iterable[Link] = (),
    *,
    gpus: int = 3,
    cpu: Mapping[str, str] | None = None,
    told: Mapping[str, Mapping[str, Any]] | None = None,
    facts: bool = True,
) -> Topology:
    """gpu0, gpu1 and a NIC below one switch; gpu2 on the second CPU. `changes` to the facts: a
    value, None for missing.

    `told` is what a file says of devices (`extra`); without `facts` there are none.
    """
    extra = told or {}
    names = [f"gpu{i}" for i in range(gpus)]
    devices = [Device(name, bus_id=f"bus-{name}", extra=extra.get(name, {})) for name in names]
    devices += [
        Device(f"cpu{i}", "cpu", extra=cpu or {"vendor": "GenuineIntel", "arch": "x86_64"})
        for i in range(2)
    ]
    devices += [
        Device("plx0", "switch", "pcie"),
        Device("mlx5_0", "nic", bus_id="bus-mlx5_0", extra=extra.get("mlx5_0", {})),
    ]
    links = [
        *cable("gpu0", "plx0"),
        *cable("gpu1", "plx0"),
        *cable("mlx5_0", "plx0"),
        *cable("plx0", "cpu0"),
    ]
    links += [*cable("cpu0", "cpu1", "smp"), *(cable("gpu2", "cpu1") if gpus > 2 else ()), *more]
    known = {**GOOD, **(changes or {})}
    items = [
        Fact(subject, key, value, "nvmlTest", "a reason" if value is None else None)
        for (subject, key), value in known.items()
        if value != "never asked"
    ]
    kept = {"facts": facts_to_json(Facts(tuple(items)))} if facts else {}
    return Topology("box", tuple(devices), tuple(links), extra=kept)


def judged(topology: Topology, a: str, b: str) -> Verdict:
    return next(v for v in judge_pairs(topology) if (v.a, v.b) == (a, b))


NVLINK = cable("gpu0", "gpu1", "nvlink", "3/5")
PAIR = ("gpu0", "gpu1")


def test_gpus_below_one_switch_with_nothing_between_are_p2p() -> None:
    verdict = judged(box(), "gpu0", "gpu1")
    assert (verdict.answer, verdict.advice) == ("yes", None)
    told = (
        "path PIX",
        "NVML: read ok, write ok",
        "ACS redirect is off between them",
        "no hypervisor",
        "IOMMU: off",
    )
    assert verdict.evidence == told


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ({"name": "NVIDIA GeForce RTX 4090"}, "no"),
        ({"pci": {"device": "0x2684"}}, "no"),
        ({"name": "NVIDIA GeForce RTX 3090"}, "no"),
        ({"name": "NVIDIA GeForce GTX 1080 Ti"}, "unknown"),
        ({"name": "NVIDIA RTX A6000"}, "unknown"),
        ({"name": "NVIDIA RTX PRO 6000 Blackwell"}, "unknown"),
    ],
)
def test_no_p2p_is_promised_where_nvidias_driver_has_none_over_pcie(
    told: dict[str, Any], answer: str
) -> None:
    boards = {f"gpu{i}": told for i in range(3)}
    near = judged(box(told=boards, facts=False), "gpu0", "gpu1")
    far = judged(box(told=boards, facts=False), "gpu0", "gpu2")
    assert near.answer == answer and far.answer == "no"
    assert ("has no P2P over PCIe" in near.rule) == (answer == "no")
    assert ("switches it on" in str(far.advice)) == (answer != "no")
    # NVLink bridges have it, and a changed driver that NVML says to have it.
    assert "over PCIe" not in judged(box(None, NVLINK, told=boards, facts=False), *PAIR).rule
    assert judged(box(told=boards), *PAIR).answer == "yes"


def test_a_board_that_rates_are_of_counts_as_named() -> None:
    source = "assumed: Gen4 x16, by the GPUs: RTX 4090, which line 9 mentions"
    bare = box(facts=False)
    topology = replace(bare, links=tuple(replace(x, source=source) for x in bare.links))
    assert "for RTX 4090" in judged(topology, *PAIR).rule
    declared = {"declared": {"GBps": 12, "source": source}}
    kept = tuple(replace(x, source="measured", extra=declared) for x in topology.links)
    assert "for RTX 4090" in judged(replace(topology, links=kept), *PAIR).rule
    guessed = tuple(replace(x, source="assumed: as RTX 4090 has") for x in bare.links)
    assert judged(replace(bare, links=guessed), *PAIR).answer == "unknown"


def test_which_way_was_measured_to_be_faster_decides_on_advice() -> None:
    def measure(topology: Topology, direct: int, other: int) -> Topology:
        ends = (("gpu0", "gpu1"), ("gpu0", "gpu2"))
        pairs = [
            {"src": a, "dst": b, "GBps": direct, "through_memory_GBps": other} for a, b in ends
        ]
        return replace(topology, extra={**topology.extra, "measured": {"pairs": pairs}})

    slow = judged(measure(box(), 10, 20), "gpu0", "gpu2")
    assert slow.advice is not None and slow.advice.startswith("leave it off")
    for direct in (19, 30):
        advice = judged(measure(box(), direct, 20), "gpu0", "gpu2").advice
        assert advice == "NCCL_P2P_LEVEL=SYS switches it on; measure whether that is faster"
    geforce = {f"gpu{i}": {"name": "NVIDIA GeForce RTX 4090"} for i in range(3)}
    bare = box(told=geforce, facts=False)
    assert judged(measure(bare, 30, 20), *PAIR).answer == "unknown"
    assert judged(measure(bare, 20, 20), *PAIR).answer == "no"


@pytest.mark.parametrize(
    ("changes", "answer", "rule", "advice"),
    [
        (
            {("gpu/0/p2p/1", "read"): "chipset not supported"},
            "no",
            "through this chipset",
            "IOMMU and ACS off",
        ),
        ({("gpu/1/p2p/0", "write"): "gpu not supported"}, "no", "with these GPUs", "GPUs that can"),
        (
            {("gpu/0/p2p/1", "read"): "topology not supported"},
            "no",
            "between these slots",
            "root complex",
        ),
        (
            {("gpu/0/p2p/1", "read"): "disabled by registry key"},
            "no",
            "option of the driver",
            "NVreg_RegistryDwords",
        ),
        ({("gpu/0/p2p/1", "read"): "not supported"}, "no", "does not do P2P", "topo -p2p"),
        (
            {("gpu/0/p2p/1", "read"): "gpu not supported", ("gpu/1", "name"): "GeForce RTX 5090"},
            "no",
            "",
            "GeForce",
        ),
        (
            {("gpu/0/p2p/1", "read"): None, ("gpu/1/p2p/0", "read"): None},
            "unknown",
            "driver allows",
            "try it",
        ),
        # the other direction knows
        ({("gpu/0/p2p/1", "read"): None}, "yes", "nothing stands between", None),
        ({("gpu/1", "mig"): "on"}, "no", "MIG", "nvidia-smi -mig 0"),
        ({("gpu/1", "mig"): "off"}, "yes", "", None),
        ({("gpu/1", "lost"): "GPU is lost"}, "no", "does not answer", "dmesg"),
        (
            {("pci/d0", "acs"): "request redirect, upstream forwarding"},
            "no",
            "ACS",
            "for b in d0; do setpci",
        ),
        ({("pci/d1", "acs"): "completion redirect"}, "no", "ACS", "for b in d1;"),
        ({("pci/d0", "acs"): "source validation, upstream forwarding"}, "yes", "", None),
        (
            {("pci/r0", "acs"): "request redirect", ("pci/u0", "acs"): "request redirect"},
            "yes",
            "",
            None,
        ),  # above both
        ({("pci/d0", "acs"): "request redirect, direct translated"}, "unknown", "ATS", "measure"),
        (
            {("pci/d0", "acs"): None},
            "unknown",
            "ACS of the bridges",
            "on the machine itself, as root",
        ),
        ({("host", "iommu"): "translating"}, "no", "IOMMU translates", "iommu=pt"),
        ({("host", "iommu"): "passthrough"}, "yes", "", None),
        ({("host", "iommu"): None}, "unknown", "IOMMU", "as root"),
        ({("host", "virtual"): "KVM"}, "unknown", "guest", "ATS"),
        ({("host", "virtual"): "KVM", ("host", "iommu"): "translating"}, "unknown", "guest", "ATS"),
        ({("host", "virtual"): None}, "unknown", "guest", "as root"),
    ],
)
def test_each_rule_on_gpus_below_one_switch(
    changes: Changes, answer: str, rule: str, advice: str | None
) -> None:
    verdict = judged(box(changes), "gpu0", "gpu1")
    assert verdict.answer == answer, verdict
    assert rule in verdict.rule
    assert (advice is None) == (verdict.advice is None)
    assert (advice or "") in (verdict.advice or "")


def test_unreadable_acs_says_that_root_is_needed() -> None:
    topology = box()
    facts = [f for f in topology.extra["facts"] if (f["subject"], f["key"]) != ("pci/d0", "acs")]
    missing = "only root may read it: the file has 64 bytes"
    facts.append({"subject": "pci/d0", "key": "acs", "source": "test", "missing": missing})
    verdict = judged(replace(topology, extra={"facts": facts}), "gpu0", "gpu1")
    assert (verdict.answer, verdict.evidence[-1]) == ("unknown", f"ACS: {missing}")
    assert "root" in str(verdict.advice)


def test_a_rule_that_says_no_comes_before_what_is_not_known() -> None:
    unasked = {("gpu/0/p2p/1", "read"): None, ("gpu/1/p2p/0", "read"): None}
    assert (
        judged(box({**unasked, ("pci/d0", "acs"): "request redirect"}), "gpu0", "gpu1").answer
        == "no"
    )
    far = {("gpu/0/p2p/2", "read"): None, ("gpu/2/p2p/0", "read"): None}
    assert judged(box(far), "gpu0", "gpu2").answer == "no"


def test_nvlink_counts_whatever_acs_and_the_iommu_do_but_not_without_the_driver() -> None:
    broken = {
        ("pci/d0", "acs"): "request redirect",
        ("host", "iommu"): "translating",
        ("host", "virtual"): "KVM",
    }
    assert judged(box(broken, NVLINK), "gpu0", "gpu1").answer == "yes"
    refused = judged(box({("gpu/0/p2p/1", "read"): "not supported"}, NVLINK), "gpu0", "gpu1")
    assert refused.answer == "no"
    assert "NCCL ends with an error" in str(refused.advice)
    unasked = judged(box({}, NVLINK, facts=False), "gpu0", "gpu1")
    assert (unasked.answer, unasked.evidence) == ("unknown", ("path NV1", "NVML: not asked"))
    told = {(f"gpu/{a}/p2p/{b}", "read"): None for a, b in ((0, 1), (1, 0))}
    half = judged(box(told, NVLINK), "gpu0", "gpu1")
    assert half.evidence == ("path NV1", "NVML: write ok, read a reason")


def test_beyond_pxb_nccl_says_no_and_its_variable_is_named() -> None:
    verdict = judged(box(), "gpu0", "gpu2")
    assert verdict.answer == "no"
    assert "NCCL_P2P_LEVEL=SYS" in str(verdict.advice)


@pytest.mark.parametrize(
    ("vendor", "third", "answer"),
    [
        ("AuthenticAMD", False, "yes"),
        ("AuthenticAMD", True, "no"),
        ("GenuineIntel", False, "no"),
        (None, False, "unknown"),
    ],
)
def test_two_gpus_under_amd_cpus_may_be_any_distance_apart(
    vendor: str | None, third: bool, answer: str
) -> None:
    devices = [Device(f"gpu{i}", bus_id=f"bus-gpu{i}") for i in range(3 if third else 2)]
    devices += [
        Device(f"cpu{i}", "cpu", extra={"vendor": vendor} if vendor else {}) for i in range(2)
    ]
    links = [link for i in range(2) for link in cable(f"gpu{i}", f"cpu{i}")] + list(
        cable("cpu0", "cpu1", "smp")
    )
    links += cable("gpu2", "cpu0") if third else ()
    topology = Topology("pair", tuple(devices), tuple(links), extra=box().extra)
    assert judged(topology, "gpu0", "gpu1").answer == answer


def test_nvlinks_through_one_gpu_are_p2p_where_both_legs_are() -> None:
    wires = (*NVLINK, *cable("gpu1", "gpu2", "nvlink", "3/5"))
    verdict = judged(box({}, wires), "gpu0", "gpu2")
    assert (verdict.answer, verdict.evidence[0]) == ("yes", "path SYS, NVB to NCCL")
    refused = judged(box({("gpu/1/p2p/2", "write"): "not supported"}, wires), "gpu0", "gpu2")
    assert refused.answer == "no"
    assert judged(box({}, NVLINK), "gpu0", "gpu2").answer == "no"  # one leg only


def test_gpus_with_c2c_to_one_cpu_are_near_and_others_are_not() -> None:
    devices = (Device("gpu0"), Device("gpu1"), Device("gpu2"), Device("cpu0", "cpu"))
    links = (*cable("gpu0", "cpu0", "c2c"), *cable("gpu1", "cpu0", "c2c"), *cable("gpu2", "cpu0"))
    topology = Topology("grace", devices, links, extra=box().extra)
    assert judged(topology, "gpu0", "gpu1").answer == "yes"
    assert judged(topology, "gpu0", "gpu2").answer == "no"


def test_a_file_of_gpus_with_nvlink_that_lists_none_gives_no_verdict_by_distance() -> None:
    for sm, answer in ((90, "unknown"), (89, "no")):
        told = {f"gpu{i}": {"sm": sm} for i in range(3)}
        assert judged(box(told=told, facts=False), "gpu0", "gpu2").answer == answer


def test_xgmi_is_taken_without_asking_and_distance_goes_by_the_cpu() -> None:
    told = {f"gpu{i}": {"gcn": "gfx942"} for i in range(3)}
    direct = judged(
        box({}, cable("gpu0", "gpu1", "xgmi", "3/5"), told=told, facts=False), "gpu0", "gpu1"
    )
    assert (direct.answer, direct.evidence) == ("yes", ("path XGMI1",))
    intel = judged(box({}, told=told), "gpu0", "gpu2")
    amd = judged(box({}, told=told, cpu={"vendor": "AuthenticAMD"}), "gpu0", "gpu2")
    assert (intel.answer, amd.answer) == ("no", "yes")


def test_links_of_no_known_kind_give_no_verdict() -> None:
    assert {v.answer for v in judge_pairs(preset("ring:4"))} == {"unknown"}


def test_a_nic_below_the_same_switch_reaches_the_gpu() -> None:
    verdict = judged(box(), "gpu0", "mlx5_0")
    assert (verdict.kind, verdict.answer) == ("rdma", "yes")
    assert "peer memory: 550.54" in verdict.evidence


@pytest.mark.parametrize(("dev", "guid"), [(0, "0x0"), (3, "0x3"), ("3", "0x0")])
def test_sockets_get_no_advice_for_the_driver_of_a_card(dev: int | str, guid: str) -> None:
    told = {"mlx5_0": {"gdr": 0, "dev": dev, "guid": guid}}
    verdict = judged(box(told=told, facts=False), "gpu0", "mlx5_0")
    assert verdict.answer == "no" and "sockets" in verdict.rule
    assert "peermem" not in (verdict.advice or "")


NO_WAY_IN = {("host", "peermem"): "no"}
NO_RDMA = {("rdma/mlx5_0", "state"): "never asked", ("net/mlx5_0", "state"): "up"}


@pytest.mark.parametrize(
    ("changes", "answer", "rule", "advice"),
    [
        (NO_WAY_IN, "no", "cannot reach GPU memory", "modprobe nvidia-peermem"),
        ({**NO_WAY_IN, ("host", "dma_buf"): "yes"}, "yes", "", None),
        ({**NO_WAY_IN, ("host", "dma_buf"): None}, "unknown", "not known", "as root"),
        ({**NO_WAY_IN, ("pci/bus-mlx5_0", "driver"): "efa"}, "unknown", "EFA", "fi_info"),
        (NO_RDMA, "no", "network interface only", "RDMA driver"),
        (
            {**NO_RDMA, ("pci/bus-mlx5_0", "vendor"): "0x1af4"},
            "no",
            "network interface only",
            "virtio",
        ),
        (
            {**NO_RDMA, ("pci/bus-mlx5_0", "vendor"): "0x1d0f"},
            "no",
            "network interface only",
            "EFA",
        ),
        ({("rdma/mlx5_0", "state"): "1: DOWN"}, "no", "not active", "ibstat"),
        ({("gpu/0", "name"): "NVIDIA GeForce RTX 4090"}, "no", "GeForce", "host memory"),
        ({("gpu/0", "name"): None}, "unknown", "whether the GPU can", "gdr"),
        ({("gpu/0", "lost"): "GPU is lost"}, "no", "does not answer", "dmesg"),
        ({("pci/d3", "acs"): "request redirect"}, "no", "ACS", "for b in d3;"),
        ({("pci/d1", "acs"): "request redirect"}, "yes", "", None),  # not between these two
        ({("pci/d3", "acs"): None}, "unknown", "ACS of the bridges", "as root"),
        ({("host", "iommu"): "translating"}, "no", "IOMMU", "iommu=pt"),
        ({("host", "virtual"): "KVM"}, "unknown", "guest", "ATS"),
        ({("gpu/0", "sm"): 80}, "yes", "near", None),
        ({("gpu/0", "sm"): 75}, "yes", "only receives", "NCCL_NET_GDR_READ=1"),
    ],
)
def test_each_rule_on_a_gpu_and_a_nic(
    changes: Changes, answer: str, rule: str, advice: str | None
) -> None:
    verdict = judged(box(changes), "gpu0", "mlx5_0")
    assert verdict.answer == answer, verdict
    assert rule in verdict.rule
    assert (advice is None) == (verdict.advice is None)
    assert (advice or "") in (verdict.advice or "")


def test_before_sm_80_a_gpu_with_nvlink_sends_too() -> None:
    assert judged(box({("gpu/0", "sm"): 70}, NVLINK), "gpu0", "mlx5_0").advice is None


def test_a_gpu_on_the_other_cpu_is_too_far_from_the_nic() -> None:
    verdict = judged(box(), "gpu2", "mlx5_0")
    assert verdict.answer == "no"
    assert "NCCL_NET_GDR_LEVEL=SYS" in str(verdict.advice)


@pytest.mark.parametrize(
    ("gpu", "nic", "answer"), [(1, 1, "yes"), (0, 1, "no"), (1, 0, "no"), (1, None, "unknown")]
)
def test_what_nccl_found_out_and_wrote_into_its_file_is_believed(
    gpu: int, nic: int | None, answer: str
) -> None:
    told = {"gpu0": {"gdr": gpu}, "mlx5_0": {} if nic is None else {"gdr": nic}}
    assert judged(box(told=told, facts=False), "gpu0", "mlx5_0").answer == answer


@pytest.mark.parametrize(("near_nic", "answer"), [(False, "yes"), (True, "no")])
def test_over_c2c_the_nic_of_the_cpu_is_near_unless_another_is_nearer(
    near_nic: bool, answer: str
) -> None:
    devices = [
        Device("gpu0", extra={"gdr": 1}),
        Device("cpu0", "cpu"),
        Device("nic0", "nic", extra={"gdr": 1}),
    ]
    links = [*cable("gpu0", "cpu0", "c2c"), *cable("nic0", "cpu0")]
    if near_nic:
        devices += [Device("plx0", "switch", "pcie"), Device("nic1", "nic", extra={"gdr": 1})]
        links += [
            *cable("gpu0", "plx0", us="1/10"),
            *cable("nic1", "plx0", us="1/10"),
            *cable("plx0", "cpu0"),
        ]
    assert judged(Topology("grace", tuple(devices), tuple(links)), "gpu0", "nic0").answer == answer


@pytest.mark.parametrize(("kind", "answer"), [("c2c", "unknown"), ("pcie", "no")])
def test_a_nic_whose_cpu_is_assumed_is_near_no_gpu_for_it(kind: str, answer: str) -> None:
    devices = (
        Device("gpu0", extra={"gdr": 1}),
        Device("cpu0", "cpu"),
        Device("nic0", "nic", extra={"gdr": 1, "assumed_place": 1}),
        Device("nic1", "nic", extra={"gdr": 1}),
    )
    links = (*cable("gpu0", "cpu0", kind), *cable("nic0", "cpu0"), *cable("nic1", "cpu0"))
    verdict = judged(Topology("lonely", devices, links), "gpu0", "nic0")
    assert verdict.answer == answer
    assert verdict.evidence[0] == "path through a CPU; which one has the NIC is not known"
    assert verdict.advice is None if kind == "c2c" else "LEVEL=SYS" in (verdict.advice or "")
    known = judged(Topology("lonely", devices, links), "gpu0", "nic1")
    assert known.evidence[0] in ("path PHB", "path PHB, P2C to NCCL")


@pytest.mark.parametrize(
    ("cpu", "bus_id", "answer"),
    [
        ({"vendor": "AuthenticAMD", "familyid": "143", "modelid": "49"}, "0000:c7:00.0", "yes"),
        ({"vendor": "AuthenticAMD", "familyid": "143", "modelid": "49"}, "0000:d1:00.0", "no"),
        ({"vendor": "AuthenticAMD", "familyid": "143", "modelid": "1"}, "0000:c7:00.0", "no"),
        ({"vendor": "GenuineIntel", "familyid": "6", "modelid": "143"}, "0000:c7:00.0", "no"),
    ],
)
def test_rccl_lets_one_cpu_of_the_rome_sort_be_between(
    cpu: dict[str, str], bus_id: str, answer: str
) -> None:
    gpu = Device("gpu0", bus_id="0000:c3:00.0", extra={"gdr": 1, "gcn": "gfx90a"})
    nic = Device("nic0", "nic", bus_id=bus_id, extra={"gdr": 1})
    links = (*cable("gpu0", "cpu0"), *cable("nic0", "cpu0"))
    assert (
        judged(
            Topology("rome", (gpu, nic, Device("cpu0", "cpu", extra=cpu)), links), "gpu0", "nic0"
        ).answer
        == answer
    )


def test_pairs_on_different_hosts_have_no_verdict() -> None:
    found = judge_pairs(preset("dgx-a100:2"))
    expected = [
        pair for first in (0, 8) for pair in combinations([f"gpu{first + i}" for i in range(8)], 2)
    ]
    assert [(v.a, v.b) for v in found] == expected


def test_too_many_pairs_are_refused_with_an_input_error() -> None:
    with pytest.raises(InputError, match="one host at a time"):
        judge_pairs(preset("switch:4096"))


def test_an_oci_h100_says_which_nics_are_near_and_that_nvml_was_not_asked(
    recorded: Callable[[str], Path],
) -> None:
    path = recorded("nccl_xml/oci/H100-topology.xml")
    found = judge_pairs(nccl_xml.read(path.read_text(), str(path)))
    assert len(found) == 28 + 8 * 16
    assert {v.answer for v in found if v.kind == "p2p"} == {"unknown"}
    near = [(v.a, v.b) for v in found if v.kind == "rdma" and v.answer == "yes"]
    assert near[:4] == [
        ("gpu0", "mlx5_0"),
        ("gpu0", "mlx5_1"),
        ("gpu1", "mlx5_3"),
        ("gpu1", "mlx5_4"),
    ]
    assert len(near) == 16
    assert len(group_verdicts(found)) == 4
    assert format_verdicts(found)[0].startswith("P2P unknown: gpu0-gpu7 with each other: ")


def test_eight_mi300x_are_p2p_over_xgmi(recorded: Callable[[str], Path]) -> None:
    path = recorded("nccl_xml/rccl/topo_8p_940.xml")
    found = judge_pairs(nccl_xml.read(path.read_text(), str(path)))
    assert {v.answer for v in found if v.kind == "p2p"} == {"yes"}


def test_what_cannot_do_it_at_all_is_said_before_how_far_it_is() -> None:
    told = {"gpu2": {"gdr": 1}, "mlx5_0": {"gdr": 0}}
    verdict = judged(box(told=told, facts=False), "gpu2", "mlx5_0")
    assert (verdict.answer, verdict.rule) == ("no", "the NIC's driver cannot reach GPU memory")
    assert "GDR_LEVEL" not in str(verdict.advice)


def test_where_a_text_leaves_nvlinks_out_or_none_is_active_p2p_over_pcie_is_not_the_advice() -> (
    None
):
    left_out = box(facts=False)
    left_out = replace(left_out, extra={"notes": [Note("topo -mp", "nvlinks-left-out")]})
    assert judged(left_out, "gpu0", "gpu2").answer == "unknown"
    dead = {(f"gpu/{i}/nvlink/0", "state"): "inactive" for i in range(3)}
    dead |= {(f"gpu/{i}", "name"): "NVIDIA H100 80GB HBM3" for i in range(3)}
    verdict = judged(box(dead), "gpu0", "gpu2")
    assert "none of the boards' NVLinks is active" in str(verdict.advice)


def test_groups_name_their_pairs_in_few_words() -> None:
    def said(pairs: Iterable[tuple[str, str]], kind: str = "p2p") -> str:
        return group_verdicts(Verdict(kind, a, b, "no", "rule", ()) for a, b in pairs)[
            0
        ].describe_pairs()

    gpus = [f"gpu{i}" for i in range(12)]
    assert said(combinations(gpus, 2)) == "gpu0-gpu11 with each other"
    assert said((a, b) for a in gpus[:4] for b in gpus[4:6]) == "gpu0-gpu3 with gpu4, gpu5"
    assert said([("gpu0", "gpu1"), ("gpu2", "gpu3")]) == "gpu0 with gpu1; gpu2 with gpu3"
    hosts = [(f"host{h}/{a}", f"host{h}/nic{i}") for h in range(18) for i, a in enumerate(gpus[:3])]
    assert said(hosts, "rdma") == "on host0-host17 gpu0 with nic0; gpu1 with nic1; gpu2 with nic2"
    trays = [
        pair for t in range(18) for pair in combinations([f"gpu{4 * t + i}" for i in range(4)], 2)
    ]
    assert said(trays) == "gpu0-gpu3 with each other, and so on in sets of 4 up to gpu68-gpu71"
    assert said([(a, "mlx5_0") for a in gpus], "rdma") == "gpu0-gpu11 with mlx5_0"


def test_a_line_gives_rule_and_evidence_and_the_next_one_the_advice() -> None:
    verdict = Verdict("rdma", "gpu0", "nic0", "no", "too far", ("path SYS", "x"), "move it")
    assert format_verdicts([verdict]) == [
        "RDMA no: gpu0 with nic0: too far (path SYS; x)",
        "  move it",
    ]
    assert verdict.to_json()["advice"] == "move it"
    long = [
        replace(verdict, b=f"nic{2 * i}", advice="for b in d1; do setpci " + "x" * 200)
        for i in range(60)
    ]
    lines = format_verdicts(long, 80)
    assert max(map(len, lines[:-1])) <= 80 and lines[1].startswith("    nic")
    assert lines[-1].startswith("  for b in d1; do setpci xxx")


KEYS = (
    "read",
    "write",
    "acs",
    "bridges",
    "iommu",
    "virtual",
    "peermem",
    "dma_buf",
    "mig",
    "lost",
    "name",
    "sm",
    "state",
)
SUBJECTS = (
    "host",
    "gpu/0",
    "gpu/1",
    "gpu/0/p2p/1",
    "gpu/1/p2p/2",
    "pci/b0",
    "pci/b1",
    "rdma/nic0",
    "net/nic0",
    "odd/",
)
VALUES = st.sampled_from(
    [
        None,
        "ok",
        "no",
        "off",
        "on",
        "yes",
        "request redirect",
        ("b0",),
        ("b0", "b1"),
        3,
        "",
        "translating",
    ]
)
EXTRAS = st.dictionaries(
    st.sampled_from(["gdr", "sm", "gcn", "name", "pci", "host", "vendor"]),
    st.sampled_from([0, 1, "x", None, [1], {"vendor": 3}]),
)


@st.composite
def trees(draw: st.DrawFn) -> Topology:
    """A random tree of devices with random links and facts; further NVLinks between GPUs, some one
    way only.
    """
    kinds = draw(
        st.lists(st.sampled_from(["gpu", "gpu", "nic", "cpu", "switch"]), min_size=1, max_size=9)
    )
    counts = dict.fromkeys(["gpu", "nic", "cpu", "switch"], 0)
    devices: list[Device] = []
    for kind in kinds:
        family = (
            draw(st.sampled_from(["pcie", "network", "nvswitch", None]))
            if kind == "switch"
            else None
        )
        bus_id = draw(st.sampled_from(["b0", "b1", "b2", None]))
        devices.append(
            Device(f"{kind}{counts[kind]}", kind, family, bus_id=bus_id, extra=draw(EXTRAS))
        )
        counts[kind] += 1
    links: list[Link] = []
    for i, device in enumerate(devices[1:], 1):
        parent = devices[draw(st.integers(0, i - 1))].id
        links += cable(
            device.id,
            parent,
            draw(st.sampled_from(["pcie", "smp", "nvlink", "c2c", "xgmi", "link", "network"])),
        )
    gpus = [d.id for d in devices if d.kind == "gpu"]
    for pair in combinations(gpus, 2):
        if draw(st.integers(0, 3)) == 0:
            links += cable(*pair, "nvlink", "1/100")[: draw(st.integers(1, 2))]
    subjects, keys = st.sampled_from(SUBJECTS), st.sampled_from(KEYS)
    facts = draw(
        st.lists(
            st.builds(lambda s, k, v: Fact(s, k, v, "test"), subjects, keys, VALUES), max_size=25
        )
    )
    return Topology(
        "random", tuple(devices), tuple(links), extra={"facts": facts_to_json(Facts(tuple(facts)))}
    )


@given(trees())
@settings(max_examples=count_examples(40))
def test_any_topology_with_any_facts_has_one_verdict_a_pair_and_always_the_same(
    topology: Topology,
) -> None:
    found = judge_pairs(topology)
    pairs = [(v.kind, frozenset((v.a, v.b))) for v in found]
    assert len(pairs) == len(set(pairs))
    assert {v.answer for v in found} <= {"yes", "no", "unknown"}
    assert all(v.rule for v in found)
    assert judge_pairs(topology) == found
    groups = group_verdicts(found)
    assert sum(len(group.pairs) for group in groups) == len(found)
    assert all(group.describe_pairs() for group in groups)
    assert judge_pairs(Topology.loads(topology.dumps())) == found
    joined = all(d.family != "network" and "host" not in d.extra for d in topology.devices)
    if joined and all(link.kind != "network" for link in topology.links):
        n, nics = len(topology.ranks), sum(d.kind == "nic" for d in topology.devices)
        assert len(found) == n * (n - 1) // 2 + n * nics


def turned(subject: str) -> str:
    parts = subject.split("/")
    return "/".join((parts[0], parts[3], parts[2], parts[1])) if parts[2:3] == ["p2p"] else subject


@given(trees())
@settings(max_examples=count_examples(30))
def test_verdicts_do_not_depend_on_the_direction_of_facts_and_links_or_the_order_of_devices(
    topology: Topology,
) -> None:
    facts = [{**fact, "subject": turned(fact["subject"])} for fact in topology.extra["facts"]]
    links = tuple(link.reversed() for link in topology.links)
    other = Topology("random", tuple(reversed(topology.devices)), links, extra={"facts": facts})
    cpus = [d for d in topology.devices if d.kind == "cpu"]
    if len({str(sorted(map(str, d.extra.items()))) for d in cpus}) > 1:
        return  # NCCL goes by the first CPU of a host
    answers, again = (
        {frozenset((v.a, v.b)): v.answer for v in judge_pairs(t)} for t in (topology, other)
    )
    assert again == answers
