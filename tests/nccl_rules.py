"""The rules by which NCCL 2.30 and RCCL load a topology file, told from their sources, apart from
topoplan's reader.

`load` reads a text byte by byte as graph/xml.cc does (no entities, no declaration, one space before
an attribute) and raises RefusedError where the library would give up. `check` then makes the checks
of graph/topo.cc and adds those where it would go on with something else than the file means: two
elements where it finds only the first, attributes that it drops or writes over the end of its
table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_STR_LEN = 255
MAX_ATTR_COUNT = 16
GPU_CLASS, NIC_CLASS, NVSWITCH_CLASS, CPU_CLASS, BRIDGE_CLASS = (
    "0x03",
    "0x02",
    "0x068000",
    "0x068001",
    "0x060400",
)
KNOWN_BELOW = {
    None: ("system", "graphs"),
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "nic": ("net",),
    "gpu": ("nvlink", "c2c"),
    "graphs": ("graph",),
    "graph": ("channel",),
    "channel": ("net", "gpu"),
}
SPEEDS = {
    "2.5 GT/s": 15,
    "5 GT/s": 30,
    "8 GT/s": 60,
    "16 GT/s": 120,
    "32 GT/s": 240,
    "5.0 GT/s PCIe": 30,
}
SPEEDS |= {"8.0 GT/s PCIe": 60, "16.0 GT/s PCIe": 120, "32.0 GT/s PCIe": 240, "64.0 GT/s PCIe": 480}
FILLED_IN_LIVE = {
    "gpu": "dev|sm|rank|gdr|mlopart|keep",
    "net": "name|keep|dev|latency|speed|port|rail|plane|guid|maxconn|gdr|net|coll|gin|rma",
    "pci": "busid|class|vendor|device|subsystem_vendor|subsystem_device|link_speed|link_width",
    "cpu": "host_hash|numaid|affinity|arch|vendor|familyid|modelid",
}


@dataclass(frozen=True)
class Dialect:
    version: int
    max_nodes: int
    max_subs: int
    max_of_a_type: int


NCCL = Dialect(1, 256, 640, 640)
GRAPHS = Dialect(1, 65536, 640, 640)
# Graph files, read by NCCL 2.30 and by 2.20 and before.
OLD_GRAPHS = Dialect(1, 1024, 32, 32)
PATH_TYPES = ("LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
RCCL = Dialect(2, 8192, 512, 64)


class RefusedError(Exception):
    """NCCL ends with an error."""


@dataclass(eq=False)
class Node:
    name: str
    attrs: dict[str, str] = field(default_factory=dict)
    subs: list[Node] = field(default_factory=list)
    parent: Node | None = None

    def walk(self) -> Iterator[Node]:
        yield self
        for sub in self.subs:
            yield from sub.walk()


class _Parser:
    def __init__(self, text: str, dialect: Dialect) -> None:
        self.data = text.encode()
        self.at = 0
        self.dialect = dialect
        self.nodes = 0

    def char(self) -> str:
        if self.at == len(self.data):
            raise RefusedError("XML Parse : Unexpected EOF")
        self.at += 1
        return chr(self.data[self.at - 1])

    def value(self) -> tuple[str, str]:
        quote = self.char()
        if quote not in "\"'" or (
            quote == "'" and self.dialect is RCCL
        ):  # RCCL reads on to the next double quote
            raise RefusedError("XML Parse : Expected (double) quote.")
        out = ""
        while True:
            c = self.char()
            if len(out) == MAX_STR_LEN - 1:
                raise RefusedError(f"value {out[:20]} too long")
            if c == quote:
                return out, self.char()
            out += c

    def token(self, with_value: bool) -> tuple[str, str, str]:
        """name, value, the character after."""
        name = ""
        while True:
            c = self.char()
            if c == "=":
                if not with_value:
                    raise RefusedError(f"Unexpected value with name {name[:20]}")
                return (name, *self.value())
            if len(name) == MAX_STR_LEN - 1:
                raise RefusedError(f"name {name[:20]} too long")
            if c in " >/\n\r":
                return name, "", c
            name += c

    def node(self) -> tuple[str, Node]:
        """Kind (none, open, close, single) and node."""
        while True:
            while self.at < len(self.data) and chr(self.data[self.at]) in " \n\r":
                self.at += 1
            if self.at == len(self.data):
                return "none", Node("")
            if self.char() != "<":
                raise RefusedError(f"expecting '<', got {self.data[self.at - 1 : self.at]!r}")
            name, _, c = self.token(with_value=False)
            if not name.startswith("!--"):
                break
            seen = (name[3:] + c)[-3:]
            while seen != "-->":
                seen = (seen + self.char())[-3:]
        if name == "" and c == "/":
            name, _, c = self.token(with_value=False)
            if c != ">":
                raise RefusedError(f"unexpected trailing {c!r} in closing tag {name}")
            return "close", Node(name)
        node, kind, count = Node(name), "open", 0
        while c == " ":
            key, value, c = self.token(with_value=True)
            if count < MAX_ATTR_COUNT:
                node.attrs.setdefault(key, value)
                count += 1
            else:
                node.attrs["(dropped)"] = key
        if c == "/":
            kind, c = "single", self.token(with_value=False)[2]
        if c != ">":
            raise RefusedError(f"expected >, got {c!r}")
        return kind, node

    def load(self, head: Node | None, kind: str) -> list[Node]:
        """Elements below `head`; those with unknown names are read and forgotten, with all
        below.
        """
        found: list[Node] = []
        known = KNOWN_BELOW.get(head.name if head else None, ())
        if head is not None and head.name == "gpu" and self.dialect is RCCL:
            known = ("xgmi",)
        if head is not None and head.name == "pci" and self.dialect is RCCL:
            known = ("pci", "gpu", "nic")
        if head is not None and kind == "skipped":
            known = ()
        while True:
            if self.nodes == self.dialect.max_nodes:
                raise RefusedError(f"XML parser is limited to {self.dialect.max_nodes} nodes")
            sub_kind, node = self.node()
            if sub_kind == "none":
                if head is not None:
                    raise RefusedError(f"unterminated {head.name}")
                return found
            if head is not None and sub_kind == "close":
                if (
                    node.name != head.name and kind != "skipped"
                ):  # what is skipped keeps no name to compare with
                    raise RefusedError(f"XML Mismatch : {head.name} / {node.name}")
                return found
            if node.name not in known:
                if sub_kind == "open":
                    self.load(node, "skipped")
                continue
            if head is not None:
                if len(head.subs) == self.dialect.max_subs:
                    raise RefusedError(f"XML parser is limited to {self.dialect.max_subs} subnodes")
                head.subs.append(node)
            found.append(node)
            node.parent = head
            self.nodes += 1
            if node.name == "system" and node.attrs.get("version") != str(self.dialect.version):
                raise RefusedError(f"XML Topology has wrong version {node.attrs.get('version')}")
            if sub_kind == "open":
                self.load(node, "open")


def dialect_of(text: str) -> Dialect:
    return RCCL if re.search(r'<system\b[^>]*\bversion="2"', text) else NCCL


def load(text: str) -> Node:
    """The <system> element as the library keeps it. Raises RefusedError."""
    systems = _Parser(text, dialect_of(text)).load(None, "open")
    if len(systems) != 1:
        raise RefusedError(
            "system node not found in XML" if not systems else "more than one system"
        )
    return systems[0]


@dataclass
class LoadedGraph:
    """What ncclTopoGetGraphFromXmlSub leaves in memory; channels by rank."""

    pattern: int
    channels: list[list[int]]
    speed: float
    type_intra: str

    def count_algbw_GBps(self, ranks: int) -> float:
        """What the tuner counts for allreduce (tuning.cc), without its limits and its factor for
        trees.
        """
        total = len(self.channels) * self.speed
        return total * ranks / (2 * (ranks - 1)) if self.pattern == 4 else total / 2


def load_graphs(
    text: str, rank_of_dev: dict[int, int], dialect: Dialect = GRAPHS
) -> dict[int, LoadedGraph]:
    """The graphs of a file as graph/search.cc makes them, by id. Raises RefusedError where NCCL
    stops or crashes.
    """
    found = [node for node in _Parser(text, dialect).load(None, "open") if node.name == "graphs"]
    if not found or found[0].attrs.get("version") != "1":
        raise RefusedError("XML Graph has wrong version")
    out: dict[int, LoadedGraph] = {}
    for graph in found[0].subs:
        for key in (
            "id",
            "crossnic",
            "pattern",
            "nchannels",
            "speedintra",
            "speedinter",
            "typeintra",
            "typeinter",
        ):
            if key not in graph.attrs:
                raise RefusedError(f"Attribute {key} of node graph not found")
        # texts that are not known become LOC; numbers end where they are no more
        kind = graph.attrs["typeintra"] if graph.attrs["typeintra"] in PATH_TYPES else "LOC"
        channels = [
            [_rank_of(sub, rank_of_dev, dialect) for sub in c.subs if sub.name == "gpu"]
            for c in graph.subs
        ]
        count = int(graph.attrs["nchannels"], 0)
        if count > len(channels):
            raise RefusedError("channels that were never read")
        loaded = LoadedGraph(
            int(graph.attrs["pattern"], 0), channels[:count], float(graph.attrs["speedintra"]), kind
        )
        out[int(graph.attrs["id"], 0)] = loaded
    return out


def _rank_of(gpu: Node, rank_of_dev: dict[int, int], dialect: Dialect) -> int:
    """A GPU's rank: what it says, else by dev, which is hexadecimal from 2.21 on."""
    if "dev" not in gpu.attrs:
        raise RefusedError("Attribute dev of node gpu not found")
    if "rank" in gpu.attrs and dialect is GRAPHS:
        return int(gpu.attrs["rank"], 0)
    dev = int(gpu.attrs["dev"], 0 if dialect is OLD_GRAPHS else 16)
    if dev not in rank_of_dev:
        raise RefusedError(f"XML Import Channel : dev {dev} not found.")
    return rank_of_dev[dev]


