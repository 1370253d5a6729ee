"""The table of GPU boards: PCIe, links to other GPUs, and memory, by name, PCI id and architecture.

Each row names the document that has its figures. PCI ids are those of the PCI ID repository
(pci-ids.ucw.cz, August 2026). All rates are GB/s in one direction; vendors print both together.
GPUs of laptops are left out, and embedded ones, except those that NCCL runs on.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from .hardware import NVLINK_DATASHEET_GBps, PcieLink

# Columns: name; pattern of a name, if it is not the name itself; PCI device ids; architecture
# (compute capability times ten, or AMD's gfx); PCIe generation and width; links to other GPUs and
# GB/s of each; memory in GB; properties (below); source. In a name the first row that matches
# counts. Properties: `card`: its links are bridges between cards. `c2c=N`: N GB/s to the CPU of its
# module. `nic=N`: NICs of N Gb/s are on its module. `no-rdma`: they cannot access its memory.
# `pair=N`: N links join two of them. `no-p2p`: NVIDIA's driver has P2P for them over NVLink only
# (GeForce RTX 20 to 50, by what users report; changed drivers have it over PCIe, too).
_TABLE = r"""
GB300;;31a1 31c2 31c3;103;6x16;18x50;288;c2c=225;GB300 NVL72 datasheet
B300;;3182;103;6x16;18x50;288;;DGX B300 datasheet
GB200;;2941;100;5x16;18x50;192;c2c=225;GB200 NVL72 datasheet
B200;;2901 2909;100;5x16;18x50;180;;DGX B200 datasheet
B100;;2920 29bc;100;5x16;18x50;192;;Blackwell architecture technical brief
GB10;(GB10|DGX SPARK);2e12;121;5x4;;128;c2c=345 nic=100 no-rdma;DGX Spark guide, NVIDIA/nccl#2202
Jetson Thor;(JETSON )?(AGX )?THOR;2b00;110;5x8;;128;;Jetson Thor datasheet
GH200;;2342 2348;90;5x16;18x25;96, 144;c2c=450;GH200 datasheet
H200 NVL;;233b;90;5x16;18x25;141;card;H200 datasheet
H200;;2335;90;5x16;18x25;141;;H200 datasheet
H20;H20( 3E)?;2329 232c 2328 230c 230e;90;5x16;18x25;96, 141;;H20 datasheet
H800 PCIe;;2322;90;5x16;8x25;80;card;H800 datasheet
H800;;2324;90;5x16;8x25;80;;H800 datasheet
H100 NVL;;2321;90;5x16;12x25;94;card;H100 NVL product brief
H100 PCIe;;2331;90;5x16;12x25;80;card;H100 datasheet
H100;;2330 2336 2337 2338 2339 233d;90;5x16;18x25;80;;H100 datasheet
A100 PCIe;A100 PCIE|A100X;20b1 20b5 20b8 20f1;80;4x16;12x25;40, 80;card;A100 datasheet
A100;;20b0 20b2 20b3;80;4x16;12x25;40, 80;;A100 datasheet
A800 PCIe;A800 (PCIE|40GB ACTIVE);20f5 20f6;80;4x16;8x25;40, 80;card;A800 datasheet
A800;;20bd 20f3;80;4x16;8x25;80;;A800 datasheet
A30;A30X?;20b7;80;4x16;4x25;24;card;A30 datasheet
V100 PCIe;V100(S| PCIE| FHHL);1db3 1db4 1db6 1df6;70;3x16;;16, 32;;V100 datasheet
V100;;1db1 1db2 1db5 1db7 1db8 1df5;70;3x16;6x25;16, 32;;V100 datasheet
Quadro GV100;GV100;1dba;70;3x16;4x25;32;card;Quadro GV100 datasheet
TITAN V;;1d81;70;3x16;;12;;Volta whitepaper
Quadro GP100;GP100;15f0;60;3x16;4x20;16;card;Quadro GP100 datasheet
P100 PCIe;;15f7 15f8;60;3x16;;12, 16;;P100 datasheet
P100;;15f9 15fa 15fc;60;3x16;4x20;16;;P100 datasheet
RTX A6000;A6000;2230;86;4x16;4x14.0625;48;card;RTX A6000 datasheet
A40;;2235;86;4x16;4x14.0625;48;card;A40 datasheet
RTX 3090;RTX 3090( TI)?;2203 2204;86;4x16;4x14.0625;24;card no-p2p;Ampere GA102 whitepaper
RTX A5500;A5500;2233;86;4x16;4x14.0625;24;card;RTX A5500 datasheet
RTX A5000;A5000;2231;86;4x16;4x14.0625;24;card;RTX A5000 datasheet
RTX A4500;A4500;2232;86;4x16;4x14.0625;20;card;RTX A4500 datasheet
RTX PRO 6000;(RTX )?PRO 6000D?|RTX 6000D;2bb1 2bb2 2bb4 2bb5 2bb9 2bbc;120;5x16;;96;;its datasheet
RTX PRO 5000;;2bb3;120;5x16;;48, 72;;RTX PRO 5000 datasheet
RTX PRO 4500;;2c31 2c3a;120;5x16;;32;;RTX PRO 4500 datasheet
RTX PRO 4000 SFF;RTX PRO 4000 (BLACKWELL )?SFF;2c33;120;5x8;;24;;RTX PRO 4000 SFF datasheet
RTX PRO 4000;;2c34;120;5x16;;24;;RTX PRO 4000 datasheet
RTX PRO 2000;;2d30;120;5x8;;16;;RTX PRO 2000 datasheet
RTX 5090;RTX 5090( D)?;2b85 2b87 2b8c;120;5x16;;32;no-p2p;RTX Blackwell whitepaper
RTX 5080;;2c02;120;5x16;;16;no-p2p;RTX Blackwell whitepaper
RTX 5070;RTX 5070( TI)?;2c05 2f04;120;5x16;;12, 16;no-p2p;RTX Blackwell whitepaper
RTX 5060;RTX 50[56]0( TI)?;2d04 2d05 2d83;120;5x8;;8, 16;no-p2p;RTX Blackwell whitepaper
RTX 6000 Ada;(RTX )?6000 ADA;26b1;89;4x16;;48;;RTX 6000 Ada datasheet
RTX 5880 Ada;RTX 5[08][08]0 ADA;26b2 26b3;89;4x16;;32, 48;;RTX 5000 Ada datasheet
RTX 4000 Ada;RTX 4[05]00 (SFF )?ADA;27b0 27b1 27b2;89;4x16;;20, 24;;RTX 4000 and 4500 Ada datasheets
RTX 2000 Ada;RTX 2000E? ADA;28b0;89;4x8;;16;;RTX 2000 Ada datasheet
L40S;;26b9;89;4x16;;48;;L40S datasheet
L40;L40G?;26b5 26b8;89;4x16;;48;;L40 datasheet
L20;;26b7 26ba;89;4x16;;48;;L20 product brief
L4;;27b8;89;4x16;;24;;L4 datasheet
L2;;27b6;89;4x16;;24;;L2 product brief
RTX 4090;RTX 4090( D)?;2684 2685;89;4x16;;24;no-p2p;Ada whitepaper
RTX 4080;RTX 4080( SUPER)?;2702 2703 2704;89;4x16;;16;no-p2p;Ada whitepaper
RTX 4070;RTX 4070( TI)?( SUPER)?;2705 2782 2783 2786;89;4x16;;12, 16;no-p2p;Ada whitepaper
RTX 4060;RTX 40[56]0( TI)?;2803 2805 2808 2882;89;4x8;;8, 16;no-p2p;Ada whitepaper
A10;A10[GM]?;2236 2237 2238;86;4x16;;24;;A10 datasheet
A16;;25b6;86;4x16;;4 x 16;;A16 datasheet
A2;;;86;4x8;;16;;A2 datasheet
RTX A4000;A4000;24b0;86;4x16;;16;;RTX A4000 datasheet
RTX A2000;A2000;2531 2571;86;4x16;;6, 12;;RTX A2000 datasheet
RTX A1000;A(1000|400);25b0 25b2;86;4x8;;4, 8;;RTX A1000 datasheet
RTX 3080;RTX 3080( TI)?;2205 2206 2208 220a 2216;86;4x16;;10, 12;no-p2p;Ampere GA102 whitepaper
RTX 3070;RTX 3070( TI)?;2482 2484 2488;86;4x16;;8;no-p2p;Ampere GA102 whitepaper
RTX 3060;RTX 3060( TI)?;2486 2487 2489 2503 2504;86;4x16;;8, 12;no-p2p;Ampere GA102 whitepaper
RTX 3050;;2507 2582;86;4x8;;8;no-p2p;GeForce RTX 3050 specifications
TITAN RTX;;1e02;75;3x16;2x25;24;card;Turing whitepaper
RTX 2080 Ti;;1e04 1e07;75;3x16;2x25;11;card no-p2p;Turing whitepaper
RTX 2080;RTX 2080( SUPER)?;1e81 1e82 1e87;75;3x16;1x25;8;card no-p2p;Turing whitepaper
RTX 2070 SUPER;;1e84 1ec2;75;3x16;1x25;8;card no-p2p;GeForce RTX 2070 SUPER specifications
RTX 2070;RTX 20[67]0( SUPER)?;1f02;75;3x16;;8;no-p2p;Turing whitepaper
Quadro RTX 8000;(QUADRO )?RTX [68]000;1e30 1e36;75;3x16;2x25;24, 48;card;Quadro RTX 8000 datasheet
Quadro RTX 5000;(QUADRO )?RTX 5000;1eb0;75;3x16;1x25;16;card;Quadro RTX 5000 datasheet
Quadro RTX 4000;(QUADRO )?RTX 4000;1eb1;75;3x16;;8;;Quadro RTX 4000 datasheet
T4;T4G?;1eb4 1eb8;75;3x16;;16;;T4 datasheet
P40;;1b38;61;3x16;;24;;P40 datasheet
P4;;1bb3;61;3x16;;8;;P4 datasheet
GTX TITAN X;;17c2;52;3x16;;12;;GeForce GTX TITAN X specifications
TITAN Xp;TITAN X( PASCAL|P)?;1b00 1b02;61;3x16;;12;;GeForce TITAN Xp specifications
GTX 1080;GTX 10[678]0( TI)?;1b06 1b80 1b81 1b82;61;3x16;;8, 11;;GeForce GTX 1080 whitepaper
GTX 1660;GTX 16[356]0( TI| SUPER)?;;75;3x16;;4, 6;;GeForce GTX 16 specifications
Quadro P6000;(QUADRO )?P[456]000;1b30 1bb0 1bb1;61;3x16;;8, 16, 24;;Quadro P6000 datasheet
GTX 980;GTX 9[78]0( TI)?;;52;3x16;;4, 6;;GeForce GTX 980 whitepaper
K80;;102d;37;3x16;;24;;K80 board specification
M60;M[46]0;17fd 13f2;52;3x16;;24;;M40 and M60 board specifications
MI355X;;75a3;gfx950;5x16;7x76.8;288;;MI355X datasheet
MI350X;MI350[XP]?;75a0 75a8;gfx950;5x16;7x76.8;288;;MI350X datasheet
MI325X;;74a5 74b9;gfx942;5x16;7x64;256;;MI325X datasheet
MI308X;;74a2;gfx942;5x16;7x64;192;;MI308X: as MI300X
MI300A;;74a0;gfx942;5x16;8x64;128;pair=2;MI300A datasheet, CDNA 3 white paper
MI300X;MI300X?;74a1 74a9 74b5 74bd;gfx942;5x16;7x64;192;;MI300X datasheet
MI250X;;7408;gfx90a;4x16;8x50;64 a die;;MI250X datasheet
MI250;;740c;gfx90a;4x16;8x50;64 a die;;MI250 datasheet
MI210;;740f;gfx90a;4x16;3x50;64;card;MI210 datasheet
MI100;;738c 738e;gfx908;4x16;3x46;32;card;MI100 datasheet
MI60;;66a0;gfx906;4x16;2x50;32;card;MI60 datasheet
MI50;(MI50|RADEON PRO VII);66a1;gfx906;4x16;2x46;16, 32;card;MI50 datasheet
MI25;;6860;gfx900;3x16;;16;;MI25 datasheet
Radeon VII;;;gfx906;3x16;;16;;Radeon VII specifications
R9700;(AI PRO )?R9700;7551;gfx1201;5x16;;32;;Radeon AI PRO R9700 datasheet
RX 9060;RX 9060( XT)?;;gfx1200;5x16;;8, 16;;Radeon RX 9060 specifications
RX 9070;RX 9070( XT| GRE)?;7550;gfx1201;5x16;;16;;Radeon RX 9070 specifications
W7900;(PRO )?W7900;7448 744a;gfx1100;4x16;;48;;Radeon PRO W7900 datasheet
RX 7900;RX 7900( XTX?| GRE)?;744c;gfx1100;4x16;;24;;Radeon RX 7900 specifications
W7800;(PRO )?W7800;;gfx1100;4x16;;32, 48;;Radeon PRO W7800 datasheet
RX 7800;RX 7[78]00( XT)?;;gfx1101;4x16;;12, 16;;Radeon RX 7700 and 7800 specifications
W6800;(PRO )?(W6800|V620);;gfx1030;4x16;;32;;Radeon PRO W6800 and V620 datasheets
RX 6900;RX 6[789][05]0( XT)?;;gfx1030;4x16;;10, 12, 16;;Radeon RX 6000 specifications
RX 7600;RX 7600( XT)?;;gfx1102;4x8;;8, 16;;Radeon RX 7600 specifications
"""
# NVLink generation by the lowest compute capability, times ten (whitepapers of P100, V100, A100,
# H100 and Blackwell).
_NVLINK_GENERATION_OF_SM = ((100, 5), (90, 4), (80, 3), (70, 2), (60, 1))
# Gb/s of the NICs in machines with NVSwitches, by the lowest compute capability, times ten.
_NIC_Gbps = ((103, 800), (90, 400), (80, 200))
_SWITCHED = 8  # modules with as many NVLinks are mostly behind NVSwitches
# RCCL's older name of an architecture.
_GCN_ALIASES = {"910": "gfx90a"}
# Names that mean a GPU wherever they occur; shorter ones (T4, A10) only behind a maker or a number.
_DISTINCTIVE = re.compile(
    r"(?:RTX|GTX|TITAN|QUADRO|MI\d|GB\d|GH\d|[ABHV]\d00|P100|L40S|DGX SPARK|JETSON).*"
)
_MAKER = re.compile(r"(?:NVIDIA|TESLA|GEFORCE|QUADRO|RTX|GRID|AMD|INSTINCT|RADEON|\b\d+X) ?\Z")

# "NVIDIA Corporation Device 2901", "[10de:2901]", and a row of rocm-smi: "0  2  0x74a1, 32700".
_LISTED_ID = re.compile(
    r"(?:NVIDIA Corporation Device |\b(?:10de|1002):)([0-9a-f]{4})\b"
    r"|^\s{0,20}\d{1,3}\s{1,20}\d{1,3}\s{1,20}0x([0-9a-f]{4}),",
    re.IGNORECASE,
)
# How people write names, and how the table has them.
_OTHER_SPELLINGS = tuple(
    (re.compile(pattern), usual)
    for pattern, usual in (
        (r"\bPCI(?: E)?\b", "PCIE"),
        (r"\b\d{1,3} ?GB? (?=PCIE\b)", ""),  # A100 80GB PCIe
        (r"\bPCIE ([AHPV][18]00)\b", r"\1 PCIE"),
        (r"(?<!PRO )\b6000 (?:PRO|BLACKWELL)\b", "PRO 6000"),
        (r"\bADA 6000\b", "6000 ADA"),
        (r"\b(\d{1,3} ?X) ?([2345]0[6-9]0)\b", r"\1 RTX \2"),  # 2x 5090
        (r"\b(CARDS?|DUAL|QUAD) ([2345]0[6-9]0)\b", r"\1 RTX \2"),
        (r"(?<!RTX )\b([2345]0[6-9]0)(?= SERVERS?\b)", r"RTX \1"),
        (r"\b(\d{1,3}) ?X ?(?=[A-Z0-9])", r"\1X "),
    )
)
_OTHER_LETTERS = re.compile(r"[^\W\d_\x00-\x7f]+")


@dataclass(frozen=True)
class Board:
    """A GPU as it is sold.

    `pattern` is found in texts in capitals that name the GPU. `ids` are its PCI device ids, four
    hexadecimal digits in lower case each. `pcie` is the PCIe link that it is made for. `memory_GB`
    is a text, such as "40, 80" for two models, and `source` the document with the figures. `sm` is
    the compute capability times ten, None for AMD's GPUs, whose architecture is `gcn` ("" for
    NVIDIA's). `wires` is the most NVLinks or xGMI links that it has, `wire_GBps` the rate of one
    link, `pair_wires` how many links join two such GPUs if a text does not say. `is_card` says that
    the GPU is a card, which such links join to another card by a bridge. `c2c_GBps` is the rate to
    the CPU of its module, None if it has no NVLink-C2C. `own_nic_Gbps` is the rate of the NICs on
    its module in Gb/s, None if there are none. `has_rdma` is False if NICs cannot access its
    memory. `has_pcie_p2p` is False if the maker's driver lets no other GPU access its memory over
    PCIe.
    """

    name: str
    pattern: re.Pattern[str]
    ids: tuple[str, ...]
    sm: int | None
    gcn: str
    pcie: PcieLink
    wires: int
    wire_GBps: Fraction
    pair_wires: int
    memory_GB: str
    is_card: bool
    c2c_GBps: Fraction | None
    own_nic_Gbps: int | None
    has_rdma: bool
    has_pcie_p2p: bool
    source: str

    @property
    def kind(self) -> str:
        """The kind of its links to other GPUs: nvlink or xgmi."""
        return "xgmi" if self.gcn else "nvlink"

    @property
    def dies(self) -> int:
        """How many GPUs the driver shows for one board.

        It is 2 if the table states the board's memory per die ("64 a die"), else 1.
        K80 and M60 are listed as one of their two GPUs, as the driver names them.
        """
        return 2 if self.memory_GB.endswith(" a die") else 1

    @property
    def has_soldered_links(self) -> bool:
        """Whether machines always join several of these by NVLink or xGMI: modules, no cards."""
        return self.wires > 0 and not self.is_card

    @property
    def nic_Gbps(self) -> int | None:
        """The rate of one NIC in machines with this board, in Gb/s; None if it is not known.

        It is the rate of the NICs on the board's module, if it has any. Otherwise, for modules of
        machines with NVSwitches, it is 200 Gb/s (HDR InfiniBand) for A100, 400 (NDR) for Hopper and
        B200, and 800 for B300 (datasheets of DGX A100, H100, B200 and B300).
        """
        if self.own_nic_Gbps is not None:
            return self.own_nic_Gbps
        if self.is_card or self.gcn or self.wires < _SWITCHED:
            return None
        return next((Gbps for sm, Gbps in _NIC_Gbps if (self.sm or 0) >= sm), None)


def _parse_row(row: str) -> Board:
    name, pattern, ids, arch, pcie, wires, memory, properties, source = row.split(";")
    generation, width = pcie.split("x")
    count, _, rate = wires.partition("x")
    numbers = {key: int(number) for key, number in re.findall(r"(\w+)=(\d+)", properties)}
    spelled = (pattern or name.upper()).replace(" ", " ?")
    return Board(
        name,
        re.compile(rf"(?<![A-Z0-9])(?:{spelled})(?![A-Z0-9])"),
        tuple(ids.split()),
        int(arch) if arch.isdecimal() else None,
        "" if arch.isdecimal() else arch,
        PcieLink(int(generation), int(width)),
        int(count or 0),
        Fraction(rate or 0),
        numbers.get("pair", 1),
        memory,
        "card" in properties,
        Fraction(numbers["c2c"]) if "c2c" in numbers else None,
        numbers.get("nic"),
        "no-rdma" not in properties,
        "no-p2p" not in properties,
        source,
    )


BOARDS: tuple[Board, ...] = tuple(map(_parse_row, _TABLE.strip().splitlines()))
# Any of the names, so that most lines of a long text are searched once.
_ANY = re.compile("|".join(board.pattern.pattern for board in BOARDS))
# No GPU has more NVLinks, or xGMI links, than this.
MAX_NVLINKS = max(board.wires for board in BOARDS if not board.gcn)
MAX_XGMI_LINKS = max(board.wires for board in BOARDS if board.gcn)
# AMD's GPUs, or dies, on a board that joins them by xGMI, and the architecture of boards on which
# they are joined over each other, not pairwise (MI250).
MESH, NOT_MESHED = 8, "gfx90a"
# The fastest NVLink and xGMI link, in GB/s.
FASTEST_NVLINK_GBps = max(board.wire_GBps for board in BOARDS if not board.gcn)
FASTEST_XGMI_GBps = max(board.wire_GBps for board in BOARDS if board.gcn)


def get_board(name: str) -> Board:
    """Return the row with this name, which must be in the table."""
    return next(board for board in BOARDS if board.name == name)


@lru_cache(maxsize=1024)  # a log repeats a few names on thousands of lines
def find_board(name: str) -> Board | None:
    """Return the board of a GPU's name ("NVIDIA H100 80GB HBM3"); None if it is in no row."""
    spelled = _spell(name)
    if re.search(r"\b(LAPTOP|MOBILE|EMBEDDED)\b", spelled):
        return None
    # GeForce cards are also known by their number alone.
    candidates = (spelled, f"RTX {spelled}") if spelled.strip().isdecimal() else (spelled,)
    return next((b for b in BOARDS if any(b.pattern.search(text) for text in candidates)), None)


