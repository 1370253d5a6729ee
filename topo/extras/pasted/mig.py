"""Find the MIG modes of GPUs in the text around a matrix: nvidia-smi's table, or nvidia-smi -L.

The matrix is the one of `nvidia-smi topo -m`, or of AMD's tools, which people paste with more text.
"""

import re
from collections.abc import Iterator

from ...facts import Fact, keys
from ...facts.keys import gpu_subject

# Lines that are searched; people paste some hundred.
_MAX_LINES = 5_000
_LISTED_GPU = re.compile(r"\s{0,40}GPU (\d{1,4}): \S.{0,200}")
_INSTANCE = re.compile(r"\s{0,40}MIG (?:\dc\.)?\dg\.\S{1,20}\s{1,20}Device\s{1,4}\d{1,2}: .{0,100}")
# The first of a GPU's three lines in the table, and the mode at the end of the third.
_ROW = re.compile(r"\s{0,40}\|\s{1,6}(\d{1,4})\s{1,4}[A-Za-z][^|]{0,60}\s(?:On|Off|N/A)\s{0,9}\|.*")
_MODE = re.compile(r"\s{0,40}\|.{0,100}\|\s{1,40}(Enabled|Disabled)\*?\s{0,9}\|\s*")
_MODE_BELOW_lines = 2


def find_mig_facts(text: str) -> Iterator[Fact]:
    """Yield a fact (key `mig`, value on or off) for each GPU whose MIG mode the text states.

    MIG is on if nvidia-smi -L lists instances below a GPU; without any, that list says nothing.
    """
    modes: dict[str, tuple[str, str]] = {}
    listed = ""
    row, below = "", 0
    for line in text.split("\n", _MAX_LINES)[:_MAX_LINES]:
        below += 1
        if match := _LISTED_GPU.fullmatch(line):
            listed = match[1]
        elif listed and _INSTANCE.fullmatch(line):
            modes[listed] = ("on", "nvidia-smi -L")
        elif match := _ROW.fullmatch(line):
            row, below, listed = match[1], 0, ""
        elif row and below == _MODE_BELOW_lines and (match := _MODE.fullmatch(line)):
            mode = "on" if match[1] == "Enabled" else "off"
            modes.setdefault(row, (mode, "nvidia-smi"))
    for gpu, (mode, source) in modes.items():
        yield Fact(gpu_subject(gpu), keys.GPU_MIG, mode, source)
