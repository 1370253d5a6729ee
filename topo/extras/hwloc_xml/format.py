"""Register hwloc's XML among the formats that topo-probe reads."""

import re

from ...formats.format import Format
from . import read

FORMAT = Format(
    "hwloc's XML (starts with <topology)",
    re.compile(r"<(?:topology\b|!DOCTYPE\s+topology\b)").match,
    read,
    before="nccl-xml",
    root="topology",
)