def find_mentioned(line: str) -> set[str]:
    """Return the names of the boards that a line of text mentions.

    A short name that may mean other things counts only after a maker's name or a number of boards:
    `8x T4` mentions a board, `T4` alone does not. PCI ids count as well, as lspci and rocm-smi
    print them; a line with ids of boards is not searched for names.
    """
    numbers = {number or other for number, other in _LISTED_ID.findall(line)}
    by_id = {board.name for number in numbers if (board := find_by_id(number))}
    if by_id:
        return by_id
    spelled, names = _spell(line), set()
    for board in BOARDS if _ANY.search(spelled) else ():
        for match in board.pattern.finditer(spelled):
            if _DISTINCTIVE.fullmatch(match[0]) or _MAKER.search(spelled[: match.start()]):
                names.add(board.name)
        spelled = board.pattern.sub("-", spelled)  # H100 NVL is no H100
    return names


def _spell(name: str) -> str:
    """Return a name in upper case, with single spaces, and with a space after "8x"."""
    # An "s" behind a name in capitals is a plural, except that L40s is an L40S.
    singular = re.sub(r"(?<=[0-9X])(?<!L40)s\b", "", name[:400])
    # Words in other scripts set names apart: "PCIe ... H100" with such between is no H100 PCIe.
    apart = _OTHER_LETTERS.sub("\0", singular)
    spelled = re.sub(r"[^A-Z0-9\0]+", " ", apart.upper())
    for pattern, usual in _OTHER_SPELLINGS:
        spelled = pattern.sub(usual, spelled)
    return spelled