def bus_number(text: str) -> int:
    """busIdToInt64: up to 16 hexadecimal digits, colons and points skipped, until anything else."""
    digits = ""
    for c in text:
        if c in ".:":
            continue
        if c not in "0123456789abcdefABCDEF" or len(digits) == 16:
            break
        digits += c
    return int(digits or "0", 16)


def type_of(pci: Node, dialect: Dialect) -> str:
    text = pci.attrs["class"]
    told = {BRIDGE_CLASS: "PCI", "0x080100": "PCI", NVSWITCH_CLASS: "NVS", CPU_CLASS: "CPU"}
    told |= {GPU_CLASS: "GPU", NIC_CLASS: "NIC"} | ({"0x120000": "GPU"} if dialect is RCCL else {})
    return next((kind for prefix, kind in told.items() if text.startswith(prefix)), "PCI")


def pcie_GBps(pci: Node) -> float:
    """What NCCL gives the link above a pci element."""
    speed = next(
        (rate for text, rate in SPEEDS.items() if pci.attrs["link_speed"].startswith(text)), 60
    )
    return (int(pci.attrs["link_width"] or 0) or 16) * speed / 80


def check(text: str) -> list[str]:
    """What the library would refuse, or take for something else than the file means; empty where
    all is well.
    """
    try:
        system = load(text)
    except RefusedError as error:
        return [str(error)]
    dialect = dialect_of(text)
    out: list[str] = []
    for node in system.walk():
        added = set(FILLED_IN_LIVE[node.name].split("|")) if node.name in FILLED_IN_LIVE else set()
        if dialect is RCCL and node.name == "gpu":
            added |= {"gcn", "arch"}
        if "(dropped)" in node.attrs:
            out.append(f"<{node.name}> loses its attribute {node.attrs['(dropped)']}")
        elif len(set(node.attrs) | added) > MAX_ATTR_COUNT:
            out.append(f"<{node.name}> has no room for the attributes that NCCL adds")
        if node.name not in ("pci", "pcilink") and "busid" in node.attrs:
            out.append(
                f"<{node.name}> with a busid: the NVLinks below would belong to that address"
            )
        out += [f"<{node.name}>: {what}" for what in _checks(node, dialect)]
    numbers = Counter(cpu.attrs.get("numaid") for cpu in system.subs)
    out += [f"numaid {number} twice: fused into one CPU" for number, n in numbers.items() if n > 1]
    buses = Counter(node.attrs.get("busid") for node in system.walk() if node.name == "pci")
    out += [f"busid {bus} twice: only the first is found" for bus, n in buses.items() if n > 1]
    for name, n in Counter(node.name for node in system.walk()).items():
        if n > dialect.max_of_a_type and name in ("cpu", "pci", "gpu", "nic", "net"):
            out.append(f"tried to create too many nodes ({n} {name})")
    return out


