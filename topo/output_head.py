"""The first fields of each JSON object that a command prints: its format and version."""

from dataclasses import dataclass
from typing import Any, Literal

# Version of all formats of output; increment it for changes that break programs that read them.
# New fields do not.
VERSION = 1
# The formats, by command; the last five describe a file of topo-synth for NCCL, RCCL or MLX.
OutputFormat = Literal[
    "topoplan-synth",
    "topoplan-run",
    "topoplan-judge",
    "topoplan-judge-gate",
    "topoplan-judge-thresholds",
    "topoplan-place",
    "topoplan-extras",
    "topoplan-worth",
    "nccl-graph",
    "rccl-env",
    "nccl-tuner",
    "nccl-env",
    "mlx-hostfile",
]


@dataclass(frozen=True)
class OutputHead:
    """The fields that every printed object has; the others depend on the command."""

    format: OutputFormat
    version: Literal[1]


def output_head(name: OutputFormat) -> dict[str, Any]:
    """Return the fields `format` and `version`, with which a printed object begins."""
    return {"format": name, "version": VERSION}