def find_by_id(device: str) -> Board | None:
    """Return the board with a PCI device id, such as 2330 or 0x2330; None if it is in no row."""
    number = device.lower().removeprefix("0x")
    return next((board for board in BOARDS if number in board.ids), None)


def find_by_architecture(sm: int | None = None, gcn: str = "") -> tuple[Board, ...]:
    """Return the boards with a compute capability (times ten), or one of AMD's architectures.

    `sm` is the capability; if no board has it, return the boards with the next lower one. `gcn` is
    the architecture if `sm` is None, spelled as gfx942, 942 or gfx90a:sramecc+.
    """
    if sm is not None:
        nearest = max((b.sm for b in BOARDS if b.sm is not None and b.sm <= sm), default=None)
        return tuple(b for b in BOARDS if b.sm is not None and b.sm == nearest)
    name = gcn.split(":")[0].strip().lower()
    name = _GCN_ALIASES.get(name, name if name.startswith("gfx") else f"gfx{name}")
    return tuple(board for board in BOARDS if board.gcn == name)


def find_wire_GBps(boards: Iterable[Board]) -> Fraction | None:
    """Return the GB/s of one NVLink or xGMI link of these boards.

    Boards without such links do not count. Return None if the rates differ, or if there are none.
    """
    rates = {board.wire_GBps for board in boards if board.wires}
    return rates.pop() if len(rates) == 1 else None