def _checks(node: Node, dialect: Dialect) -> Iterator[str]:
    yield from {"cpu": _cpu, "pci": _pci, "gpu": _gpu, "net": _net}.get(node.name, lambda *_: ())(
        node, dialect
    )
    if node.name in ("nvlink", "xgmi"):
        if not {"count", "tclass"} <= set(node.attrs):
            yield "needs count and tclass"
        elif node.attrs["tclass"].startswith(GPU_CLASS) and "target" not in node.attrs:
            yield "needs a target"
        elif not node.attrs["count"].isdigit():
            yield "count is no number"
    if node.name == "c2c" and not {"bw", "count"} <= set(node.attrs):
        yield "needs bw and count"
    on_switch = (
        node.parent is not None
        and node.parent.name == "pci"
        and type_of(node.parent, dialect) == "PCI"
    )
    if node.name == "pcilink" and not (on_switch and "target" in node.attrs):
        yield "needs a target, and a PCI switch to start from"


def _cpu(node: Node, dialect: Dialect) -> Iterator[str]:
    if not re.fullmatch(r"-1|\d{1,9}", node.attrs.get("numaid", "")):
        yield f"numaid {node.attrs.get('numaid')!r}"
    if "familyid" in node.attrs and "modelid" not in node.attrs:
        yield "familyid without modelid, which is then never filled in"
    if not re.fullmatch(r"[0-9a-fA-F,]*", node.attrs.get("affinity", "")):
        yield "affinity is no mask"


