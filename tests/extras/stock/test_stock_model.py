"""The model of stock NCCL equals what NCCL's own code finds, and its channels fit the machine."""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from needs import long_cases

from topoplan.synth.extras.nccl_files.graph_file import RING_ID, TREE_ID, read_graph_file
from topoplan.synth.extras.stock.model import (
    NotModelled,
    StockModel,
    list_refused_p2p,
    model_stock,
)
from topoplan.synth.extras.stock.on_paper import StockRate, rate_stock
from topoplan.synth.extras.stock.paths import find_gpu_paths
from topoplan.synth.extras.stock.search import find_chains, find_rings
from topoplan.synth.extras.stock.system import StockLink, build_system
from topoplan.topo.derived.hosts import join_hosts
from topoplan.topo.formats import nccl_xml, smi
from topoplan.topo.presets import preset

MACHINES = (
    *("a100pcie8_4pairs_2s_amd", "a40x8_nps4_pair_per_numa", "dgx1v", "dgx1v_dead_0-1"),
    *("h100nvl4_2s_srp", "h200nvl8_2x4mesh_2s", "hgx_a100x8_gpu3_6links", "oci_b300"),
    *("pairs2_1socket_amd", "pairs2_2socket_srp", "pcie10_cascade_gen4", "pcie7_4plus3_amd"),
    *("redstone_a100x4", "redstone_pair_dead", "rtx4090x8_2s_icx", "rtx5090x4_2socket_srp_gen5"),
)
LONG = (
    *("pcie10_cascade_gen4", "oci_b300", "dgx1v_dead_0-1", "redstone_pair_dead"),
    *("hgx_a100x8_gpu3_6links", "rtx4090x8_2s_icx"),
)
GRAPHS = (
    *("a100-one-bridge-missing", "dgx-a100", "dgx1", "ncv4-bridged", "oci-h100"),
    *("pcie-2socket", "pcie-3gpu", "pcie-8gpu-2socket"),
)


def model(text: str, p2p_level: str | None = None, nvb: bool = True) -> StockModel:
    made = model_stock(nccl_xml.read(text, "machine"), p2p_level, nvb)
    assert isinstance(made, StockModel)
    return made


def gpu(number: int, nvlinks: str = "", speed: str = "16.0", sm: int = 86) -> str:
    return (
        f'<pci busid="0000:{number + 1:02x}:00.0" class="0x030200" link_speed="{speed} GT/s PCIe" '
        f'link_width="16"><gpu dev="{number}" rank="{number}" sm="{sm}" gdr="1">{nvlinks}</gpu>'
        "</pci>"
    )


def bridge(to: int, count: int = 4) -> str:
    return f'<nvlink target="0000:{to + 1:02x}:00.0" count="{count}" tclass="0x030200"/>'


def host(*sockets: str, vendor: str = "AuthenticAMD") -> str:
    cpus = "".join(
        f'<cpu numaid="{i}" arch="x86_64" vendor="{vendor}" familyid="6" modelid="106">{below}'
        "</cpu>"
        for i, below in enumerate(sockets)
    )
    return f'<system version="1">{cpus}</system>'


PAIRS = host(gpu(0, bridge(1)) + gpu(1, bridge(0)) + gpu(2, bridge(3)) + gpu(3, bridge(2)))


@pytest.mark.parametrize("name", long_cases(MACHINES, *LONG))
def test_rates_and_pick_are_those_of_nccl(name: str, more_inputs: Callable[[str], Path]) -> None:
    with more_inputs("nccl_stock/stock.tsv").open() as file:
        row = next(r for r in csv.DictReader(file, delimiter="\t") if r["machine"] == name)
    made = model(more_inputs(f"nccl_stock/{name}.xml").read_text())
    rates = {kind: f"{float(rate):.2f}" for kind, rate in made.algbw_GBps.items()}
    assert rates == {"rings": row["ring_GBps"], "chains": row["tree_GBps"]}
    assert made.pick(2**30) == {"Ring": "rings", "Tree": "chains"}[row["picked_at_1GiB"]]


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_those_that_nccl_dumps(name: str, more_inputs: Callable[[str], Path]) -> None:
    made = model(more_inputs(f"nccl_graphs/{name}.topology.xml").read_text())
    path = more_inputs(f"nccl_graphs/{name}.graph.xml")
    dumped = read_graph_file(path.read_text(), name)
    for number, channels in ((RING_ID, made.rings), (TREE_ID, made.chains)):
        graph = dumped.find(number)
        assert graph is not None
        assert channels.orders == graph.channels
        assert channels.speed_GBps == graph.speedintra
        assert (channels.path_type, channels.pattern) == (graph.typeintra, graph.pattern)
        assert channels.same_channels == bool(graph.samechannels)