def find_datasheet_GBps(kind: str, gpu: Mapping[str, object]) -> Fraction | None:
    """Return the datasheet's GB/s of one NVLink or xGMI link in one direction.

    `kind` is "nvlink" or "xgmi". `gpu` is the `extra` of a GPU's device: its `name` decides, else
    `sm` (compute capability times ten) or `gcn` (AMD's architecture, such as gfx942). The result is
    None for another kind, or if these do not determine the rate.
    """
    named, sm = find_board(str(gpu.get("name") or "")), gpu.get("sm")
    boards = (
        (named,)
        if named is not None and named.wires
        else find_by_architecture(sm)
        if isinstance(sm, int) and kind == "nvlink"
        else find_by_architecture(gcn=str(gpu.get("gcn") or ""))
    )
    return find_wire_GBps(b for b in boards if b.kind == kind)


def count_nvlinks(GBps: Fraction, gpu: Mapping[str, object]) -> int:
    """Return how many NVLinks have the rate `GBps` together, if no file counts them.

    Return 1 up to the rate of the fastest single link. Above that, divide by the rate of one link
    of the GPU, whose device has the fields `gpu` in `extra`. If that rate is not known, try those
    of the boards in the table: 25 GB/s first, then those of other modules, then those of cards. A
    rate counts if the quotient is a whole number and no more links than such a board has; return 1
    if none counts.
    """
    if GBps <= FASTEST_NVLINK_GBps:
        return 1
    return _divide(GBps, find_datasheet_GBps("nvlink", gpu))