def _pci(node: Node, dialect: Dialect) -> Iterator[str]:
    missing = {"busid", "class", "link_speed", "link_width"} - set(node.attrs)
    if missing:
        yield f"lacks {', '.join(sorted(missing))}"
        return
    if not re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", node.attrs["busid"]):
        yield f"busid {node.attrs['busid']!r} is not what NCCL writes, so it finds no device there"
    if bus_number(node.attrs["busid"]) >= 1 << 40:
        yield f"busid {node.attrs['busid']}: more than 40 bits"
    kind, below = type_of(node, dialect), {sub.name for sub in node.subs}
    if "nic" in below and below - {"nic"}:
        yield "a nic beside other elements, which are lost"
    elif kind == "PCI" and "gpu" in below:
        yield f"a gpu below class {node.attrs['class']}, which is a switch"
    elif kind != "PCI" and "pci" in below:
        yield f"pci elements below class {node.attrs['class']}, which is no switch"
    if not re.fullmatch(r"\d{0,3}", node.attrs["link_width"]):
        yield "link_width is no number"


def _gpu(node: Node, dialect: Dialect) -> Iterator[str]:
    if (
        node.parent is not None
        and dialect is NCCL
        and bus_number(node.parent.attrs.get("busid", "")) & 3
    ):
        yield f"busid {node.parent.attrs.get('busid')} has bits that NCCL uses itself"
    for key in ("dev", "sm", "rank", "gdr"):
        if not re.fullmatch(r"\d{1,9}", node.attrs.get(key, "0")):
            yield f"{key}={node.attrs[key]!r}"
    if node.attrs.get("keep") == "1":
        yield "kept though it is another rank's"
    if int(node.attrs.get("mlopart", "-1")) > 1:
        yield "mlopart out of range"


def _net(node: Node, dialect: Dialect) -> Iterator[str]:
    if "name" not in node.attrs:
        yield "needs a name"
    if not re.fullmatch(r"\d{1,9}", node.attrs.get("dev", "0")):
        yield f"dev={node.attrs['dev']!r}"