def test_bridged_pairs_on_one_socket() -> None:
    """What NCCL 2.30.7 finds: it splits rings in two directions, and gives chains four orders."""
    made = model(PAIRS)
    assert made.rings.orders == ((0, 1, 2, 3), (0, 1, 2, 3), (0, 3, 2, 1), (0, 3, 2, 1))
    assert made.chains.orders == ((0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0))
    assert made.rings.speed_GBps == 12
    assert made.chains.speed_GBps == 20
    assert made.algbw_GBps == {"rings": 32, "chains": 48}
    assert [made.pick(1 << power) for power in (6, 26, 28)] == ["rings", "rings", "chains"]
    assert made.to_json(2**28)["picked"] == "chains"
    assert made.p2p == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert len(made.p2p_at_sys) == 12


def test_p2p_level_and_nvb() -> None:
    """GPUs two NVLinks apart use the GPU between, unless that is switched off."""
    line = host(
        gpu(0, bridge(1), sm=80) + gpu(1, bridge(0) + bridge(2), sm=80),
        gpu(2, bridge(1), sm=80),
    )
    assert model(line).rings.path_type == "NVB"
    assert model(line).p2p == model(line).p2p_at_sys
    off = model(line, nvb=False)
    assert off.rings.path_type == "SYS"
    assert (0, 2) not in off.p2p
    assert (0, 2) in off.p2p_at_sys
    assert (0, 2) in model(line, nvb=False, p2p_level="SYS").p2p
    assert not model(PAIRS, p2p_level="LOC").p2p


def switch(below: str, bus: str, sub_device: str = "0xa000") -> str:
    return (
        f'<pci busid="0000:{bus}:00.0" class="0x060400" vendor="0x1000" device="0xc010" '
        f'subsystem_vendor="0x1000" subsystem_device="{sub_device}" link_speed="16.0 GT/s PCIe" '
        f'link_width="16">{below}</pci>'
    )


def test_broadcom_switches_are_merged_by_two_levels() -> None:
    """As in NCCL, a third level stays a switch of its own."""
    inner = switch(gpu(2) + gpu(3), "f2")
    text = host(switch(gpu(0) + switch(gpu(1) + inner, "f1"), "f0"))
    system = build_system(nccl_xml.read(text, "machine"))
    assert [node.address for node in system.nodes["pci"]] == ["0000:f0:00.0", "0000:f2:00.0"]
    paths = find_gpu_paths(system, None, nvb=True).paths
    assert {pair: path.type.name for pair, path in paths.items() if pair[0] == 0} == {
        (0, 0): "LOC",
        (0, 1): "PIX",
        (0, 2): "PXB",
        (0, 3): "PXB",
    }