@lru_cache(maxsize=1024)  # thousands of links have a few rates
def _divide(GBps: Fraction, own_GBps: Fraction | None) -> int:
    boards = [
        b for b in BOARDS if b.kind == "nvlink" and b.wires and own_GBps in (None, b.wire_GBps)
    ]
    # Modules before cards, whose bridges are slower than a module's links.
    boards.sort(key=lambda b: (b.is_card, b.wire_GBps != NVLINK_DATASHEET_GBps[4], b.wire_GBps))
    counts = (GBps / b.wire_GBps for b in boards if GBps <= b.wires * b.wire_GBps)
    return next((int(count) for count in counts if count.denominator == 1), 1)


def is_mesh_of_dies(board: Board, gpus: int, most: int) -> bool:
    """Return whether a text joins all pairs of eight dies (MI250), of which only some have links.

    `board` is that of the GPUs in the text, `gpus` their number, and `most` the largest number of
    others to which it joins one of them. The other pairs are joined over links of other dies, so
    such a text does not say where links are.
    """
    return board.gcn == NOT_MESHED and gpus == MESH and most == MESH - 1


def has_nvlink(sm: int | None) -> bool:
    """Return whether GPUs of a compute capability (times ten) are mostly sold on NVLink modules."""
    return any(b.wires and not b.is_card for b in find_by_architecture(sm or 0))


def nvlink_generation(sm: int) -> int:
    """Return the NVLink generation of a GPU from its compute capability times ten."""
    return next((generation for least, generation in _NVLINK_GENERATION_OF_SM if sm >= least), 1)
