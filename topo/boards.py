"""The PCIe link of a GPU by its name, for machines whose file gives names but no rates.

Each generation is that of the vendor's datasheet of the board.
"""

import re

from .hardware import PcieLink

# Boards with 8 PCIe lanes; all others here have 16.
_X8 = r"RTX (?:40|50)60|RTX 4000 SFF|RX 7600"
# Names by PCIe generation; the first that occurs in a GPU's name counts.
_NAMES: tuple[tuple[int, str], ...] = (
    # Datasheets of Hopper and Blackwell boards; GeForce RTX 50 and RTX PRO Blackwell whitepapers.
    (5, r"[HB][12378]\d0\b|GB?[HB]\d00|H20\b|B[23]00|GH200|RTX 50[5-9]0|RTX PRO \d000|MI3\d\d"),
    # Datasheets of Ampere and Ada boards: A2 to A100, L4 to L40S, GeForce RTX 30 and 40.
    (4, r"\bA(?:2|10|10G|16|30|40|100|800)\b|\bL(?:2|4|20|40|40S)\b|RTX [34]0\d0|RTX A\d{3,4}"),
    (4, r"\d000 Ada|RTX 6000 Ada|MI(?:50|60|100|210|250)"),
    # Whitepapers of Pascal, Volta and Turing.
    (3, r"\b[VP](?:100|40|4)S?\b|\bT4G?\b|RTX 20\d0|GTX 1\d\d0|TITAN|Quadro"),
)


def find_pcie_link(name: str) -> PcieLink | None:
    """Return the PCIe link of a GPU ("NVIDIA GeForce RTX 4090"); None for an unknown name."""
    for generation, pattern in _NAMES:
        if re.search(pattern, name, re.IGNORECASE):
            return PcieLink(generation, 8 if re.search(_X8, name, re.IGNORECASE) else 16)
    return None
