"""Register NCCL's logs among the formats that topo-probe reads."""

from ...formats.format import Format
from .reader import looks_like, read

FORMAT = Format("a log of NCCL with its graph (=== System)", looks_like, read)