@pytest.mark.parametrize("seed", range(5))
def test_channels_visit_all_gpus_and_fit_the_links(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice([2, 3, 4, 5, 6, 8])
    links: dict[int, str] = dict.fromkeys(range(count), "")
    for _ in range(chance.randrange(2 * count)):
        a, b = chance.sample(range(count), 2)
        links[a], links[b] = links[a] + bridge(b), links[b] + bridge(a)
    sm, speed = chance.choice([(70, "8.0"), (80, "16.0"), (90, "32.0")])
    gpus = [gpu(i, links[i], speed, sm) for i in range(count)]
    cut = chance.randrange(1, count + 1)
    text = host(
        *("".join(part) for part in (gpus[:cut], gpus[cut:]) if part),
        vendor=chance.choice(["AuthenticAMD", "GenuineIntel"]),
    )
    system = build_system(nccl_xml.read(text, "machine"))
    paths = find_gpu_paths(system, None, nvb=True)
    rings = find_rings(system, paths)
    for graph in (rings, find_chains(system, paths, rings.channels)):
        loads: Counter[StockLink] = Counter()
        for order in graph.orders:
            assert sorted(order) == list(range(count))
            ends = (*order[1:], order[0]) if graph is rings else order[1:]
            for pair in zip(order, ends, strict=False):
                assert paths.paths[pair].type <= graph.path_type
                loads.update(dict.fromkeys(paths.paths[pair].links, graph.speed_MBps * 1000))
        assert all(load <= link.rate_kBps for link, load in loads.items())
    made = model(text)
    assert all(rate > 0 for rate in made.algbw_GBps.values())
    assert made.channels <= len(made.chains.orders)


def nic(number: int, mbps: int = 400_000) -> str:
    return (
        f'<pci busid="0000:{number + 0x81:02x}:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" '
        f'link_width="16"><nic><net name="mlx5_{number}" dev="{number}" speed="{mbps}" port="1" '
        f'guid="0x{number + 1}" gdr="1"/></nic></pci>'
    )


def h100_box(gpus_with_nics: Sequence[int]) -> str:
    """Return 8 GPUs on NVSwitches, each on a PCIe switch, some with a 400 Gb/s NIC beside."""
    nvlinks = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'
    slots = []
    for number in range(8):
        beside = nic(gpus_with_nics.index(number)) if number in gpus_with_nics else ""
        below = gpu(number, nvlinks, "32.0", 90) + beside
        slots.append(
            f'<pci busid="0000:{number + 0x40:02x}:00.0" class="0x060400" vendor="0x10b5" '
            f'link_speed="32.0 GT/s PCIe" link_width="16">{below}</pci>'
        )
    return host("".join(slots[:4]), "".join(slots[4:]), vendor="GenuineIntel")


@pytest.mark.parametrize(
    ("gpus_with_nics", "rings", "chains"),
    long_cases(
        [
            ((0, 2, 4, 6), 102.4, 192),
            ((0, 1, 2, 4, 5), 128, 185.4),
            ((0, 1, 2, 4, 5, 6), 153.6, 202.3),
        ],
        (0, 1, 2, 4, 5),
        (0, 1, 2, 4, 5, 6),
    ),
)
def test_two_hosts_lose_where_nics_do_not_match_gpus(
    gpus_with_nics: tuple[int, ...], rings: float, chains: float
) -> None:
    """NCCL's own results between two hosts: the rates of rings and trees."""
    made = model_stock(nccl_xml.read(h100_box(gpus_with_nics), "machine"), hosts=2)
    assert isinstance(made, StockModel)
    rates = {kind: round(float(rate), 1) for kind, rate in made.algbw_GBps.items()}
    assert rates == {"rings": rings, "chains": chains}
    nics = range(len(gpus_with_nics))
    assert {net for pair in made.rings.nets for net in pair} == set(nics)
    assert made.chains.nic_type == "PIX"


def test_jobs_of_several_hosts_need_nics() -> None:
    made = model_stock(nccl_xml.read(PAIRS, "machine"), hosts=2)
    assert isinstance(made, NotModelled)
    assert "no NICs" in made.reason


def test_pairs_between_two_hosts_by_one_nic() -> None:
    """What NCCL 2.30.7 finds."""
    text = PAIRS.replace("</cpu>", f"{nic(0, 100_000)}</cpu>")
    made = model_stock(nccl_xml.read(text, "machine"), hosts=2)
    assert isinstance(made, StockModel)
    for channels in (made.rings, made.chains):
        assert channels.orders == ((0, 1, 2, 3),) * 2
        assert channels.nets == ((0, 0),) * 2
        assert (channels.path_type, channels.nic_type) == ("PHB", "PHB")
    assert made.rings.speed_GBps == made.rings.nic_speed_GBps == made.chains.nic_speed_GBps == 6
    assert made.chains.speed_GBps == 9
    picks = [made.pick(1 << power) for power in (15, 16, 19, 30)]
    assert picks == ["chains", "rings", "chains", "chains"]


def test_refused_p2p_goes_through_the_cpu() -> None:
    text = host(switch(gpu(0) + gpu(1), "f0"))
    facts = [
        {
            "subject": f"gpu/{a}/p2p/{b}",
            "key": "read",
            "value": "chipset not supported",
            "source": "NVML",
        }
        for a, b in ((0, 1), (1, 0))
    ]
    granted = nccl_xml.read(text, "machine")
    refused = replace(granted, extra={**granted.extra, "facts": facts})
    assert len(model(text).p2p) == 2
    made = model_stock(refused)
    assert isinstance(made, StockModel)
    assert not made.p2p
    assert made.rings.path_type == "PHB"


def test_refused_p2p_is_known_of_hosts_that_are_joined() -> None:
    head = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
    matrix = f"{head}GPU0\t X \tPHB\t0-23\t0\nGPU1\tPHB\t X \t0-23\t0\n\n"
    p2p = " \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tOK\tX\t\n"
    host = smi.read(matrix + p2p, "host")
    assert list_refused_p2p(host) == {(0, 1)}
    assert list_refused_p2p(join_hosts([host, host])) == {(0, 1), (2, 3)}


def test_topologies_without_nccl_hardware_have_a_reason() -> None:
    reasons = {
        "ring:8": "without PCIe or NVLink",
        "dgx-a100:2": "several hosts",
        "mi250": "AMD",
    }
    for name, reason in reasons.items():
        made = model_stock(preset(name))
        assert isinstance(made, NotModelled)
        assert reason in made.reason


def test_unknown_facts_are_listed() -> None:
    known = model_stock(nccl_xml.read(PAIRS, "machine"))
    unknown = model_stock(preset("pcie-2socket"))
    assert isinstance(known, StockModel)
    assert isinstance(unknown, StockModel)
    assert known.assumes == ()
    assert any("CPU models" in line for line in unknown.assumes)
    assert unknown.algbw_GBps["rings"] == Fraction(10 * 8, 14)


def test_a_channel_that_nccl_falls_back_to_is_an_assumption_of_its_rate() -> None:
    # NCCL counts 16 GB/s between the sockets, and seeks no channel that slow for newer GPUs.
    for sm, is_fallback in ((120, True), (89, False)):
        sockets = [gpu(0, sm=sm) + gpu(1, sm=sm), gpu(2, sm=sm) + gpu(3, sm=sm)]
        machine = nccl_xml.read(host(*sockets), "machine")
        made, rated = model_stock(machine), rate_stock("allreduce", machine)
        assert isinstance(made, StockModel) and isinstance(rated, StockRate)
        assert made.rings.is_fallback == is_fallback
        assert any("falls back" in line for line in rated.assumes) == is_fallback
