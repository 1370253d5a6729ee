"""What topoplan writes for NCCL is what NCCL loads: checked by NCCL's own rules, told apart from
topoplan's reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import nccl_rules as rules
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples

from topoplan.topo.errors import InputError
from topoplan.topo.extras import nccl_topology
from topoplan.topo.formats import nccl_xml
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import PRESETS, Preset, preset

LOADED = '<system version="1">{}</system>'
CPU = '<cpu numaid="0" arch="x86_64">{}</cpu>'
PCI = (
    '<pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" '
    'link_width="16">{}</pci>'
)

RECORDED = [
    "oci/H100-topology.xml",
    "aws/p5.48xl.xml",
    "aws/p4d-24xl.xml",
    "azure/ncv4-topo.xml",
    "azure/ndv2-topo.xml",
    "azure/ndv4-topo.xml",
    "azure/ndv5-topo.xml",
    *(
        f"rccl/topo_{name}.xml"
        for name in ("16p1h", "3p_pcie", "4p3l", "8p6l", "8p_940", "8p_940vm", "8p_rome")
    ),
]


def facts(topology: Topology) -> dict[str, tuple[object, ...]]:
    return {
        d.id: (
            d.kind,
            d.family,
            d.can_reduce,
            d.can_copy,
            d.numa_node,
            d.bus_id or None,
            topology.ranks.count(d.id),
        )
        for d in topology.devices
    }


def links(topology: Topology) -> Counter[tuple[object, ...]]:
    return Counter(
        (x.src, x.dst, x.bandwidth_GBps, x.latency_us, x.kind, x.count) for x in topology.links
    )


def check_written(topology: Topology) -> None:
    """NCCL loads what is written, and topoplan reads the same devices, links and ranks from it; or
    it is refused.
    """
    try:
        text = nccl_topology.write(topology)
    except InputError as error:
        assert "\n" not in str(error)
        assert any(word in str(error) for word in ("no GPUs", "JSON"))
        return
    assert rules.check(text) == []
    again = nccl_xml.read(text, "again")
    assert again.ranks == topology.ranks
    assert facts(again) == facts(topology)
    assert links(again) == links(topology)


# -- the rules themselves


@pytest.mark.parametrize("name", RECORDED)
def test_files_that_nccl_and_rccl_ship_or_dumped_pass_the_rules(
    name: str, recorded: Callable[[str], Path]
) -> None:
    assert rules.check(recorded(f"nccl_xml/{name}").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('<?xml version="1.0"?>' + LOADED.format(""), "expected >"),
        (LOADED.format("<cpu\nnumaid='0'/>"), "expected >"),
        (LOADED.format("\t" + CPU.format("")), "expecting '<'"),
        (LOADED.format(f'<cpu numaid="0" x="{"y" * 254}"/>'), "too long"),
        ("<system/>", "wrong version"),
        ('<system version="3"></system>', "wrong version"),
        (LOADED.format("<cpu numaid='0'>"), "Mismatch"),
        (LOADED.format(CPU.format(PCI.format("") * 260)), "limited to 256 nodes"),
        (LOADED.format(CPU.format("") * 2), "fused into one CPU"),
        (LOADED.format(CPU.format(PCI.format("") * 2)), "only the first is found"),
        (LOADED.format(CPU.format(PCI.format("<gpu><nvlink/></gpu>"))), "needs count and tclass"),
        (
            LOADED.format(CPU.format(PCI.replace("0x03", "0x06").format("<gpu/>"))),
            "which is a switch",
        ),
        (
            LOADED.format(CPU.format(PCI.replace("00.0", "00.1").format("<gpu/>"))),
            "bits that NCCL uses itself",
        ),
        (
            LOADED.format(CPU.format(PCI.replace("0000:", "0000:FF:").format(""))),
            "not what NCCL writes",
        ),
        (
            LOADED.format(
                f'<cpu numaid="0" {" ".join(f"a{i}={chr(34)}1{chr(34)}" for i in range(16))}/>'
            ),
            "loses",
        ),
        (
            LOADED.format(
                f'<cpu numaid="0" {" ".join(f"a{i}={chr(34)}1{chr(34)}" for i in range(11))}/>'
            ),
            "no room",
        ),
    ],
)
def test_the_rules_know_what_nccl_refuses(text: str, says: str) -> None:
    assert says in "\n".join(rules.check(text))


def test_elements_that_nccl_does_not_know_are_skipped_with_all_below() -> None:
    strange = '<a x="1"/><b><c y="2"/><d><e></e></d></b><!-- f -->'
    system = rules.load(LOADED.format(strange + CPU.format(strange) + strange))
    assert [node.name for node in system.walk()] == ["system", "cpu"]


def test_entities_are_not_decoded() -> None:
    system = rules.load(LOADED.format('<cpu numaid="0" x="&quot;&amp;"/>'))
    assert system.subs[0].attrs["x"] == "&quot;&amp;"


# -- what is written


@pytest.mark.parametrize("entry", PRESETS.values(), ids=lambda p: p.name)
def test_presets_are_written_as_nccl_loads_them(entry: Preset) -> None:
    check_written(preset(entry.example))


@pytest.mark.parametrize(
    "name", [name for name in RECORDED if "nd" not in name and "p4d" not in name]
)
def test_recorded_machines_are_written_as_nccl_loads_them(
    name: str, recorded: Callable[[str], Path]
) -> None:
    text = recorded(f"nccl_xml/{name}").read_text(encoding="utf-8")
    written = nccl_topology.write(nccl_xml.read(text, name))
    assert rules.check(written) == []
    told, again = ([n for n in rules.load(t).walk() if n.name == "pci"] for t in (text, written))
    rate = {n.attrs["busid"]: rules.pcie_GBps(n) for n in told}
    assert all(rules.pcie_GBps(n) == rate[n.attrs["busid"]] for n in again)


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (preset("torus:8x8"), r"386 XML elements, more than the 255 that NCCL reads"),
        (preset("star:300"), r"XML elements, more than the 255 that NCCL reads"),
        (Topology("long", (Device("g" * 254),), ()), r"longer than 253 bytes"),
        (Topology("long", (Device("&" * 60),), ()), r"longer than 253 bytes"),
        (Topology("odd", (Device("a\x00b"),), ()), r"characters that XML cannot hold"),
        (
            Topology("vf", (Device("g", bus_id="0000:3b:00.5"),), ()),
            r"functions 0, 4, 8 and c only",
        ),
    ],
)
def test_what_nccl_would_not_load_is_not_written(topology: Topology, says: str) -> None:
    with pytest.raises(InputError, match=says):
        nccl_topology.write(topology)


def test_switches_below_each_other_without_end_are_refused() -> None:
    names = [f"s{i}" for i in range(5000)]
    hang = [
        x
        for pair in zip(names, ["c", *names], strict=False)
        for x in both_directions(Link(*pair, kind="pcie"))
    ]
    chain = tuple(Device(name, "switch", "pcie") for name in names)
    for gpu in ("xgmi", "nvlink"):
        across = Link("g", "h", kind=gpu)
        devices = (
            Device("g", bus_id="0000:01:00.0"),
            Device("h", bus_id="0000:02:00.0"),
            Device("c", "cpu"),
            *chain,
        )
        topology = Topology("deep", devices, (*hang, across))
        for write in (nccl_topology.write, nccl_topology.write_for_vm):
            with pytest.raises(InputError, match="deeper than 58"):
                write(topology)


def test_measured_links_keep_the_rates_that_the_topology_counts_them_with() -> None:
    facts = {"declared": "16 GT/s x16", "measured": "20.9"}
    hang = both_directions(Link("g", "c", Fraction(209, 10), kind="pcie", extra=facts))
    topology = Topology("t", (Device("g"), Device("c", "cpu", numa_node=0)), hang)
    check_written(topology)
    assert '<topoplan_link src="g" dst="c" GBps="209/10"' in nccl_topology.write(topology)


def test_a_nic_without_an_address_below_a_switch_leaves_the_switch_whole() -> None:
    devices = (
        Device("g0"),
        Device("g1"),
        Device("s", "switch", "pcie"),
        Device("n", "nic"),
        Device("c", "cpu"),
    )
    joined = [("g0", "s"), ("g1", "s"), ("n", "s"), ("s", "c")]
    topology = Topology(
        "t", devices, tuple(x for a, b in joined for x in both_directions(Link(a, b, kind="pcie")))
    )
    check_written(topology)
    switch = next(
        n
        for n in rules.load(nccl_topology.write(topology)).walk()
        if n.name == "pci" and len(n.subs) == 3
    )
    assert [n.subs[0].name for n in switch.subs] == ["gpu", "gpu", "nic"]


def test_cpus_of_unknown_or_equal_numa_node_are_not_fused() -> None:
    cpus = tuple(
        Device(f"c{i}", "cpu", numa_node=numa) for i, numa in enumerate((None, None, 1, 1, -1))
    )
    hang = tuple(
        x
        for i in range(5)
        for x in both_directions(Link(f"g{i}", f"c{i}", Fraction(12), kind="pcie"))
    )
    check_written(Topology("t", (*(Device(f"g{i}") for i in range(5)), *cpus), hang))


NAMES = st.text("abc01<&\"'é\n ", min_size=1, max_size=6)
ADDRESSES = st.one_of(
    st.none(),
    st.builds("0000:{:02x}:00.0".format, st.integers(0, 5)),
    st.sampled_from(
        [
            "00000000:3B:00.0",
            "3b:00.0",
            "10000:01:00.4",
            "",
            "x",
            "ffffffff:01:00.0",
            "0000:01:00.9",
        ]
    ),
)
PCI_FACTS = st.fixed_dictionaries(
    {},
    optional={
        "class": st.sampled_from(
            ["0x030200", "0x060400", "0x020000", "0x068000", "0x120000", "", "0x010802"]
        ),
        "link_speed": st.sampled_from(["8 GT/s", "2.5 GT/s", "Unknown", "32.0 GT/s PCIe", ""]),
        "link_width": st.sampled_from(["16", "0", 63, 255, "x", "-1"]),
        "vendor": st.sampled_from(["0x1000", "0xffff", "?"]),
    },
)
KEYS = (
    "dev|sm|rank|gdr|keep|busid|mlopart|name|speed|familyid|modelid|affinity|arch|gcn|box|numaid"
    "|é|x|y"
)
EXTRAS = st.dictionaries(
    st.sampled_from(KEYS.split("|")),
    st.one_of(
        st.integers(-2, 300),
        st.text(max_size=5),
        st.booleans(),
        st.just("z" * 300),
        st.floats(0, 1),
    ),
)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Any devices with any facts, in a tree of PCIe and with any other links across."""
    names = draw(st.lists(NAMES, min_size=2, max_size=9, unique=True))
    devices: list[Device] = []
    for name in names:
        kind = draw(st.sampled_from(["gpu", "gpu", "cpu", "switch", "switch", "nic"]))
        family = (
            draw(st.sampled_from(["pcie", "pcie", "nvswitch", "network", None]))
            if kind == "switch"
            else None
        )
        extra: dict[str, object] = {**draw(EXTRAS)}
        if draw(st.booleans()):
            extra["pci"] = draw(PCI_FACTS)
        adds, numa = draw(st.booleans()), draw(st.sampled_from([None, 0, 1, -1, 10**7]))
        devices.append(Device(name, kind, family, adds, adds, numa, draw(ADDRESSES), extra=extra))
    joined: list[Link] = []
    for i in range(1, len(names)):
        if draw(st.booleans()):
            rate = draw(
                st.sampled_from([Fraction(12), Fraction(24), Fraction(64, 3), Fraction(3, 16)])
            )
            joined += both_directions(
                Link(names[i], names[draw(st.integers(0, i - 1))], rate, kind="pcie")
            )
    kinds = st.sampled_from(["nvlink", "xgmi", "c2c", "pcie", "smp", "network", "link", "pigeon"])
    for _ in range(draw(st.integers(0, 8))):
        a, b = draw(st.permutations(names))[:2]
        count = draw(st.sampled_from([1, 2, 18, 10**6]))
        extra = draw(
            st.sampled_from(
                [{}, {"element": "pcilink"}, {"targets": {"0000:c3:00.0": 2}}, {"targets": 3}]
            )
        )
        joined.append(
            Link(
                a,
                b,
                Fraction(draw(st.integers(1, 99)), 7),
                Fraction(1, 3),
                draw(kinds),
                count,
                extra=extra,
            )
        )
    return Topology(draw(NAMES), tuple(devices), tuple(joined))


@settings(max_examples=count_examples(20))
@given(machines())
def test_any_machine_is_written_as_nccl_loads_it_and_read_back_the_same(topology: Topology) -> None:
    check_written(topology)


@settings(max_examples=count_examples(10))
@given(st.integers(0, 12), st.integers(0, 3))
def test_many_extra_facts_leave_room_for_the_attributes_that_nccl_adds(
    facts_each: int, nets: int
) -> None:
    extra = {f"fact{i}": i for i in range(facts_each)}
    devices = [Device("g", numa_node=0, extra=extra), Device("c", "cpu", numa_node=0, extra=extra)]
    devices += [Device(f"n{i}", "nic", extra=extra) for i in range(nets)]
    hang = [
        x
        for d in devices
        if d.kind != "cpu"
        for x in both_directions(Link(d.id, "c", Fraction(12), kind="pcie"))
    ]
    topology = Topology("t", tuple(devices), tuple(hang))
    check_written(topology)
    check_written(
        replace(
            topology, devices=tuple(replace(d, extra={**d.extra, "pci": extra}) for d in devices)
        )
    )
