"""Build the machines of the presets from their datasheets.

Each function takes the number of boxes (servers, or racks of an NVL72); presets of a single box
ignore it. GPUs are numbered box by box, and with several boxes a device's `extra["box"]` is the
number of its box. Rates are GB/s in one direction.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from ..between_cpus import assume_between_cpus, join_cpus
from ..boards import Board, get_board, nvlink_generation
from ..graph import Device, Link, Topology, both_directions
from ..hardware import (
    QUANTUM_ADDING,
    LATENCY_us,
    QPI_DATASHEET_GBps,
    nvswitch_adding,
    pcie_GBps,
)

_NETWORK = "network0"
_HDR_GBps = Fraction(25)  # one 200 Gb/s InfiniBand HDR port
_NDR_GBps = Fraction(50)  # one 400 Gb/s InfiniBand NDR port
_XDR_GBps = Fraction(100)  # one 800 Gb/s port of a ConnectX-8
_SLINGSHOT_GBps = Fraction(25)  # one 200 Gb/s port of HPE Slingshot 11
# Boxes whose ports of one rail end at one leaf: a QM9700 has 64 ports of 400 Gb/s, of which half
# lead up (DGX SuperPOD H100 reference architecture).
_BOXES_OF_A_LEAF = 32

# Pairs of a DGX-1 with two NVLinks, in the numbering of SCCL (arXiv 2008.08708, figure 1).
DGX1_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))

# Pairs of a DGX-1 with one NVLink, in the same numbering.
DGX1_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))

# Pairs of dies (GCDs) of an 8x MI250 box with their xGMI links (RCCL's recorded topo_16p1h.xml).
MI250_LINKS: tuple[tuple[int, int, int], ...] = (
    *((2 * package, 2 * package + 1, 4) for package in range(8)),  # the two dies of a package
    *((0, 2, 1), (0, 4, 2), (1, 2, 1), (1, 3, 1), (1, 5, 1), (2, 6, 1), (3, 7, 2), (4, 12, 1)),
    *(
        (5, 13, 1),
        (5, 14, 1),
        (6, 13, 1),
        (6, 14, 1),
        (7, 15, 1),
        (8, 10, 1),
        (8, 12, 2),
        (9, 10, 1),
    ),
    *((9, 11, 1), (9, 13, 1), (10, 14, 1), (11, 15, 2)),
)


def _join(
    a: str, b: str, GBps: Fraction, kind: str, source: str, count: int = 1, us: str = ""
) -> tuple[Link, Link]:
    """Return a link in both directions, with the latency of kind `us` (default: its own kind)."""
    return both_directions(Link(a, b, GBps * count, LATENCY_us[us or kind], kind, count, source))


def _make_gpus(per_box: int, numa_nodes: tuple[int | None, ...], boxes: int = 1) -> list[Device]:
    """Return GPUs in order, those of each box divided evenly among `numa_nodes`."""
    nodes = [numa_nodes[i * len(numa_nodes) // per_box] for i in range(per_box)] * boxes
    return _mark_boxes(
        [Device(f"gpu{i}", numa_node=node) for i, node in enumerate(nodes)], boxes, per_box
    )


def _mark_boxes(devices: list[Device], boxes: int, per_box: int) -> list[Device]:
    """Return the devices with their box in `extra` if there is more than one."""
    if boxes == 1:
        return devices
    return [replace(d, extra={"box": i // per_box}) for i, d in enumerate(devices)]


def dgx1(boxes: int = 1) -> Topology:
    """Return an NVIDIA DGX-1 with V100: the NVLinks only, 25 GB/s each, parallel ones merged.

    `boxes` is ignored: the preset is a single server.
    """
    source, rate = "DGX-1 with V100 system architecture whitepaper", get_board("V100").wire_GBps
    pairs = sorted([(pair, 2) for pair in DGX1_DOUBLE] + [(pair, 1) for pair in DGX1_SINGLE])
    links = [
        x for (a, b), n in pairs for x in _join(f"gpu{a}", f"gpu{b}", rate, "nvlink", source, n)
    ]
    return Topology("dgx1", tuple(_make_gpus(8, (0, 1))), tuple(links), source)


def dgx2(boxes: int = 1) -> Topology:
    """Return an NVIDIA DGX-2: two boards of 8 V100, 150 GB/s per GPU, 48 NVLinks between boards.

    The six NVSwitches of a board are one switch. `boxes` is ignored: it is a single server.
    """
    source = "NVSwitch technical overview"
    board = get_board("V100")
    rate, links_each = board.wire_GBps, board.wires
    switches = [
        Device(f"nvswitch{b}", "switch", "nvswitch", numa_node=b, in_network=nvswitch_adding(2))
        for b in range(2)
    ]
    links = [
        x
        for gpu in range(16)
        for x in _join(
            f"gpu{gpu}", f"nvswitch{gpu // 8}", rate, "nvlink", source, links_each, us="nvswitch"
        )
    ]
    links += _join("nvswitch0", "nvswitch1", rate, "nvlink", source, 8 * links_each, us="nvswitch")
    return Topology("dgx2", (*_make_gpus(16, (0, 1)), *switches), tuple(links), source)


def _put_on_nvswitches(
    name: str,
    gpus: list[Device],
    boxes: int,
    board: Board,
    net_GBps: Fraction,
    source: str,
    *,
    rails: bool = False,
) -> Topology:
    """Connect each box's GPUs by one layer of NVSwitches, and several boxes by a port per GPU.

    The ports end at one network, or at the leaves of `rails`.
    """
    rate, links_each = board.wire_GBps, board.wires
    per_box = len(gpus) // boxes
    adding = nvswitch_adding(nvlink_generation(board.sm or 0))
    switches = _mark_boxes(
        [Device(f"nvswitch{b}", "switch", "nvswitch", in_network=adding) for b in range(boxes)],
        boxes,
        per_box=1,
    )
    links = [
        x
        for i, d in enumerate(gpus)
        for x in _join(
            d.id, f"nvswitch{i // per_box}", rate, "nvlink", source, links_each, us="nvswitch"
        )
    ]
    if boxes == 1:
        return Topology(name, (*gpus, *switches), tuple(links), source)
    if rails:
        fabric, cables = _build_rails(gpus, per_box, net_GBps)
    else:
        fabric = [Device(_NETWORK, "switch", "network", in_network=QUANTUM_ADDING)]
        ported = f"{source}: one port a GPU, into a network without oversubscription"
        cables = [x for d in gpus for x in _join(d.id, _NETWORK, net_GBps, "network", ported)]
    devices = (*gpus, *switches, *fabric)
    return Topology(f"{name}:{boxes}", devices, (*links, *cables), source)


def _build_rails(
    gpus: list[Device], per_box: int, net_GBps: Fraction
) -> tuple[list[Device], list[Link]]:
    """Return the switches and cables of a network with a rail for each GPU of a box.

    The ports of the i-th GPUs of 32 boxes end at one leaf, rail i. The spines above the leaves are
    one switch; each leaf has as many cables up as it has boxes, so the network is not
    oversubscribed.
    """
    source = "DGX SuperPOD H100 reference architecture: rail-optimized full fat tree"
    units = -(-len(gpus) // (per_box * _BOXES_OF_A_LEAF))
    below: dict[str, int] = {}
    cables: list[Link] = []
    for i, gpu in enumerate(gpus):
        unit = i // per_box // _BOXES_OF_A_LEAF
        leaf = f"unit{unit}-rail{i % per_box}" if units > 1 else f"rail{i % per_box}"
        below[leaf] = below.get(leaf, 0) + 1
        cables += _join(gpu.id, leaf, net_GBps, "network", source)
    spine = Device("spine0", "switch", "network", in_network=QUANTUM_ADDING)
    leaves = [Device(leaf, "switch", "network", in_network=QUANTUM_ADDING) for leaf in below]
    for leaf, boxes in below.items():
        cables += _join(leaf, spine.id, net_GBps, "network", source, boxes)
    return [*leaves, spine], cables


def dgx_a100(boxes: int = 1) -> Topology:
    """Return `boxes` NVIDIA DGX A100 servers with 8 GPUs each, on one network if several.

    Rates are 300 GB/s per GPU inside a box and 25 GB/s per GPU between boxes (HDR InfiniBand).
    """
    # The user guide prints these NUMA nodes for GPU pairs 0-1, 2-3, 4-5, 6-7.
    gpus, source = _make_gpus(8, (3, 1, 7, 5), boxes), "DGX A100 datasheet and user guide"
    return _put_on_nvswitches("dgx-a100", gpus, boxes, get_board("A100"), _HDR_GBps, source)


def dgx_h100(boxes: int = 1) -> Topology:
    """Return `boxes` NVIDIA DGX H100 servers with 8 GPUs each, on one network if several.

    Rates are 450 GB/s per GPU inside a box and 50 GB/s per GPU between boxes (NDR InfiniBand).
    """
    gpus = _make_gpus(8, (0, 1), boxes)
    board = get_board("H100")
    return _put_on_nvswitches("dgx-h100", gpus, boxes, board, _NDR_GBps, "DGX H100 datasheet")


def dgx_h100_rails(boxes: int = 1) -> Topology:
    """Return `boxes` NVIDIA DGX H100 servers whose i-th GPUs share a leaf switch, rail i.

    Rates are 450 GB/s per GPU inside a box and 50 GB/s per GPU between boxes (NDR InfiniBand);
    several leaves are joined by spines without oversubscription.
    """
    gpus, board = _make_gpus(8, (0, 1), boxes), get_board("H100")
    source = "DGX H100 datasheet"
    return _put_on_nvswitches("dgx-h100-rails", gpus, boxes, board, _NDR_GBps, source, rails=True)


def dgx_h200(boxes: int = 1) -> Topology:
    """Return `boxes` NVIDIA DGX H200 servers with 8 GPUs each, on one network if several.

    Rates are 450 GB/s per GPU inside a box and 50 GB/s per GPU between boxes (NDR InfiniBand).
    """
    gpus, board = _make_gpus(8, (0, 1), boxes), get_board("H200")
    return _put_on_nvswitches("dgx-h200", gpus, boxes, board, _NDR_GBps, "DGX H200 datasheet")


def dgx_b200(boxes: int = 1) -> Topology:
    """Return `boxes` NVIDIA DGX B200 servers with 8 GPUs each, on one network if several.

    Rates are 900 GB/s per GPU inside a box and 50 GB/s per GPU between boxes (ConnectX-7 of 400
    Gb/s).
    """
    gpus, board = _make_gpus(8, (0, 1), boxes), get_board("B200")
    return _put_on_nvswitches("dgx-b200", gpus, boxes, board, _NDR_GBps, "DGX B200 datasheet")


def dgx_b300(boxes: int = 1) -> Topology:
    """Return `boxes` NVIDIA DGX B300 servers with 8 GPUs each, on one network if several.

    Rates are 900 GB/s per GPU inside a box and 100 GB/s per GPU between boxes (ConnectX-8 of 800
    Gb/s).
    """
    gpus, board = _make_gpus(8, (0, 1), boxes), get_board("B300")
    return _put_on_nvswitches("dgx-b300", gpus, boxes, board, _XDR_GBps, "DGX B300 datasheet")


def gh200x4(boxes: int = 1) -> Topology:
    """Return `boxes` nodes of four NVIDIA GH200, each with six NVLinks to each of the other three.

    Such are the nodes of Alps: 150 GB/s between two GPUs, and a port of 25 GB/s per GPU (Slingshot)
    between nodes. Grace CPUs and NVLink-C2C are left out, like the hosts of the DGX presets.
    """
    source = "Alps user documentation (docs.cscs.ch), GH200 nodes; GH200 datasheet"
    gpus, rate = _make_gpus(4, (0, 1, 2, 3), boxes), get_board("GH200").wire_GBps
    links = [
        x
        for first in range(0, 4 * boxes, 4)
        for a, b in combinations(range(first, first + 4), 2)
        for x in _join(f"gpu{a}", f"gpu{b}", rate, "nvlink", source, 6)
    ]
    if boxes == 1:
        return Topology("gh200x4", tuple(gpus), tuple(links), source)
    links += [x for d in gpus for x in _join(d.id, _NETWORK, _SLINGSHOT_GBps, "network", source)]
    devices = (*gpus, Device(_NETWORK, "switch", "network"))
    return Topology(f"gh200x4:{boxes}", devices, tuple(links), source)


def gb200_nvl72(racks: int = 1) -> Topology:
    """Return `racks` NVIDIA GB200 NVL72: 72 GPUs each on shared NVSwitches, 900 GB/s per GPU.

    From the datasheet: 18 compute trays of two Grace CPUs and four GPUs, NVLink 5 with 1.8 TB/s per
    GPU, both directions together. Assumed: between racks one ConnectX-7 NIC of 400 Gb/s per GPU (50
    GB/s), all on one network without oversubscription. Grace CPUs, NVLink-C2C and PCIe are left
    out, like the hosts of the DGX presets.
    """
    gpus = []
    for i in range(72 * racks):
        rack, tray = divmod(i // 4, 18)
        several = {"host": f"rack{rack}-tray{tray}", "box": rack}
        extra = several if racks > 1 else {"host": f"tray{tray}"}
        gpus.append(Device(f"gpu{i}", numa_node=i % 4 // 2, extra=extra))
    source = "GB200 NVL72 datasheet; between racks a ConnectX-7 of 400 Gb/s a GPU is assumed"
    return _put_on_nvswitches("gb200-nvl72", gpus, racks, get_board("GB200"), _NDR_GBps, source)


def mi250(boxes: int = 1) -> Topology:
    """Return `boxes` servers of 8 AMD MI250 packages with two dies, each die a GPU on its own.

    Between boxes, each package has a NIC of 25 GB/s.
    """
    source = "MI250 datasheet; adjacency as in RCCL's recorded topo_16p1h.xml"
    gpus = _make_gpus(16, (0, 1, 2, 3), boxes)
    rate = get_board("MI250").wire_GBps
    links = [
        x
        for first in range(0, 16 * boxes, 16)
        for a, b, n in sorted(MI250_LINKS)
        for x in _join(f"gpu{first + a}", f"gpu{first + b}", rate, "xgmi", source, n)
    ]
    if boxes == 1:
        return Topology("mi250", tuple(gpus), tuple(links), source)
    nics = _mark_boxes(
        [Device(f"nic{i}", "nic", numa_node=i % 8 // 2) for i in range(8 * boxes)],
        boxes,
        per_box=8,
    )
    links += [
        x
        for i, d in enumerate(gpus)
        for x in _join(d.id, f"nic{i // 2}", _HDR_GBps, "pcie", source)
    ]
    links += [x for d in nics for x in _join(d.id, _NETWORK, _HDR_GBps, "network", source)]
    devices = (*gpus, *nics, Device(_NETWORK, "switch", "network"))
    return Topology(f"mi250:{boxes}", devices, tuple(links), source)


def mi300x(boxes: int = 1) -> Topology:
    """Return an AMD MI300X platform: 8 GPUs with an xGMI link to every other.

    `boxes` is ignored: the preset is a single server.
    """
    source, rate = "MI300X platform datasheet", get_board("MI300X").wire_GBps
    links = [
        x
        for a, b in combinations(range(8), 2)
        for x in _join(f"gpu{a}", f"gpu{b}", rate, "xgmi", source)
    ]
    return Topology("mi300x", tuple(_make_gpus(8, (0, 1))), tuple(links), source)


def z52(boxes: int = 1) -> Topology:
    """Return a Gigabyte Z52 with 8 AMD MI50 as SCCL models it (arXiv 2008.08708): a uniform ring.

    xGMI connects the GPUs of each half, PCIe the halves. All links have the rate of the slower,
    PCIe Gen4 x16. `boxes` is ignored: the preset is a single server.
    """
    source, rate = "SCCL, arXiv 2008.08708; rate of PCIe Gen4 x16", pcie_GBps(4, 16)
    links = [
        x
        for i in range(8)
        for x in _join(f"gpu{i}", f"gpu{(i + 1) % 8}", rate, "link", source, us="xgmi")
    ]
    return Topology("z52", tuple(_make_gpus(8, (None,))), tuple(links), source)


def pcie_2socket(boxes: int = 1) -> Topology:
    """Return one server with 8 GPUs behind 4 PCIe Gen4 switches, on 2 sockets joined by QPI.

    `boxes` is ignored: the preset is a single server.
    """
    source, rate = "PCIe Gen4 x16 and one QPI link of 9.6 GT/s", pcie_GBps(4, 16)
    switches = [Device(f"plx{i}", "switch", "pcie", numa_node=i // 2) for i in range(4)]
    cpus = [Device(f"cpu{i}", "cpu", numa_node=i) for i in range(2)]
    links = [
        x for gpu in range(8) for x in _join(f"gpu{gpu}", f"plx{gpu // 2}", rate, "pcie", source)
    ]
    links += [
        x for plx in range(4) for x in _join(f"plx{plx}", f"cpu{plx // 2}", rate, "pcie", source)
    ]
    links += _join("cpu0", "cpu1", QPI_DATASHEET_GBps, "smp", source)
    return Topology(
        "pcie-2socket", (*_make_gpus(8, (0, 1)), *switches, *cpus), tuple(links), source
    )


def rtx_pro_6000(boxes: int = 1) -> Topology:
    """Return one server with 8 RTX PRO 6000 Blackwell on PCIe Gen5 x16, four per socket.

    `boxes` is ignored. The rate between the two sockets is assumed.
    """
    board = get_board("RTX PRO 6000")
    source = f"{board.name} datasheet: PCIe Gen5 x16, as NCCL counts it"
    cpus = [Device(f"cpu{i}", "cpu", numa_node=i) for i in range(2)]
    rate = board.pcie.bandwidth_GBps
    links = [x for i in range(8) for x in _join(f"gpu{i}", f"cpu{i // 4}", rate, "pcie", source)]
    links += join_cpus("cpu0", "cpu1", assume_between_cpus(board.pcie.generation))
    return Topology("rtx-pro-6000", (*_make_gpus(8, (0, 1)), *cpus), tuple(links), source)
